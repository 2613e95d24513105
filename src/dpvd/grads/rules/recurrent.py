"""Rules for recurrent layers: gradients are carried back to the pre-activations of the gates, and
no further.

With δ_t the gradient that arrives at the pre-activations of step t, in example i,

    dW_ih = Σ_t δ_t ⊗ x_t        dW_hh = Σ_t δ_t ⊗ h_(t-1)

so the factors of all steps are the positions of one term: the norm is that of the sum over time.
torch's own kernels do not let δ out, so the forward pass is ours (``dpvd.nn.recurrent.unroll``).
"""

from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.calls import Call, CannotFactor, Unit
from dpvd.grads.rules.common import Inside, OwnForward, Terms
from dpvd.grads.terms import Direct, Formed, Outer
from dpvd.nn import Rates
from dpvd.nn.recurrent.cells import CELLS
from dpvd.nn.recurrent.layers import AdditiveGRU, AdditiveLSTM, AdditiveRecurrent, AdditiveRNN
from dpvd.nn.recurrent.scan import Noise, variance_gradient
from dpvd.nn.recurrent.unroll import Pass, directions, own_weights, unroll

__all__ = ["RULES"]

Factors = dict[
    str, tuple[Tensor, Tensor]
]  # by matrix: δ [B, T, gates] and what it is multiplied with, [B, T, in]


def forward(unit: Unit, input: Any, hx: Any = None) -> tuple[Any, Inside]:
    """What the layer returns, with a way into it for gradients."""
    layer: Any = unit.module
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise CannotFactor(f"{unit.name!r} was not called with one tensor of dimension 3")
    weights_of = (
        layer.weights_for(input) if isinstance(layer, AdditiveRecurrent) else own_weights(layer)
    )
    passes: list[Pass] = []
    output = unroll(layer, input, hx, weights_of, passes)
    return output, Inside([edge for one in passes for edge in one.edges.values()], passes)


def recurrent(layer: nn.RNNBase, call: Call, *grads: Tensor | None) -> Terms:
    """The outputs and the last state are functions of h_t = cell(W_ih x_t + b_ih, W_hh h_(t-1) +
    b_hh, ...).
    """
    return _weight_terms(_factors(call.memory, grads), {})


def additive(layer: AdditiveRecurrent, call: Call, *grads: Tensor | None) -> Terms:
    """The same with √v ε added to the pre-activations, v = x²σ²: σ enters there only, with u = δ ε
    / (2√v).
    """
    factors = _factors(call.memory, grads)
    kept = {} if layer.kept is None else layer.blocks(layer.kept.to(layer.weight.dtype))
    terms = _weight_terms(factors, kept)
    if layer.learned and call.draws:
        terms["log_sigma2"] = [_scale_term(layer, call, factors)]
    return terms


def _scale_term(layer: AdditiveRecurrent, call: Call, factors: Factors) -> Direct | Formed:
    """σ² ∘ Σ_t u_t ⊗ x_t² of all matrices side by side, summed where σ is shared."""
    parts = {
        f"weight_{side}_{one.end}": (noise, one.slopes[side])
        for one in call.memory
        for side, noise in (("ih", one.weights.noise_ih), ("hh", one.weights.noise_hh))
    }
    if layer.rates is Rates.WEIGHT:
        count = len(next(iter(factors.values()))[0])
        made = {name: _variance_factors(*parts[name], *factors[name]) for name in parts}

        def form(examples: slice | Tensor) -> Tensor:
            few = {name: (u[examples], squares[examples]) for name, (u, squares) in made.items()}
            values = layer.log_sigma2.new_empty(
                len(next(iter(few.values()))[0]), *layer.log_sigma2.shape
            )
            for name, block in layer.blocks(values).items():
                torch.bmm(few[name][0].mT, few[name][1], out=block)
            return values

        return Formed(count, form, layer.weight_variance())
    shared = []
    for name, (noise, slope) in parts.items():
        u, squares = _variance_factors(noise, slope, *factors[name])
        shared.append(((u @ noise.variance) * squares).sum(1))
    per_input = torch.cat(shared, -1)
    return Direct(per_input.sum(1) if layer.rates is Rates.LAYER else per_input)


def _variance_factors(
    noise: Noise, slope: Tensor, delta: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """u_t [B, T, gates] and x_t² [B, T, in]."""
    return variance_gradient(delta, noise.draw.unsqueeze(1), slope.transpose(0, 1)), value.square()


def _factors(passes: list[Pass], grads: tuple[Tensor | None, ...]) -> Factors:
    factors: Factors = {}
    arriving = iter(grads)
    for one in passes:
        deltas = {side: _arrived(next(arriving), one, side).transpose(0, 1) for side in one.edges}
        deltas.setdefault("hh", deltas["ih"])  # of a cell that sees the sum of both
        values: dict[str, Any] = {"ih": one.inputs, "hh": one.before(), "hr": one.raw}
        for side, delta in deltas.items():
            factors[f"weight_{side}_{one.end}"] = delta, values[side].transpose(0, 1)
    return factors


def _arrived(grad: Tensor | None, one: Pass, side: str) -> Tensor:
    """A layer whose outputs are not used has δ = 0."""
    if grad is not None:
        return grad
    return one.inputs.new_zeros(*one.inputs.shape[:2], len(getattr(one.weights, side)))


def _weight_terms(factors: Factors, kept: dict[str, Tensor]) -> Terms:
    """Weights and biases; a pruned weight gets no gradient."""
    terms: Terms = {}
    sums: dict[
        int, Tensor
    ] = {}  # of δ over time, by identity: the two biases of a cell often have one and the same
    for name, (delta, value) in factors.items():
        if id(delta) not in sums:
            sums[id(delta)] = delta.sum(1)
        terms[name] = [Outer(delta, value, kept.get(name))]
        terms[name.replace("weight", "bias")] = [Direct(sums[id(delta)])]
    return terms


def _batch_dims(layer: nn.RNNBase) -> tuple[int, ...]:
    """Of the gradients at the edges of all passes: they have time first."""
    edges = 1 + (not CELLS[layer.mode].sums) + bool(layer.proj_size)
    return (1,) * (edges * layer.num_layers * len(directions(layer)))


_PLAIN, _ADDITIVE = (OwnForward(terms, _batch_dims, forward) for terms in (recurrent, additive))

RULES: dict[type[nn.Module], OwnForward] = {
    nn.RNN: _PLAIN,
    nn.GRU: _PLAIN,
    nn.LSTM: _PLAIN,
    AdditiveRNN: _ADDITIVE,
    AdditiveGRU: _ADDITIVE,
    AdditiveLSTM: _ADDITIVE,
}
