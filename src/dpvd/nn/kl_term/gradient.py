"""The gradient of the KL term: of one posterior against each prior, and of a whole model.

This is the one place for it. Where a closed form exists it is added in place instead of being held;
everything else goes through autograd, whose derivative of the exact KL is a table
(``divergences``).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpvd.native import add_dawson
from dpvd.nn.kl_term.priors import ARD, SQUARE_OFFSET, Gaussian, LogUniform, Prior
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.noise_families import AdditiveNoise

__all__ = ["KLGradient", "add_mean_gradient", "exact_gradients", "kl_gradients"]

_EXACT_LOG_UNIFORM = LogUniform()
_LEAST_SIGMA = 1e-15
"""A smaller σ has the gradient of this one: the ratio of a weight to it is finite in float32. For
|mean| > 1e-12 that is 1/mean to rounding, as for every smaller σ."""

_AddGradient: TypeAlias = Callable[[Tensor, float], None]
"""``add(total, scale)``: add scale · ∂KL/∂parameter to ``total`` in place."""


# One posterior


@torch.no_grad()
def add_mean_gradient(
    prior: Prior,
    total: Tensor,
    mean: Tensor,
    sigma: float,
    scale: float,
) -> None:
    """Add scale · ∂KL(N(mean, σ²) ‖ prior)/∂mean to ``total`` in place, elementwise.

    One σ is that of all weights. ∂KL/∂mean is, by prior,

    - log-uniform, exact: (√2/σ) D(mean/(√2 σ)), D the Dawson function;
    - ARD: mean/(mean² + σ²);
    - Gaussian: mean/std²;
    - any other: by autograd.

    Guarantees: for the exact log-uniform prior a relative error of at most 2e-6 in float32, in one
    pass without temporaries where both tensors are contiguous and on the CPU; computed in float64
    elsewhere.

    Edge cases: ``total`` may be ``mean`` itself. The gradient is finite for every σ, 0 included,
    and 0 where the mean is 0. A subclass of one of these priors is differentiated by autograd.

    Args:
        prior: of the weights.
        total, mean: of one shape.
        sigma: at least 0.
        scale: factor.

    >>> weight = torch.tensor([2.0, -4.0])
    >>> add_mean_gradient(Gaussian(std=2.0), weight, weight, sigma=0.1, scale=-1.0)
    >>> weight
    tensor([ 1.5000, -3.0000])
    >>> total = torch.zeros(2, dtype=torch.float64)
    >>> mean = torch.tensor([0.0, 1.0], dtype=torch.float64)
    >>> add_mean_gradient(LogUniform(), total, mean, sigma=0.01, scale=2.0)
    >>> total.numpy().round(3).tolist()
    [0.0, 2.0]

    References: Hron, Matthews and Ghahramani (arXiv:1807.01969v1), for the log-uniform prior.
    """
    if prior == _EXACT_LOG_UNIFORM:
        sigma = max(sigma, _LEAST_SIGMA)
        inner = 1 / (math.sqrt(2) * sigma)
        outer = scale * math.sqrt(2) / sigma
        _add_dawson(total, mean, inner, outer)
    elif type(prior) is ARD:
        divisor = mean.square().add_(sigma**2 + SQUARE_OFFSET)
        total.addcdiv_(mean, divisor, value=scale)
    elif type(prior) is Gaussian:
        total.add_(mean, alpha=scale / prior.std**2)
    else:
        gradient = _mean_gradient_by_autograd(prior, mean, sigma)
        total.add_(gradient, alpha=scale)


@torch.no_grad()
def exact_gradients(mean: Tensor, log_sigma2: Tensor) -> tuple[Tensor, Tensor]:
    """∂KL/∂mean and ∂KL/∂log σ² of posteriors N(mean, σ²) against the exact log-uniform prior.

    With x = mean/(√2 σ) and D the Dawson function they are √2 D(x)/σ and -x D(x): one evaluation
    gives both, at a fraction of what value and backward pass cost.

    Guarantees: a relative error of at most 2e-6 in float32; D is SciPy's in float64. Both are
    finite for every finite mean and log σ².

    Args:
        mean, log_sigma2: of one shape, both float32 or both float64.

    >>> mean = torch.tensor([0.0, 3.0], dtype=torch.float64)
    >>> log_sigma2 = torch.tensor([0.0, -20.0], dtype=torch.float64)
    >>> [gradient.numpy().round(4).tolist() for gradient in exact_gradients(mean, log_sigma2)]
    [[0.0, 0.3333], [-0.0, -0.5]]

    References: Hron, Matthews and Ghahramani (arXiv:1807.01969v1).
    """
    root_2 = math.sqrt(2)
    sigma = (log_sigma2.detach() / 2).exp_()
    sigma = sigma.clamp_min_(_LEAST_SIGMA)
    ratio = mean.detach() / sigma  # √2 x
    ratio = ratio.contiguous()
    dawson = torch.zeros_like(ratio)
    _add_dawson(dawson, ratio, 1 / root_2, 1.0)
    of_log_sigma2 = ratio.mul_(dawson).mul_(-1 / root_2)
    of_mean = dawson.div_(sigma).mul_(root_2)
    return of_mean, of_log_sigma2


def _add_dawson(total: Tensor, x: Tensor, inner: float, outer: float) -> None:
    """Add outer · D(inner · x) to ``total`` in place."""
    threads = torch.get_num_threads()
    in_place = total.dtype == x.dtype and _is_plain(total) and _is_plain(x)
    target = total
    if not in_place:
        target = torch.zeros(x.shape, dtype=torch.float64)
        x = x.to(target).contiguous()
    out = _as_array(target)
    add_dawson(out, _as_array(x), inner, outer, threads=threads)
    if not in_place:
        total.add_(target.to(total))


def _is_plain(tensor: Tensor) -> bool:
    """Whether NumPy sees the memory of the tensor as one array that D can be added to."""
    return _is_supported(tensor) and tensor.is_contiguous()


def _is_supported(tensor: Tensor) -> bool:
    """Whether the Dawson function of :mod:`dpvd.native` takes such numbers."""
    on_cpu = tensor.device.type == "cpu"
    is_float = tensor.dtype in (torch.float32, torch.float64)
    return on_cpu and is_float


def _as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """The memory of a plain tensor, one-dimensional, shared."""
    flat = tensor.detach().view(-1)
    return flat.numpy()


def _mean_gradient_by_autograd(prior: Prior, mean: Tensor, sigma: float) -> Tensor:
    log_sigma2 = -math.inf
    if sigma > 0:
        log_sigma2 = 2 * math.log(sigma)
    with torch.enable_grad():
        leaf = mean.detach().requires_grad_()
        divergence = prior.kl(leaf, mean.new_tensor(log_sigma2))
        (gradient,) = torch.autograd.grad(divergence.sum(), leaf)
    return gradient


# A whole model


@dataclass(frozen=True)
class KLGradient:
    """w ∂KL/∂parameter of one parameter.

    Attributes:
        weight: w.
        add_closed_form: adds a multiple of the part that has a closed form, read off the parameter
            when it is called; or None.
        gradient: the part that was computed before, of the parameter's shape, or None.
    """

    weight: float
    add_closed_form: _AddGradient | None
    gradient: Tensor | None

    @torch.no_grad()
    def add_to(self, total: Tensor, scale: float) -> None:
        """Add scale · w ∂KL/∂parameter to ``total``.

        Edge cases: ``total`` may be the parameter itself if it has not changed since.
        """
        factor = scale * self.weight
        if self.add_closed_form is not None:
            self.add_closed_form(total, factor)  # first: it reads the parameter
        if self.gradient is not None:
            total.add_(self.gradient, alpha=factor)


def kl_gradients(model: nn.Module, weight: float = 1.0) -> dict[str, KLGradient]:
    """By name, the gradient of ``weight * kl(model)`` for the trainable parameters in it.

    Means of tied layers (additive, one fixed σ) have a closed form: nothing of the model's size is
    computed until it is added, and then in one pass. So have means and learned scales of a σ for
    each weight, computed now. Everything else is differentiated by autograd, now.

    Edge cases: {} for a model without variational layers. A parameter that several layers share has
    the sum over all.

    >>> from dpvd.nn.linear import AdditiveLinear
    >>> layer = AdditiveLinear(3, 2, rates="layer", learned=False, prior="gaussian")
    >>> total = torch.zeros(2, 3)
    >>> kl_gradients(layer, weight=5.0)["weight"].add_to(total, 2.0)
    >>> torch.allclose(total, 10 * layer.weight)
    True
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names = {id(parameter): name for name, parameter in parameters.items()}
    in_place: dict[str, _AddGradient] = {}
    exact: list[AdditiveNoise] = []
    others: list[VariationalLayer] = []
    layers = (module for module in model.modules() if isinstance(module, VariationalLayer))
    for layer in layers:
        tied = _tied_gradients(layer, names)
        # Two gradients that are added in place to one parameter would see each other.
        if tied is not None and not tied.keys() & in_place.keys():
            in_place |= tied
        elif _has_exact_gradients(layer):
            exact.append(layer)
        else:
            others.append(layer)
    gradients = _by_autograd(others, parameters)
    for layer in exact:
        for name, gradient in _exact_gradients_of(layer, names).items():
            if name in gradients:
                gradient = gradients[name] + gradient
            gradients[name] = gradient
    found = {}
    for name in in_place | gradients:
        closed_form = in_place.get(name)
        found[name] = KLGradient(weight, closed_form, gradients.get(name))
    return found


