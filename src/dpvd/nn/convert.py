"""Turn the dense layers of an ordinary model into variational ones."""

import copy
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

from torch import Tensor, nn

from dpvd.errors import DpvdError, choice
from dpvd.nn.dropout import BinaryDropoutLinear, GaussianDropoutLinear
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.linear import AdditiveLinear, DenseMap, MultiplicativeLinear

__all__ = ["Conversion", "LayerName", "variational"]

_logger = logging.getLogger("dpvd")


class LayerName(StrEnum):
    """The layers that a dense layer can become."""

    ADDITIVE = "additive"
    """``AdditiveLinear``: additive noise, sparse variational dropout, Algorithm 1."""
    MULTIPLICATIVE = "multiplicative"
    """``MultiplicativeLinear``: variational dropout, types A and B."""
    GAUSSIAN = "gaussian"
    """``GaussianDropoutLinear``: a fixed rate."""
    BINARY = "binary"
    """``BinaryDropoutLinear``: a fixed rate."""


_CLASSES: dict[LayerName, type[DenseMap]] = {
    LayerName.ADDITIVE: AdditiveLinear,
    LayerName.MULTIPLICATIVE: MultiplicativeLinear,
    LayerName.GAUSSIAN: GaussianDropoutLinear,
    LayerName.BINARY: BinaryDropoutLinear,
}


@dataclass(frozen=True)
class Conversion:
    """What :func:`variational` did to a model.

    Attributes:
        layer: the class that replaced ``nn.Linear``.
        converted: names of the layers replaced.
        left: name and class of the other modules that hold parameters of their own.
    """

    layer: str
    converted: tuple[str, ...]
    left: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        left = ", ".join(f"{name} ({kind})" for name, kind in self.left)
        return f"converted to {self.layer}: {', '.join(self.converted)}; left as they are: {left or 'none'}"


def variational(model: nn.Module, layer: LayerName | str = LayerName.ADDITIVE, **options: Any) -> nn.Module:
    """Return a copy of the model whose ``nn.Linear`` layers are variational; the model itself is untouched.

    Guarantees: weights, biases, ``requires_grad``, device, dtype, mode and hooks are kept, so in eval mode
    the copy computes what the model does; the noise parameters of a frozen layer are frozen too. A layer
    used in several places stays one layer, and a weight tied to another kind of module (an embedding) stays
    tied. No random numbers are used up. The copy carries the account of what was done as ``conversion``,
    which is also logged at level INFO.

    Edge cases: only the exact class ``nn.Linear`` is converted; subclasses and reparametrised layers, whose
    weight is not a plain parameter, are left.

    Args:
        model: any module, also a single ``nn.Linear``.
        layer: "additive", "multiplicative", "gaussian" or "binary".
        options: passed to the constructor of that layer (``rates``, ``learned``, ``prior``, ``rate``, ...).

    Raises:
        DpvdError: nothing to convert; two layers that share one weight; an unknown layer or option.

    >>> from torch import nn
    >>> print(variational(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), rates="layer").conversion)
    converted to AdditiveLinear: 0; left as they are: 1 (LayerNorm)
    """
    cls = _CLASSES[choice(layer, LayerName, "layer")]
    copied = copy.deepcopy(model)
    plain = {name: linear for name, linear in copied.named_modules() if _is_plain(linear)}
    _refuse(model, plain)
    replacements: dict[nn.Module, DenseMap] = {module: _converted(cls, module, options) for module in plain.values()}
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():  # named_children() would skip the repeats of a child
            if child in replacements:
                parent._modules[name] = replacements[child]
    result: nn.Module = replacements.get(copied, copied)
    conversion = Conversion(cls.__name__, tuple(name or "model" for name in plain), _left(result))
    result.conversion = conversion  # type: ignore[assignment]
    _logger.info("%s", conversion)
    return result


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    return type(module) is nn.Linear and set(module._parameters) == {"weight", "bias"}


def _refuse(model: nn.Module, plain: dict[str, nn.Linear]) -> None:
    if not plain:
        raise DpvdError(
            f"{type(model).__name__} has no nn.Linear to convert; its subclasses and layers that are "
            "variational already do not count"
        )
    by_weight: dict[Tensor, str] = {}
    for name, linear in plain.items():
        other = by_weight.setdefault(linear.weight, name)
        if other != name:
            raise DpvdError(
                f"layers {other} and {name} share one weight: its noise and its KL term would count twice; "
                "use one nn.Linear in both places, or untie the weights"
            )


def _converted(cls: type[DenseMap], linear: nn.Linear, options: dict[str, Any]) -> DenseMap:
    """A layer of the class around the very parameters and hooks of the linear layer."""
    weight, bias = linear.weight, linear.bias
    sizes = (linear.in_features, linear.out_features, bias is not None)
    try:
        layer = cls(*sizes, device="meta", dtype=weight.dtype, **options)
    except TypeError as error:
        raise DpvdError(f"{cls.__name__}: {error}; see its arguments for the options allowed") from None
    layer.to_empty(device=weight.device)
    layer.reset_noise()
    layer.requires_grad_(weight.requires_grad)
    layer.weight, layer.bias = weight, bias
    layer.train(linear.training)
    vars(layer).update({name: value for name, value in vars(linear).items() if "_hooks" in name})
    return layer


def _left(model: nn.Module) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name or "model", type(module).__name__)
        for name, module in model.named_modules()
        if module._parameters and not isinstance(module, VariationalLayer)
    )
