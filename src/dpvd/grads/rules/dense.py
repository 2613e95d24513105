"""Rules of dense layers: y = x Wᵀ + b and its noisy kin, for inputs [B, in] and [B, ..., in]."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from dpvd.grads.rules.common import Rule, Terms, rows, sum_to_last, variance_gradient
from dpvd.grads.terms import Direct, Outer, Term
from dpvd.nn import AdditiveLinear, BinaryDropoutLinear, GaussianDropoutLinear, MultiplicativeLinear

if TYPE_CHECKING:
    from dpvd.grads.units import Call

__all__ = ["RULES"]


def linear(layer: nn.Linear, call: "Call", grad: Tensor) -> Terms:
    """y = x Wᵀ + b."""
    return _linear_terms(call.input(), grad)


def input_dropout(
    layer: BinaryDropoutLinear | GaussianDropoutLinear, call: "Call", grad: Tensor
) -> Terms:
    """y = (x ∘ s) Wᵀ + b with a fixed distribution of s."""
    return _linear_terms(_noisy_input(layer, call), grad)


def additive(layer: AdditiveLinear, call: "Call", grad: Tensor) -> Terms:
    """y = x Wᵀ + b + √v ε, v = x² (σ²)ᵀ: the weight enters the mean only, log σ² the variance
    only.
    """
    x = call.input()
    terms = _linear_terms(x, grad, layer.kept)
    if call.draws and layer.learned:
        u = variance_gradient(call, grad)
        shared = (
            layer.kept is None and layer.log_sigma2.dim() < 2
        )  # then v is the same for all outputs
        if shared:
            per_input = sum_to_last(u.sum(-1, keepdim=True) * x.square() * layer.log_sigma2.exp())
            terms["log_sigma2"] = [_reduced(per_input, layer.log_sigma2)]
        else:
            terms["log_sigma2"] = _variance_terms(layer.weight_variance(), x, u, layer.log_sigma2)
    return terms


def multiplicative(layer: MultiplicativeLinear, call: "Call", grad: Tensor) -> Terms:
    """Noise that multiplies the inputs (type A) or the weights (type B)."""
    if not call.draws:
        return _linear_terms(call.input(), grad, layer.kept)
    return (_type_a if layer.kind == "A" else _type_b)(layer, call, grad)


def _type_a(layer: MultiplicativeLinear, call: "Call", grad: Tensor) -> Terms:
    """s_i = 1 + √α_i ε_i, so that ds_i/d log α_i = (s_i - 1)/2."""
    x, noisy = call.input(), _noisy_input(layer, call)
    terms = _linear_terms(noisy, grad, layer.kept)
    if layer.learned:
        per_input = sum_to_last((grad @ layer.mean_weight()) * (noisy - x) / 2)
        terms["log_rate"] = [_reduced(per_input, layer.log_rate)]
    return terms


def _type_b(layer: MultiplicativeLinear, call: "Call", grad: Tensor) -> Terms:
    """y = x Wᵀ + b + √v ε, v = x² (αW²)ᵀ: dW = g ⊗ x + 2αW ∘ (u ⊗ x²), d log α = αW² ∘ (u ⊗ x²)."""
    x, u = call.input(), variance_gradient(call, grad)
    terms = _linear_terms(x, grad, layer.kept)
    terms["weight"].append(
        Outer(rows(u), rows(x.square()), 2 * layer.log_rate.exp() * layer.mean_weight())
    )
    if layer.learned:
        terms["log_rate"] = _variance_terms(layer.weight_variance(), x, u, layer.log_rate)
    return terms


def _linear_terms(x: Tensor, grad: Tensor, kept: Tensor | None = None) -> Terms:
    scale = None if kept is None else kept.to(grad.dtype)  # a pruned weight gets no gradient
    return {"weight": [Outer(rows(grad), rows(x), scale)], "bias": [Direct(sum_to_last(grad))]}


def _variance_terms(variance: Tensor, x: Tensor, u: Tensor, parameter: Tensor) -> list[Term]:
    """Gradient of a log-variance through v = x² Vᵀ, V [out, in], where the parameter scales V."""
    if parameter.dim() == 2:
        return [Outer(rows(u), rows(x.square()), variance)]
    return [_reduced(sum_to_last((u @ variance) * x.square()), parameter)]


def _reduced(per_input: Tensor, parameter: Tensor) -> Direct:
    """[B, in] for a parameter per input unit, its sum for one parameter in all."""
    return Direct(per_input if parameter.dim() else per_input.sum(1))


def _noisy_input(layer: Any, call: "Call") -> Tensor:
    """x ∘ s, from the recorded draw; x itself when the layer does not sample."""
    x = call.input()
    return x * layer.multiplier(call.draws[0]) if call.draws else x


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    BinaryDropoutLinear: input_dropout,
    GaussianDropoutLinear: input_dropout,
    AdditiveLinear: additive,
    MultiplicativeLinear: multiplicative,
}