def _tied_gradients(
    layer: VariationalLayer,
    names: Mapping[int, str],
) -> dict[str, _AddGradient] | None:
    """Of a tied layer's means, by their names in the model; None for any other layer.

    Args:
        layer: of the model.
        names: by the parameters' identities, what the trainable ones are called in the model.
    """
    if not (isinstance(layer, AdditiveNoise) and layer.tied):
        return None
    own = dict(layer.named_parameters(remove_duplicate=False))
    gradients: dict[str, _AddGradient] = {}
    for name in layer.mean_masks():
        if name not in own:  # parametrised: the means are functions of what is trained
            return None
        in_model = names.get(id(own[name]))
        if in_model is not None:
            gradients[in_model] = partial(_add_tied_gradient, layer, name)
    return gradients


def _add_tied_gradient(layer: AdditiveNoise, name: str, total: Tensor, scale: float) -> None:
    """Add scale · ∂kl()/∂(parameter ``name``) of a tied layer; pruned weights have none."""
    mean = layer.get_parameter(name)
    seen = layer.mean_masks()[name]
    sigma = math.exp(layer.log_sigma2.item() / 2)
    if seen is None:
        add_mean_gradient(layer.prior, total, mean, sigma, scale)
        return
    gradient = torch.zeros_like(mean)
    add_mean_gradient(layer.prior, gradient, mean, sigma, scale)
    gradient.masked_fill_(~seen, 0.0)
    total.add_(gradient)


