"""Rules for recurrent layers: the recurrence is run again, and differentiated down to its pre-activations.

With δ_t the gradient that arrives at the pre-activations of step t, in example i,

    dW_ih = Σ_t δ_t ⊗ x_t        dW_hh = Σ_t δ_t ⊗ h_(t-1)

so the factors of all steps are the positions of one term: the norm is that of the sum over time.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads.calls import Call, CannotFactor
from dpvd.grads.factors import Direct, Outer
from dpvd.grads.rules.common import ManyOutputs, Terms
from dpvd.nn import Rates
from dpvd.nn.recurrent import AdditiveGRU, AdditiveLSTM, AdditiveRecurrent, AdditiveRNN, gate_std
from dpvd.nn.unroll import LinearMap, as_sequence, unroll

__all__ = ["RULES"]

Factors = dict[str, tuple[Tensor, Tensor]]  # by weight: δ [B, T, gates] and what it is multiplied with, [B, T, in]


class Trace:
    """The linear maps of one run through a recurrent layer: what came in, and the pre-activations."""

    def __init__(self, linear_map: LinearMap, *, shared: bool) -> None:
        self.recorded_map, self.shared = linear_map, shared
        self.inputs: dict[str, list[Tensor]] = {}
        self.outputs: dict[str, list[Tensor]] = {}

    def linear_map(self, name: str, value: Tensor) -> Tensor:
        """The pre-activations, recorded."""
        output = self.recorded_map(name, value)
        self.inputs.setdefault(name, []).append(value.detach())
        if name == self.recorded_for(name):
            output.requires_grad_()  # the first step of a frozen layer depends on nothing that does
            self.outputs.setdefault(name, []).append(output)
        return output

    def recorded_for(self, name: str) -> str:
        """The weight whose pre-activations are recorded: where gates see but the sum of both, δ is the same."""
        return name.replace("_hh_", "_ih_") if self.shared else name

    def factors(self, outputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Factors:
        """A step that is not used has δ = 0."""
        recorded = [output for steps in self.outputs.values() for output in steps]
        found = iter(torch.autograd.grad(outputs, recorded, grads, materialize_grads=True))
        deltas = {name: _in_time(name, [next(found) for _ in steps]) for name, steps in self.outputs.items()}
        return {name: (deltas[self.recorded_for(name)], _in_time(name, steps)) for name, steps in self.inputs.items()}


def recurrent(layer: nn.RNNBase, call: Call, *grads: Tensor | None) -> Terms:
    """The outputs and the last state are functions of h_t = cell(W_ih x_t + b_ih, W_hh h_(t-1) + b_hh, ...)."""

    def linear_map(name: str, value: Tensor) -> Tensor:
        bias = getattr(layer, _bias(name), None)  # a projection has none
        return F.linear(value, getattr(layer, name).detach(), None if bias is None else bias.detach())

    return _weight_terms(_run_again(layer, call, grads, linear_map), {})


def additive(layer: AdditiveRecurrent, call: Call, *grads: Tensor | None) -> Terms:
    """The same with √v ε added to the pre-activations, v = x²σ²: σ enters there only, with u = δ ε / (2√v)."""
    noise = call.draws[0] if call.draws else None
    factors = _run_again(layer, call, grads, layer.gate_map(noise))
    kept = {} if layer.kept is None else layer.blocks(layer.kept.to(layer.weight.dtype))
    terms = _weight_terms(factors, kept)
    if noise is not None and layer.learned:
        terms["log_sigma2"] = [Direct(_scale_gradient(layer, layer.noise_of(noise), factors))]
    return terms


def _scale_gradient(layer: AdditiveRecurrent, noise: dict[str, Tensor], factors: Factors) -> Tensor:
    """[B, *shape of log σ²]: σ² ∘ Σ_t u_t ⊗ x_t², summed over the weights that share a σ."""
    parts = []
    for name, variance in layer.blocks(layer.weight_variance().expand_as(layer.weight)).items():
        delta, value = factors[name]
        std = gate_std(value, variance)
        u = torch.where(std > 0, delta * noise[name].unsqueeze(1) / (2 * std), 0.0)
        if layer.rates is Rates.WEIGHT:
            parts.append(torch.einsum("bto,bti->boi", u, value.square()) * variance)
        else:
            parts.append(((u @ variance) * value.square()).sum(1))
    together = torch.cat(parts, -1)
    return together.sum(1) if layer.rates is Rates.LAYER else together


def _run_again(layer: nn.RNNBase, call: Call, grads: tuple[Tensor | None, ...], linear_map: LinearMap) -> Factors:
    """Repeat the call with these linear maps and carry the gradients of its outputs back to them."""
    x, state = _arguments(layer, call)
    trace = Trace(linear_map, shared=layer.mode != "GRU")
    with torch.enable_grad(), call.torch_randomness():
        outputs, ends = unroll(layer, x, state, trace.linear_map)
        outputs = outputs.transpose(0, 1) if layer.batch_first else outputs
    reached = [(value, grad) for value, grad in zip((outputs, *ends), grads, strict=True) if grad is not None]
    values, arriving = zip(*reached, strict=True)
    return trace.factors(values, arriving)


def _weight_terms(factors: Factors, kept: dict[str, Tensor]) -> Terms:
    """Weights and biases; a pruned weight gets no gradient."""
    terms: Terms = {}
    for name, (delta, value) in factors.items():
        terms[name] = [Outer(delta, value, kept.get(name))]
        terms[_bias(name)] = [Direct(delta.sum(1))]
    return terms


def _arguments(layer: nn.RNNBase, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The sequence, time first, and the state it starts from; refused what the rule does not know."""
    x, state = call.arguments().values()
    if not isinstance(x, Tensor) or x.dim() != 3:
        raise CannotFactor(f"{call.unit.name!r} was not called with one tensor of dimension 3")
    if layer.dropout and layer.training and layer.num_layers > 1 and x.device.type != "cpu":
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that can be drawn again on the CPU only")
    x, start = as_sequence(layer, x.detach(), state)
    return x, tuple(part.detach() for part in start)


def _bias(name: str) -> str:
    return name.replace("weight", "bias")


def _in_time(name: str, parts: list[Tensor]) -> Tensor:
    """[B, T, d] from one tensor [T, B, d], or from T tensors [B, d] in the order in which the steps were made."""
    if parts[0].dim() == 3:
        return parts[0].transpose(0, 1)
    return torch.stack(parts[::-1] if name.endswith("_reverse") else parts, 1)


def _batch_dims(layer: nn.RNNBase) -> tuple[int, ...]:
    """Of the outputs, of the last h and, for an LSTM, of the last c."""
    return (0 if layer.batch_first else 1, *[1] * (2 if layer.mode == "LSTM" else 1))


_PLAIN, _ADDITIVE = ManyOutputs(recurrent, _batch_dims), ManyOutputs(additive, _batch_dims)

RULES: dict[type[nn.Module], ManyOutputs] = {
    nn.RNN: _PLAIN,
    nn.GRU: _PLAIN,
    nn.LSTM: _PLAIN,
    AdditiveRNN: _ADDITIVE,
    AdditiveGRU: _ADDITIVE,
    AdditiveLSTM: _ADDITIVE,
}
