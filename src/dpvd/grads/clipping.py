"""How per-example gradients are bounded: the modes of clipping, and what is clipped together."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import Choice, DpvdError, in_unit_interval, positive
from dpvd.nn import VariationalLayer
from dpvd.privacy import Relation

__all__ = ["ROUNDING_UNITS", "Clipping", "ClippingMode", "Grouping", "Jacobian", "Unit"]

# Norms and factors are computed in floating point. Aiming this many units of rounding below the
# clip norm keeps the bound true in spite of it (2e-6 of the norm in float32, 4e-15 in float64).
ROUNDING_UNITS = 16

# A scale parameter whose Jacobian is smaller than this is as good as switched off; dividing by it
# would overflow.
SMALLEST_JACOBIAN = 1e-8


class ClippingMode(StrEnum):
    """Which norm is bounded, and how."""

    FLAT = "flat"
    """The gradient over all parameters is scaled down to the clip norm where it is longer."""
    PER_LAYER = "per-layer"
    """Each layer's gradient is clipped by itself (the paper): sensitivity √L · C."""
    AUTOMATIC = "automatic"
    """Each gradient is normalised, C·g/(‖g‖ + γ): no threshold to tune (arXiv 2206.07136)."""
    ADAPTIVE = "adaptive"
    """As flat, with a norm that follows a quantile of the gradients' norms (arXiv 1905.03871)."""
    NONE = "none"
    """No bound: ordinary training, without privacy."""


_OF_ADAPTIVE = ("quantile", "rate", "count_share")

# How many times its reach one example can move a sum.
_TIMES = {Relation.ADD_OR_REMOVE: 1.0, Relation.REPLACE_ONE: 2.0}

# Between these a norm may wander: gradients and noise stay within float32.
_LEAST_NORM = 1e-12
_LARGEST_NORM = 1e12


