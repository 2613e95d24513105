"""Rules of recurrent layers: gradients go back to the pre-activations of the gates, no further.

With δ_t the gradient that arrives at the pre-activations of step t, in example i,

    dW_ih = Σ_t δ_t ⊗ x_t        dW_hh = Σ_t δ_t ⊗ h_(t-1)

so the factors of all steps are the positions of one term: the norm is that of the sum over time.
torch's own kernels do not let δ out, so the forward pass is ours (``dpvd.nn.recurrent.unroll``).
"""

from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.clipping import Unit
from dpvd.grads.factored.rule import (
    Call,
    CannotFactor,
    CustomForwardRule,
    Deferred,
    Direct,
    ForwardTrace,
    Outer,
    Terms,
)
from dpvd.nn import Rates
from dpvd.nn.recurrent.cells import CELLS
from dpvd.nn.recurrent.layers import AdditiveGRU, AdditiveLSTM, AdditiveRecurrent, AdditiveRNN
from dpvd.nn.recurrent.scan import Noise, variance_gradient
from dpvd.nn.recurrent.unroll import Pass, directions, own_weights, unroll

__all__ = ["RULES"]

Factors = dict[str, tuple[Tensor, Tensor]]
"""By matrix: δ [B, T, gates] and what it is multiplied with, [B, T, in]."""


def forward(unit: Unit, input: Any, hx: Any = None) -> tuple[Any, ForwardTrace]:
    """What the layer returns, and edges at the pre-activations of its gates."""
    layer: Any = unit.module
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise CannotFactor(f"{unit.name!r} was not called with one tensor of dimension 3")
    if isinstance(layer, AdditiveRecurrent):
        weights_of = layer.weights_for(input)
    else:
        weights_of = own_weights(layer)
    passes: list[Pass] = []
    output = unroll(layer, input, hx, weights_of, passes)
    edges = [edge for one in passes for edge in one.edges.values()]
    return output, ForwardTrace(edges, passes)


def recurrent(layer: nn.RNNBase, call: Call, *grads: Tensor | None) -> Terms:
    """Outputs and states are functions of h_t = cell(W_ih x_t + b_ih, W_hh h_(t-1) + b_hh, ...)."""
    factors = _factors(call.saved, grads)
    return _weight_terms(factors, {})


def additive(layer: AdditiveRecurrent, call: Call, *grads: Tensor | None) -> Terms:
    """The same with √v ε added to the pre-activations, v = x²σ².

    σ enters there only, with u = δ ε / (2√v).
    """
    factors = _factors(call.saved, grads)
    masks = {} if layer.kept is None else layer.blocks(layer.kept.to(layer.weight.dtype))
    terms = _weight_terms(factors, masks)
    if layer.learned and call.draws:
        terms["log_sigma2"] = [_scale_term(layer, call, factors)]
    return terms


def _scale_term(layer: AdditiveRecurrent, call: Call, factors: Factors) -> Direct | Deferred:
    """σ² ∘ Σ_t u_t ⊗ x_t² of all matrices side by side, summed where σ is shared."""
    noises: dict[str, tuple[Noise, Tensor]] = {}  # by matrix, with 1 / (2√v)
    for one in call.saved:
        noises[f"weight_ih_{one.end}"] = (one.weights.noise_ih, one.slopes["ih"])
        noises[f"weight_hh_{one.end}"] = (one.weights.noise_hh, one.slopes["hh"])
    if layer.rates is Rates.WEIGHT:
        by_matrix: Factors = {}
        for name, noise in noises.items():
            by_matrix[name] = _variance_factors(*noise, *factors[name])
        return _scale_per_weight(layer, by_matrix)
    shared = []
    for name, noise in noises.items():
        u, squares = _variance_factors(*noise, *factors[name])
        shared.append(((u @ noise[0].variance) * squares).sum(1))
    per_input = torch.cat(shared, -1)  # [B, inputs of all matrices]
    return Direct(per_input.sum(1) if layer.rates is Rates.LAYER else per_input)


def _scale_per_weight(layer: AdditiveRecurrent, factors: Factors) -> Deferred:
    """As large as the weights for each example: computed for a few examples at a time."""
    like = layer.log_sigma2.detach()
    first_u, _ = next(iter(factors.values()))

    def compute(examples: slice | Tensor) -> Tensor:
        count = len(first_u[examples])
        values = like.new_empty(count, *like.shape)
        for name, block in layer.blocks(values).items():
            u, squares = factors[name]
            torch.bmm(u[examples].mT, squares[examples], out=block)
        return values

    return Deferred(len(first_u), compute, layer.weight_variance())


def _variance_factors(
    noise: Noise, half_inverse_std: Tensor, delta: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """u_t [B, T, gates] and x_t² [B, T, in]."""
    draw = noise.draw.unsqueeze(1)
    u = variance_gradient(delta, draw, half_inverse_std.transpose(0, 1))
    return u, value.square()


def _factors(passes: list[Pass], grads: tuple[Tensor | None, ...]) -> Factors:
    factors: Factors = {}
    arriving = iter(grads)
    for one in passes:
        deltas: dict[str, Tensor] = {}
        for side in one.edges:
            delta = _arrived(next(arriving), one, side)  # [T, B, gates]
            deltas[side] = delta.transpose(0, 1)
        deltas.setdefault("hh", deltas["ih"])  # of a cell that sees the sum of both
        values: dict[str, Any] = {"ih": one.inputs, "hh": one.before(), "hr": one.raw}
        for side, delta in deltas.items():
            value = values[side].transpose(0, 1)  # [B, T, in]
            factors[f"weight_{side}_{one.end}"] = (delta, value)
    return factors


def _arrived(grad: Tensor | None, one: Pass, side: str) -> Tensor:
    """A layer whose outputs are not used has δ = 0."""
    if grad is not None:
        return grad
    gates = len(getattr(one.weights, side))
    return one.inputs.new_zeros(*one.inputs.shape[:2], gates)


def _weight_terms(factors: Factors, masks: dict[str, Tensor]) -> Terms:
    """Weights and biases; a pruned weight gets no gradient."""
    terms: Terms = {}
    sums: dict[int, Tensor] = {}  # of δ over time, by identity: biases of a cell often share it
    for name, (delta, value) in factors.items():
        if id(delta) not in sums:
            sums[id(delta)] = delta.sum(1)
        terms[name] = [Outer(delta, value, masks.get(name))]
        terms[name.replace("weight", "bias")] = [Direct(sums[id(delta)])]
    return terms


def _batch_dims(layer: nn.RNNBase) -> tuple[int, ...]:
    """Of the gradients at the edges of all passes: they have time first."""
    edges = 1 + (not CELLS[layer.mode].sums) + bool(layer.proj_size)
    return (1,) * (edges * layer.num_layers * len(directions(layer)))


_PLAIN = CustomForwardRule(recurrent, _batch_dims, forward)
_ADDITIVE = CustomForwardRule(additive, _batch_dims, forward)

RULES: dict[type[nn.Module], CustomForwardRule] = {
    nn.RNN: _PLAIN,
    nn.GRU: _PLAIN,
    nn.LSTM: _PLAIN,
    AdditiveRNN: _ADDITIVE,
    AdditiveGRU: _ADDITIVE,
    AdditiveLSTM: _ADDITIVE,
}
