"""Rules of dense layers: y = x Wᵀ + b and its noisy kin, for inputs [B, in] and [B, ..., in]."""

from typing import Any

from torch import Tensor, nn

from dpvd.grads.factored.rule import (
    Call,
    Direct,
    Outer,
    Rule,
    Term,
    Terms,
    rows,
    sum_to_last,
    variance_gradient,
)
from dpvd.nn import AdditiveLinear, BinaryDropoutLinear, GaussianDropoutLinear, MultiplicativeLinear

__all__ = ["RULES"]


def linear(layer: nn.Linear, call: Call, grad: Tensor) -> Terms:
    """y = x Wᵀ + b."""
    x = call.input()
    return _linear_terms(x, grad)


def input_dropout(
    layer: BinaryDropoutLinear | GaussianDropoutLinear, call: Call, grad: Tensor
) -> Terms:
    """y = (x ∘ s) Wᵀ + b with a fixed distribution of s."""
    noisy = _noisy_input(layer, call)
    return _linear_terms(noisy, grad)


def additive(layer: AdditiveLinear, call: Call, grad: Tensor) -> Terms:
    """y = x Wᵀ + b + √v ε with v = x² (σ²)ᵀ.

    The weight enters the mean only, log σ² the variance only.
    """
    x = call.input()  # [B, ..., in]
    terms = _linear_terms(x, grad, layer.kept)
    if not call.draws or not layer.learned:
        return terms
    u = variance_gradient(call, grad)  # [B, ..., out]
    log_sigma2 = layer.log_sigma2
    if layer.kept is None and log_sigma2.dim() < 2:  # v is the same for all outputs
        reached = u.sum(-1, keepdim=True)  # [B, ..., 1]
        per_input = sum_to_last(reached * x.square() * log_sigma2.exp())
        terms["log_sigma2"] = [_reduced(per_input, log_sigma2)]
    else:
        terms["log_sigma2"] = _variance_terms(layer.weight_variance(), x, u, log_sigma2)
    return terms


def multiplicative(layer: MultiplicativeLinear, call: Call, grad: Tensor) -> Terms:
    """Noise that multiplies the inputs (type A) or the weights (type B)."""
    if not call.draws:
        return _linear_terms(call.input(), grad, layer.kept)
    type_rule = _type_a if layer.kind == "A" else _type_b
    return type_rule(layer, call, grad)


def _type_a(layer: MultiplicativeLinear, call: Call, grad: Tensor) -> Terms:
    """s_i = 1 + √α_i ε_i, so that ds_i/d log α_i = (s_i - 1)/2."""
    x = call.input()
    noisy = _noisy_input(layer, call)
    terms = _linear_terms(noisy, grad, layer.kept)
    if layer.learned:
        at_input = grad @ layer.mean_weight()  # [B, ..., in]
        per_input = sum_to_last(at_input * (noisy - x) / 2)
        terms["log_rate"] = [_reduced(per_input, layer.log_rate)]
    return terms


def _type_b(layer: MultiplicativeLinear, call: Call, grad: Tensor) -> Terms:
    """y = x Wᵀ + b + √v ε, v = x² (αW²)ᵀ: dW = g ⊗ x + 2αW ∘ (u ⊗ x²), d log α = αW² ∘ (u ⊗ x²)."""
    x = call.input()
    u = variance_gradient(call, grad)
    terms = _linear_terms(x, grad, layer.kept)
    derivative = 2 * layer.log_rate.exp() * layer.mean_weight()  # 2αW, [out, in]
    terms["weight"].append(Outer(rows(u), rows(x.square()), derivative))
    if layer.learned:
        terms["log_rate"] = _variance_terms(layer.weight_variance(), x, u, layer.log_rate)
    return terms


def _linear_terms(x: Tensor, grad: Tensor, mask: Tensor | None = None) -> Terms:
    """For input [B, ..., in] and gradient [B, ..., out]; a pruned weight gets no gradient."""
    scale = None if mask is None else mask.to(grad.dtype)
    weight = Outer(rows(grad), rows(x), scale)
    bias = Direct(sum_to_last(grad))
    return {"weight": [weight], "bias": [bias]}


def _variance_terms(variance: Tensor, x: Tensor, u: Tensor, parameter: Tensor) -> list[Term]:
    """Gradient of a log-variance through v = x² Vᵀ, V [out, in], where the parameter scales V."""
    if parameter.dim() == 2:
        return [Outer(rows(u), rows(x.square()), variance)]
    per_input = sum_to_last((u @ variance) * x.square())  # [B, in]
    return [_reduced(per_input, parameter)]


def _reduced(per_input: Tensor, parameter: Tensor) -> Direct:
    """[B, in] for a parameter per input unit, its sum for one parameter in all."""
    if parameter.dim() == 0:
        return Direct(per_input.sum(1))
    return Direct(per_input)


def _noisy_input(layer: Any, call: Call) -> Tensor:
    """x ∘ s, from the recorded draw; x itself when the layer does not sample."""
    x = call.input()
    if not call.draws:
        return x
    multiplier: Tensor = layer.multiplier(call.draws[0])
    return x * multiplier


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    BinaryDropoutLinear: input_dropout,
    GaussianDropoutLinear: input_dropout,
    AdditiveLinear: additive,
    MultiplicativeLinear: multiplicative,
}