@dataclass(frozen=True)
class Clipping:
    """The bound on one example's share of the gradient sum.

    Guarantees:
        The scaled gradient of one example has norm at most ``clip_norm`` (in each layer, for
        ``PER_LAYER``), for every input, non-finite ones included: those are scaled to exactly zero.

    Args:
        mode: which norm is bounded, and how.
        clip_norm: C, the bound; of adaptive clipping, the bound in the first step.
        stability: γ of automatic clipping; gradients much shorter than it are not blown up to the
            full norm.
        quantile: of adaptive clipping: the share of the gradients that C should leave unclipped.
        rate: of adaptive clipping: C is multiplied by exp(rate · (quantile - share found)).
        count_share: of adaptive clipping: the part of each step's budget that the count of
            unclipped gradients takes; see `split_noise`.
    """

    mode: Choice[ClippingMode] = Choice(ClippingMode.FLAT, called="clipping mode")
    clip_norm: float = 1.0
    stability: float = 0.01
    quantile: float = 0.5
    rate: float = 0.2
    count_share: float = 0.01

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm, stability=self.stability, rate=self.rate)
        in_unit_interval(quantile=self.quantile, count_share=self.count_share)
        if self.mode is not ClippingMode.ADAPTIVE:
            for name in _OF_ADAPTIVE:
                if getattr(self, name) != _defaults(name):
                    raise DpvdError(f"{name} is of adaptive clipping, not of {self.mode} clipping")

    @property
    def is_adaptive(self) -> bool:
        """Whether the clip norm changes from step to step."""
        return self.mode is ClippingMode.ADAPTIVE

    def factors(self, norms: Tensor) -> Tensor:
        """What each example's gradient is multiplied by.

        Args:
            norms: [B, G], one column for each group of parameters that is clipped together;
                infinite for an excluded example.

        Returns:
            [B, G]; 0 where the norm is infinite.
        """
        margin = ROUNDING_UNITS * torch.finfo(norms.dtype).eps
        bound = self.clip_norm * (1 - margin)
        if self.mode is ClippingMode.NONE:
            return (norms < math.inf).to(norms.dtype)
        if self.mode is ClippingMode.AUTOMATIC:
            return bound / (norms + self.stability)
        return (bound / norms).clamp_max_(1.0)

    def sensitivity(self, relation: Relation, groups: int) -> float:
        """L2 sensitivity of the sum: how far one example can move it.

        Adding or removing an example moves the sum by at most its clipped gradient, C·√G for G
        groups that are clipped separately; replacing one example by another by at most twice that.
        """
        if self.mode is ClippingMode.NONE:
            return math.inf
        reach = self.clip_norm
        if self.mode is ClippingMode.PER_LAYER:
            reach *= math.sqrt(groups)
        return _TIMES[relation] * reach

    # Adaptive clipping: each step also releases how many gradients were within the clip norm.

    def split_noise(self, noise_multiplier: float) -> tuple[float, float]:
        """Noise multipliers of a step's gradient and of its count, which together cost as z does.

        Under adaptive clipping a step releases two sums over the same examples: of the clipped
        gradients, with sensitivity Δ, and of the centred bits, 1/2 for a gradient within the clip
        norm and -1/2 for a longer one, with sensitivity Δ' (see `count_sensitivity`). With noise of
        standard deviations z₁Δ and z₂Δ',

            1/z₁² + 1/z₂² = 1/z²,   z₁ = z / √(1 - s),   z₂ = z / √s,   s = ``count_share``.

        Why this costs what one Gaussian release with multiplier z does: divide the first sum by
        z₁Δ and the second by z₂Δ', and write them as one vector. Its noise is N(0, I), and one
        example moves it by at most √(1/z₁² + 1/z₂²) = 1/z in L2 norm, whatever its gradient and
        whatever its bit: it is a Gaussian mechanism with multiplier z on the same sample. The clip
        norm in force, and with it Δ, is a function of earlier releases, and for each value of it
        the step has multiplier z: adaptive composition, which all accountants here cover, asks no
        more.

        Other modes release no count: (z, ∞).

        References: Andrew, Thakkar, McMahan and Ramaswamy (arXiv:1905.03871v5), "Differentially
        private learning with adaptive clipping", Theorem 1.

        >>> first, second = Clipping("adaptive", count_share=0.36).split_noise(2.4)
        >>> round(first, 12), round(second, 12), round((first**-2 + second**-2) ** -0.5, 12)
        (3.0, 4.0, 2.4)
        """
        if not self.is_adaptive:
            return noise_multiplier, math.inf
        return (
            noise_multiplier / math.sqrt(1 - self.count_share),
            noise_multiplier / math.sqrt(self.count_share),
        )

    def count_sensitivity(self, relation: Relation) -> float:
        """How far one example can move the sum of centred bits, ±1/2 each."""
        return _TIMES[relation] / 2

    def centred_count(self, norms: Tensor) -> Tensor:
        """The sum of the centred bits of a batch, a scalar in double precision.

        Args:
            norms: [B, 1]; infinite for an excluded example, which counts as clipped.
        """
        within = norms[:, 0] <= self.clip_norm
        return within.double().sub_(0.5).sum()

    def after(self, share_within: float) -> "Clipping":
        """The clipping of the next step, given the (noisy) share of gradients within the norm.

        C ← C exp(-rate · (share - quantile)), the share taken for 0 below 0 and for 1 above 1.
        """
        share = min(1.0, max(0.0, share_within))
        norm = self.clip_norm * math.exp(-self.rate * (share - self.quantile))
        return replace(self, clip_norm=min(max(norm, _LEAST_NORM), _LARGEST_NORM))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what belongs to adaptive clipping stands there for adaptive clipping only."""
        plain = asdict(self) | {"mode": str(self.mode)}
        if not self.is_adaptive:
            for name in _OF_ADAPTIVE:
                del plain[name]
        return plain

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Clipping":
        try:
            return cls(**fields)
        except TypeError as error:
            raise DpvdError(f"not a description of clipping: {fields!r}") from error


def _defaults(name: str) -> Any:
    return Clipping.__dataclass_fields__[name].default


@dataclass(frozen=True)
class Unit:
    """A module whose parameters get their gradients from its inputs and output gradients.

    Under per-layer clipping it is the layer.

    Attributes:
        name: of the module in the model.
        module: the module.
        rule: the gradient rule of the module's type, if there is one.
    """

    name: str
    module: nn.Module
    rule: Any = None

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The unit's trainable parameters by their name inside the unit, when first asked for.

        Of a module without a rule its own: those of its children belong to other units.
        """
        return _trainable(self.module, recurse=self.rule is not None)


