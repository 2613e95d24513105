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
from dpvd.nn.unroll import unroll

__all__ = ["RULES"]


class Trace:
    """The linear maps of one run through a recurrent layer: what came in, and the pre-activations."""

    def __init__(self, layer: nn.RNNBase) -> None:
        self.layer = layer
        self.inputs: dict[str, list[Tensor]] = {}
        self.outputs: dict[str, list[Tensor]] = {}

    def linear_map(self, name: str, value: Tensor) -> Tensor:
        """W value + b without a gradient to either, recorded."""
        output = F.linear(value, self.parameter(name), self.parameter(_bias(name)) if self.layer.bias else None)
        output.requires_grad_()  # the first step of the first layer depends on nothing that does
        self.inputs.setdefault(name, []).append(value.detach())
        self.outputs.setdefault(name, []).append(output)
        return output

    def parameter(self, name: str) -> Tensor:
        value: Tensor = getattr(self.layer, name)
        return value.detach()

    def factors(self, outputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> dict[str, tuple[Tensor, Tensor]]:
        """By weight δ [B, T, gates] and what it was multiplied with [B, T, in]; a step that is not used has δ = 0."""
        recorded = [output for steps in self.outputs.values() for output in steps]
        found = iter(torch.autograd.grad(outputs, recorded, grads, materialize_grads=True))
        deltas = {name: [next(found) for _ in steps] for name, steps in self.outputs.items()}
        return {name: (_batch_first(deltas[name]), _batch_first(self.inputs[name])) for name in self.outputs}


def recurrent(layer: nn.RNNBase, call: Call, *grads: Tensor | None) -> Terms:
    """The outputs and the last state are functions of h_t = cell(W_ih x_t + b_ih, W_hh h_(t-1) + b_hh, ...)."""
    x, state = _arguments(layer, call)
    trace = Trace(layer)
    with torch.enable_grad(), call.torch_randomness():
        outputs, ends = unroll(layer, x, state, trace.linear_map)
        outputs = outputs.transpose(0, 1) if layer.batch_first else outputs
    reached = [(value, grad) for value, grad in zip((outputs, *ends), grads, strict=True) if grad is not None]
    values, arriving = zip(*reached, strict=True)
    terms: Terms = {}
    for name, (delta, value) in trace.factors(values, arriving).items():
        terms[name] = [Outer(delta, value)]
        terms[_bias(name)] = [Direct(delta.sum(1))]
    return terms


def _arguments(layer: nn.RNNBase, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The sequence, time first, and the state it starts from; refused what the rule does not know."""
    x, state = call.arguments().values()
    if not isinstance(x, Tensor) or x.dim() != 3:
        raise CannotFactor(f"{call.unit.name!r} was not called with one tensor of dimension 3")
    if layer.proj_size:
        raise CannotFactor(f"{call.unit.name!r} projects its hidden state (proj_size)")
    if layer.dropout and layer.training and layer.num_layers > 1 and x.device.type != "cpu":
        raise CannotFactor(f"{call.unit.name!r} draws dropout masks that can be drawn again on the CPU only")
    x = (x.transpose(0, 1) if layer.batch_first else x).detach()
    if state is None:
        parts = 2 if layer.mode == "LSTM" else 1
        shape = (layer.num_layers * (2 if layer.bidirectional else 1), x.shape[1], layer.hidden_size)
        return x, (x.new_zeros(shape),) * parts
    return x, tuple(part.detach() for part in (state if isinstance(state, tuple) else (state,)))


def _bias(name: str) -> str:
    return name.replace("weight", "bias")


def _batch_first(parts: list[Tensor]) -> Tensor:
    """[B, T, d] from one tensor [T, B, d] or from T tensors [B, d]."""
    return parts[0].transpose(0, 1) if parts[0].dim() == 3 else torch.stack(parts, 1)


def _batch_dims(layer: nn.RNNBase) -> tuple[int, ...]:
    """Of the outputs, of the last h and, for an LSTM, of the last c."""
    return (0 if layer.batch_first else 1, *[1] * (2 if layer.mode == "LSTM" else 1))


_RULE = ManyOutputs(recurrent, _batch_dims)

RULES: dict[type[nn.Module], ManyOutputs] = {nn.RNN: _RULE, nn.GRU: _RULE, nn.LSTM: _RULE}
