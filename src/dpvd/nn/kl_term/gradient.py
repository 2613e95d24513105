"""The gradient of the KL term of a whole model, in a form that is added in place instead of being held."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dpvd.nn.kl_term.priors import LogUniform
from dpvd.nn.kl_term.slopes import exact_slopes
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.model import variational_layers
from dpvd.nn.noise_families import AdditiveNoise

__all__ = ["KLGradient", "kl_gradients"]

_Slope: TypeAlias = Callable[[Tensor, float], None]


@dataclass(frozen=True)
class KLGradient:
    """w ∂KL/∂parameter of one parameter.

    Attributes:
        weight: w.
        slope: adds a multiple of the part that has a closed form, read off the parameter when it is called; or None.
        gradient: the part that was computed before, or None.
    """

    weight: float
    slope: _Slope | None
    gradient: Tensor | None

    @torch.no_grad()
    def add_to(self, total: Tensor, scale: float) -> None:
        """Add scale · w ∂KL/∂parameter to ``total``, which may be the parameter itself if it has not changed since."""
        if self.slope is not None:
            self.slope(total, scale * self.weight)  # first: it reads the parameter
        if self.gradient is not None:
            total.add_(self.gradient, alpha=scale * self.weight)


def kl_gradients(model: nn.Module, weight: float = 1.0) -> dict[str, KLGradient]:
    """By name, the gradient of ``weight * kl(model)`` for every trainable parameter that it depends on.

    Means of tied layers (additive, one fixed σ) have a closed form: nothing of the model's size is computed until it
    is added, and then in one pass. So have means and learned scales of a σ for each weight, computed now. Everything
    else is differentiated by autograd, now.

    Edge cases: {} for a model without variational layers. A parameter that several layers share has the sum over
    all.

    >>> from dpvd.nn.linear import AdditiveLinear
    >>> layer = AdditiveLinear(3, 2, rates="layer", learned=False, prior="gaussian")
    >>> slope = torch.zeros(2, 3)
    >>> kl_gradients(layer, weight=5.0)["weight"].add_to(slope, 2.0)
    >>> torch.allclose(slope, 10 * layer.weight)
    True
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names = {id(p): name for name, p in parameters.items()}
    slopes: dict[str, _Slope] = {}
    others: list[VariationalLayer] = []
    for _, layer in variational_layers(model):
        own = _closed_form(layer, names)
        if own is None or own.keys() & slopes.keys():  # two in-place slopes on one parameter would see each other
            others.append(layer)
        else:
            slopes |= own
    gradients = _by_autograd([layer for layer in others if not _has_slopes(layer)], parameters)
    for layer in filter(_has_slopes, others):
        for name, slope in _slopes(layer, names).items():
            gradients[name] = gradients[name] + slope if name in gradients else slope
    return {name: KLGradient(weight, slopes.get(name), gradients.get(name)) for name in slopes | gradients}


def _closed_form(layer: VariationalLayer, names: Mapping[int, str]) -> dict[str, _Slope] | None:
    """The slopes of a layer by the parameters' names in the model; None if it has to be differentiated."""
    if not (isinstance(layer, AdditiveNoise) and layer.tied):
        return None
    own, slopes = dict(layer.named_parameters(remove_duplicate=False)), dict[str, _Slope]()
    for name in layer.mean_masks():
        if name not in own:  # parametrised: the means are functions of what is trained
            return None
        if id(own[name]) in names:
            slopes[names[id(own[name])]] = partial(layer.add_kl_slope, name)
    return slopes


def _has_slopes(layer: VariationalLayer) -> bool:
    """Whether a layer is one for which :func:`exact_slopes` has the gradient."""
    return (
        isinstance(layer, AdditiveNoise)
        and isinstance(layer.weight, nn.Parameter)  # neither made up of several nor parametrised
        and layer.log_sigma2.shape == layer.weight.shape
        and layer.prior == LogUniform()
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype in (torch.float32, torch.float64)
        and layer.log_sigma2.dtype == layer.weight.dtype
    )


def _slopes(layer: VariationalLayer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """By the trainable parameters' names in the model."""
    assert isinstance(layer, AdditiveNoise)
    (seen,) = layer.mean_masks().values()
    found = exact_slopes(layer.weight, layer.log_sigma2)
    if seen is not None:
        found = found[0].masked_fill_(~seen, 0.0), found[1].masked_fill_(~seen, 0.0)
    pairs = zip((layer.weight, layer.log_sigma2), found, strict=True)
    return {names[id(parameter)]: slope for parameter, slope in pairs if id(parameter) in names}


def _by_autograd(layers: Iterable[VariationalLayer], parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    terms = [term for term in (layer.kl() for layer in layers) if term.requires_grad]
    if not terms:
        return {}
    found = torch.autograd.grad(terms, list(parameters.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
