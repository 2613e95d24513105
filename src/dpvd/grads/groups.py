"""Which parameters are trained, and which of them are clipped together."""

from dataclasses import dataclass

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.grads.clipping import Clipping, ClippingMode
from dpvd.grads.units import find_units
from dpvd.nn import VariationalLayer
from dpvd.privacy import Relation

__all__ = ["Grouping", "sensitivity"]

# A scale parameter whose Jacobian is smaller than this is as good as switched off; dividing by it would overflow.
SMALLEST_JACOBIAN = 1e-8


@dataclass(frozen=True)
class Grouping:
    """The trainable parameters of a model, each assigned to one clipping group.

    Attributes:
        parameters: trainable parameters by their name in the model; a tied parameter appears once.
        group_of: the group of each name; one group in all, or one for each layer under per-layer clipping.
        count: how many groups there are.
        jacobian: what the gradients of scale parameters are divided by before they are clipped, by name.
    """

    parameters: dict[str, nn.Parameter]
    group_of: dict[str, int]
    count: int
    jacobian: dict[str, Tensor]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", {id(p): name for name, p in self.parameters.items()})

    def name_of(self, parameter: nn.Parameter) -> str:
        names: dict[int, str] = self._names  # type: ignore[attr-defined]
        return names[id(parameter)]

    @classmethod
    def of(cls, model: nn.Module, mode: ClippingMode) -> "Grouping":
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not parameters:
            raise DpvdError("the model has no trainable parameter: set requires_grad on those that should be trained")
        group_of = dict.fromkeys(parameters, 0)
        if mode is ClippingMode.PER_LAYER:
            names = {id(p): name for name, p in parameters.items()}
            assigned: set[str] = set()
            for group, unit in enumerate(find_units(model)):
                for parameter in unit.parameters().values():
                    name = names[id(parameter)]
                    if name not in assigned:
                        group_of[name] = group
                        assigned.add(name)
            used = sorted(set(group_of.values()))  # a layer whose parameters are all tied to earlier ones leaves a gap
            group_of = {name: used.index(group) for name, group in group_of.items()}
        return cls(parameters, group_of, 1 + max(group_of.values()), _jacobians(model, parameters))


def _jacobians(model: nn.Module, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """What turns a gradient in the units of the weights into one of log σ², for learned scales.

    The gradient of log σ² is about σ times shorter than that of the weight; under one clip and one noise level
    it would drown. Dividing by the Jacobian before the clip, and multiplying after the noise, is a change of
    coordinates that depends on the current parameters only, so it costs no privacy.
    """
    names = {id(p): name for name, p in parameters.items()}
    found: dict[str, Tensor] = {}
    for module in model.modules():
        if isinstance(module, VariationalLayer):
            for local, jacobian in module.scale_jacobian().items():
                name = names.get(id(getattr(module, local)))
                if name is not None:
                    found[name] = jacobian.detach().clamp_min(SMALLEST_JACOBIAN)
    return found


def sensitivity(model: nn.Module, clipping: Clipping, relation: Relation) -> float:
    """The sensitivity that ``clipped_grad`` has for this model: known before a batch is seen."""
    return clipping.sensitivity(relation, Grouping.of(model, clipping.mode).count)
