"""Which parameters are trained, and which of them are clipped together."""

from dataclasses import dataclass

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.grads.clipping import ClippingMode
from dpvd.grads.units import Unit, find_units
from dpvd.nn import VariationalLayer

__all__ = ["Grouping"]

# A scale parameter whose Jacobian is smaller than this is as good as switched off; dividing by it
# would overflow.
SMALLEST_JACOBIAN = 1e-8


@dataclass(frozen=True)
class Grouping:
    """The trainable parameters of a model, each assigned to one clipping group.

    Attributes:
        parameters: trainable parameters by their name in the model; a tied parameter appears once.
        group_of: the group of each name; one group in all, or one for each layer under per-layer
            clipping.
        count: how many groups there are.
        units: the modules that are taken as a whole when gradients are formed.
        scales: the layers with learned noise scales, and the names in the model of those layers'
            parameters.
    """

    parameters: dict[str, nn.Parameter]
    group_of: dict[str, int]
    count: int
    units: list[Unit]
    scales: tuple[tuple[VariationalLayer, dict[str, str]], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", {id(p): name for name, p in self.parameters.items()})

    def name_of(self, parameter: nn.Parameter) -> str:
        names: dict[int, str] = self._names  # type: ignore[attr-defined]
        return names[id(parameter)]

    def jacobians(self) -> dict[str, Tensor]:
        """By name, what the gradients of scale parameters are divided by before they are clipped.

        The gradient of log σ² is about σ times shorter than that of the weight; under one clip and
        one noise level it would drown. Dividing by the Jacobian before the clip, and multiplying
        after the noise, is a change of coordinates that depends on the current parameters only, so
        it costs no privacy.
        """
        return {
            names[local]: jacobian.detach().clamp_min_(SMALLEST_JACOBIAN)
            for layer, names in self.scales
            for local, jacobian in layer.scale_jacobian().items()
            if local in names
        }

    @classmethod
    def of(cls, model: nn.Module, mode: ClippingMode) -> "Grouping":
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise DpvdError(
                "the model has no trainable parameter: set requires_grad on those that should be"
                " trained"
            )
        group_of, units = dict.fromkeys(parameters, 0), find_units(model)
        if mode is ClippingMode.PER_LAYER:
            names = {id(p): name for name, p in parameters.items()}
            assigned: set[str] = set()
            for group, unit in enumerate(units):
                for parameter in unit.parameters.values():
                    name = names[id(parameter)]
                    if name not in assigned:
                        group_of[name] = group
                        assigned.add(name)
            used = sorted(
                set(group_of.values())
            )  # a layer whose parameters are all tied to earlier ones leaves a gap
            group_of = {name: used.index(group) for name, group in group_of.items()}
        return cls(
            parameters,
            group_of,
            1 + max(group_of.values()),
            units,
            _scale_layers(model, parameters),
        )


def _scale_layers(
    model: nn.Module, parameters: dict[str, nn.Parameter]
) -> tuple[tuple[VariationalLayer, dict[str, str]], ...]:
    names = {id(p): name for name, p in parameters.items()}
    layers = (module for module in model.modules() if isinstance(module, VariationalLayer))
    return tuple(
        (
            layer,
            {
                local: names[id(p)]
                for local, p in layer.named_parameters(recurse=False)
                if id(p) in names
            },
        )
        for layer in layers
        if layer.scale_jacobian()
    )
