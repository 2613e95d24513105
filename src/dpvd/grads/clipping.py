"""How per-example gradients are bounded: the modes of clipping, and what is clipped together."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import Choice, DpvdError, positive
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
    NONE = "none"
    """No bound: ordinary training, without privacy."""


@dataclass(frozen=True)
class Clipping:
    """The bound on one example's share of the gradient sum.

    Guarantees:
        The scaled gradient of one example has norm at most ``clip_norm`` (in each layer, for
        ``PER_LAYER``), for every input, non-finite ones included: those are scaled to exactly zero.

    Args:
        mode: which norm is bounded, and how.
        clip_norm: C, the bound.
        stability: γ of automatic clipping; gradients much shorter than it are not blown up to the
            full norm.
    """

    mode: Choice[ClippingMode] = Choice(ClippingMode.FLAT, called="clipping mode")
    clip_norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        positive(clip_norm=self.clip_norm, stability=self.stability)

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
        factors = {
            Relation.ADD_OR_REMOVE: 1.0,
            Relation.REPLACE_ONE: 2.0,
        }
        return factors[relation] * reach

    def to_dict(self) -> dict[str, Any]:
        return {
            "mode": str(self.mode),
            "clip_norm": self.clip_norm,
            "stability": self.stability,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Clipping":
        try:
            return cls(**fields)
        except TypeError as error:
            raise DpvdError(f"not a description of clipping: {dict(fields)!r}") from error


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
        """The unit's trainable parameters by their name inside the unit, when first asked for."""
        return _trainable(self.module)


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
        units: the modules that are treated as a whole when gradients are formed.
        scales: the layers with learned noise scales, and the names in the model of those layers'
            parameters.
    """

    parameters: dict[str, nn.Parameter]
    group_of: dict[str, int]
    units: list[Unit]
    scales: tuple[tuple[VariationalLayer, dict[str, str]], ...]

    @classmethod
    def of(cls, model: nn.Module, mode: ClippingMode, units: list[Unit]) -> "Grouping":
        """The grouping of a model.

        Args:
            model: at least one parameter must be trainable.
            mode: of the clipping.
            units: as `dpvd.grads.factored.find_units` finds them.
        """
        parameters = _trainable(model)
        if not parameters:
            raise DpvdError(
                "the model has no trainable parameter: set requires_grad on those that should be"
                " trained"
            )
        names = {id(parameter): name for name, parameter in parameters.items()}
        if mode is ClippingMode.PER_LAYER:
            group_of = _group_by_unit(names, units)
        else:
            group_of = dict.fromkeys(parameters, 0)
        return cls(parameters, group_of, units, _scale_layers(model, names))

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


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    found = {}
    for name, parameter in module.named_parameters():
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