class Jacobian(dict[str, Tensor]):
    """By parameter name, dσ/dρ for the scale parameters ρ = log σ²: the unit they are clipped in.

    The gradient of log σ² is about σ times shorter than that of the weight; under one clip and one
    noise level it would drown. So it is divided by the Jacobian before the clip and multiplied by
    it after the noise. That is a change of coordinates that depends on the current parameters only,
    so it costs no privacy. The two halves are the two methods here, and nothing else does either
    (the factored engine divides its terms by ``jacobian.get(name)``, in `represent`).
    """

    def divide(self, name: str, gradient: Tensor) -> Tensor:
        """Before the clip: the gradient in the unit of the weights."""
        if name in self:
            return gradient / self[name]
        return gradient

    def multiply_(self, name: str, noisy_sum: Tensor) -> Tensor:
        """After the noise, in place: the noisy sum as a gradient of the parameter again."""
        if name in self:
            return noisy_sum.mul_(self[name])
        return noisy_sum


@dataclass(frozen=True)
class Grouping:
    """The trainable parameters of a model, each assigned to one clipping group.

    Attributes:
        parameters: trainable parameters by their name in the model; a tied parameter appears once.
        group_of: the group of each name; one group in all, or one for each layer under per-layer
            clipping.
        scales: the layers with learned noise scales, and the names in the model of those layers'
            parameters.
        layout: what the factored engine has found out about the model.
    """

    parameters: dict[str, nn.Parameter]
    group_of: dict[str, int]
    scales: tuple[tuple[VariationalLayer, dict[str, str]], ...]
    layout: Any

    @classmethod
    def of(cls, model: nn.Module, mode: ClippingMode, layout: Any) -> "Grouping":
        """The grouping of a model.

        Args:
            model: at least one parameter must be trainable.
            mode: of the clipping.
            layout: a `dpvd.grads.factored.ModelLayout` of the model, whose units are the layers.
        """
        parameters = _trainable(model)
        if not parameters:
            raise DpvdError(
                "the model has no trainable parameter: set requires_grad on those that should be"
                " trained"
            )
        names = {id(parameter): name for name, parameter in parameters.items()}
        if mode is ClippingMode.PER_LAYER:
            group_of = _group_by_unit(names, layout.units)
        else:
            group_of = dict.fromkeys(parameters, 0)
        return cls(parameters, group_of, _scale_layers(model, names), layout)

    @cached_property
    def count(self) -> int:
        """How many groups there are."""
        last = max(self.group_of.values())
        return last + 1

    @cached_property
    def names(self) -> dict[int, str]:
        """The name of each parameter in the model, by the parameter's identity."""
        found = {}
        for name, parameter in self.parameters.items():
            found[id(parameter)] = name
        return found

    def jacobian(self) -> Jacobian:
        """The Jacobian of the scale parameters, at their present values; new tensors."""
        found = Jacobian()
        for layer, names in self.scales:
            for local, values in layer.scale_jacobian().items():
                if local in names:
                    found[names[local]] = values.detach().clamp_min_(SMALLEST_JACOBIAN)
        return found


def _trainable(module: nn.Module, recurse: bool = True) -> dict[str, nn.Parameter]:
    found = {}
    for name, parameter in module.named_parameters(recurse=recurse):
        if parameter.requires_grad:
            found[name] = parameter
    return found


def _group_by_unit(names: Mapping[int, str], units: Iterable[Unit]) -> dict[str, int]:
    """One group for each unit; a tied parameter belongs to the first unit that has it."""
    unit_of: dict[str, int] = dict.fromkeys(names.values(), 0)
    assigned: set[str] = set()
    for position, unit in enumerate(units):
        for parameter in unit.parameters.values():
            name = names[id(parameter)]
            if name not in assigned:
                unit_of[name] = position
                assigned.add(name)
    # A unit whose parameters are all tied to earlier ones has no group: count without it.
    used = sorted(set(unit_of.values()))
    return {name: used.index(position) for name, position in unit_of.items()}


def _scale_layers(
    model: nn.Module, names: Mapping[int, str]
) -> tuple[tuple[VariationalLayer, dict[str, str]], ...]:
    found = []
    for layer in model.modules():
        if isinstance(layer, VariationalLayer) and layer.scale_jacobian():
            trained = {}
            for local, parameter in layer.named_parameters(recurse=False):
                if id(parameter) in names:
                    trained[local] = names[id(parameter)]
            found.append((layer, trained))
    return tuple(found)