def _has_exact_gradients(layer: VariationalLayer) -> TypeGuard[AdditiveNoise]:
    """Whether :func:`exact_gradients` has the gradient of a layer, and is the faster way to it."""
    if not isinstance(layer, AdditiveNoise) or layer.prior != _EXACT_LOG_UNIFORM:
        return False
    # Neither made up of several matrices nor parametrised: otherwise something else is trained.
    own = {**layer._parameters, **layer._buffers}
    if not {"weight", "log_sigma2"} <= own.keys():
        return False
    weight = layer.weight
    log_sigma2 = layer.log_sigma2
    same_shape = log_sigma2.shape == weight.shape
    same_type = log_sigma2.dtype == weight.dtype
    return same_shape and same_type and _is_supported(weight)


def _exact_gradients_of(layer: AdditiveNoise, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Of the means and of log σ², by the names of those that are trained."""
    (seen,) = layer.mean_masks().values()
    parameters = (layer.weight, layer.log_sigma2)
    gradients: dict[str, Tensor] = {}
    for parameter, gradient in zip(parameters, exact_gradients(*parameters), strict=True):
        name = names.get(id(parameter))
        if name is None:
            continue
        if seen is not None:
            gradient.masked_fill_(~seen, 0.0)
        gradients[name] = gradient
    return gradients


def _by_autograd(
    layers: Iterable[VariationalLayer],
    parameters: Mapping[str, nn.Parameter],
) -> dict[str, Tensor]:
    """The gradient of these layers' KL terms, for the parameters that they depend on."""
    terms = [layer.kl() for layer in layers]
    trained = [term for term in terms if term.requires_grad]
    if not trained:
        return {}
    inputs = list(parameters.values())
    found = torch.autograd.grad(trained, inputs, allow_unused=True)
    by_name = zip(parameters, found, strict=True)
    return {name: gradient for name, gradient in by_name if gradient is not None}
