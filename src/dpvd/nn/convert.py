"""Turn the layers of an ordinary model into variational ones."""

import copy
import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor, nn

from dpvd.errors import DpvdError, choice
from dpvd.nn.conv import (
    AdditiveConv1d,
    AdditiveConv2d,
    AdditiveConv3d,
    AdditiveConvTranspose2d,
    MultiplicativeConv1d,
    MultiplicativeConv2d,
    MultiplicativeConv3d,
)
from dpvd.nn.dropout import BinaryDropoutLinear, GaussianDropoutLinear
from dpvd.nn.embedding import AdditiveEmbedding
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.linear import AdditiveLinear, MultiplicativeLinear

__all__ = ["Conversion", "LayerName", "variational"]

_logger = logging.getLogger("dpvd")


class LayerName(StrEnum):
    """The families that layers can be converted to."""

    ADDITIVE = "additive"
    """Additive noise, sparse variational dropout, Algorithm 1: dense layers, convolutions and embeddings."""
    MULTIPLICATIVE = "multiplicative"
    """Variational dropout: dense layers (types A and B) and convolutions (type B)."""
    GAUSSIAN = "gaussian"
    """``GaussianDropoutLinear``: a fixed rate."""
    BINARY = "binary"
    """``BinaryDropoutLinear``: a fixed rate."""


_CLASSES: dict[LayerName, dict[type[nn.Module], type[VariationalLayer]]] = {
    LayerName.ADDITIVE: {
        nn.Linear: AdditiveLinear,
        nn.Conv1d: AdditiveConv1d,
        nn.Conv2d: AdditiveConv2d,
        nn.Conv3d: AdditiveConv3d,
        nn.ConvTranspose2d: AdditiveConvTranspose2d,
        nn.Embedding: AdditiveEmbedding,
    },
    LayerName.MULTIPLICATIVE: {
        nn.Linear: MultiplicativeLinear,
        nn.Conv1d: MultiplicativeConv1d,
        nn.Conv2d: MultiplicativeConv2d,
        nn.Conv3d: MultiplicativeConv3d,
    },
    LayerName.GAUSSIAN: {nn.Linear: GaussianDropoutLinear},
    LayerName.BINARY: {nn.Linear: BinaryDropoutLinear},
}

_CHANNELS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
# The attributes of torch's layers that are arguments of their constructors and of the variational ones.
_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: (*_CHANNELS, "padding_mode"),
    nn.Conv2d: (*_CHANNELS, "padding_mode"),
    nn.Conv3d: (*_CHANNELS, "padding_mode"),
    nn.ConvTranspose2d: (*_CHANNELS, "output_padding"),
    nn.Embedding: ("num_embeddings", "embedding_dim", "padding_idx"),
}


@dataclass(frozen=True)
class Conversion:
    """What :func:`variational` did to a model.

    Attributes:
        classes: names of the layers replaced, by the class that replaced them.
        left: name and class of the other modules that hold parameters of their own.
    """

    classes: tuple[tuple[str, tuple[str, ...]], ...]
    left: tuple[tuple[str, str], ...]

    @property
    def converted(self) -> tuple[str, ...]:
        """Names of all layers replaced."""
        return tuple(name for _, names in self.classes for name in names)

    def __str__(self) -> str:
        done = "; ".join(f"converted to {kind}: {', '.join(names)}" for kind, names in self.classes)
        left = ", ".join(f"{name} ({kind})" for name, kind in self.left)
        return f"{done}; left as they are: {left or 'none'}"


def variational(
    model: nn.Module,
    layer: LayerName | str = LayerName.ADDITIVE,
    *,
    kinds: Collection[type[nn.Module]] | None = None,
    **options: Any,
) -> nn.Module:
    """Return a copy of the model whose layers are variational, where the family has them; the model is untouched.

    Guarantees: weights, biases, ``requires_grad``, device, dtype, mode and hooks are kept, so in eval mode
    the copy computes what the model does; the noise parameters of a frozen layer are frozen too. A layer
    used in several places stays one layer. No random numbers are used up. The copy carries the account of what
    was done as ``conversion``, which is also logged at level INFO.

    Edge cases: only the exact classes are converted; subclasses, reparametrised layers, whose weight is not a
    plain parameter, and embeddings that rescale (``max_norm``), count words over a batch or ask for sparse gradients
    are left. An embedding whose weight is tied to a layer that is converted is left, and stays tied.

    Args:
        model: any module, also a single layer.
        layer: "additive" (``nn.Linear``, ``nn.Conv1d/2d/3d``, ``nn.ConvTranspose2d``, ``nn.Embedding``),
            "multiplicative" (``nn.Linear``, ``nn.Conv1d/2d/3d``), "gaussian" or "binary" (``nn.Linear``).
        kinds: the torch classes to convert, of those that the family has; None for all of them.
        options: passed to the constructors of the layers (``rates``, ``learned``, ``prior``, ``rate``, ...).

    Raises:
        DpvdError: nothing to convert; two layers that share one weight; an unknown family, kind or option.

    >>> from torch import nn
    >>> print(variational(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), rates="layer").conversion)
    converted to AdditiveLinear: 0; left as they are: 1 (LayerNorm)
    """
    classes = _chosen(choice(layer, LayerName, "layer"), kinds)
    copied = copy.deepcopy(model)
    plain = _without_tied_embeddings({name: m for name, m in copied.named_modules() if _is_plain(m, classes)})
    _refuse(model, plain, classes)
    replacements: dict[nn.Module, VariationalLayer] = {
        module: _converted(classes[type(module)], module, options) for module in plain.values()
    }
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():  # named_children() would skip the repeats of a child
            if child in replacements:
                parent._modules[name] = replacements[child]
    result: nn.Module = replacements.get(copied, copied)
    by_class: dict[str, list[str]] = {}
    for name, module in plain.items():
        by_class.setdefault(type(replacements[module]).__name__, []).append(name or "model")
    conversion = Conversion(tuple((kind, tuple(names)) for kind, names in by_class.items()), _left(result))
    result.conversion = conversion  # type: ignore[assignment]
    _logger.info("%s", conversion)
    return result


def _chosen(
    layer: LayerName, kinds: Collection[type[nn.Module]] | None
) -> dict[type[nn.Module], type[VariationalLayer]]:
    """What each torch class becomes, of the kinds asked for."""
    classes = _CLASSES[layer]
    unknown = [kind for kind in kinds or () if kind not in classes]
    if unknown:
        raise DpvdError(f"layer='{layer}' has no form of {_names(unknown)}; kinds may be {_names(classes)}")
    return {kind: cls for kind, cls in classes.items() if kinds is None or kind in kinds}


def _names(kinds: Collection[type[nn.Module]]) -> str:
    return ", ".join(f"nn.{kind.__name__}" for kind in kinds)


def _is_plain(module: nn.Module, classes: Collection[type[nn.Module]]) -> bool:
    if isinstance(module, nn.Embedding):
        own, ordinary = {"weight"}, not (module.max_norm or module.scale_grad_by_freq or module.sparse)
    else:
        own, ordinary = {"weight", "bias"}, True
    return type(module) in classes and set(module._parameters) == own and ordinary


def _without_tied_embeddings(plain: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """One weight has one noise: that of the layer it is tied to."""
    others = {module.weight for module in plain.values() if not isinstance(module, nn.Embedding)}
    return {n: m for n, m in plain.items() if not (isinstance(m, nn.Embedding) and m.weight in others)}


def _refuse(model: nn.Module, plain: dict[str, nn.Module], classes: Collection[type[nn.Module]]) -> None:
    if not plain:
        raise DpvdError(
            f"{type(model).__name__} has nothing to convert, no {_names(classes)}; subclasses and layers that are "
            "variational already do not count"
        )
    by_weight: dict[Tensor, str] = {}
    for name, module in plain.items():
        other = by_weight.setdefault(module.weight, name)  # type: ignore[arg-type]
        if other != name:
            raise DpvdError(
                f"layers {other} and {name} share one weight: its noise and its KL term would count twice; "
                "use one layer in both places, or untie the weights"
            )


def _converted(cls: type[VariationalLayer], module: nn.Module, options: dict[str, Any]) -> VariationalLayer:
    """A layer of the class around the very parameters and hooks of the plain layer."""
    weight, bias = module._parameters["weight"], module._parameters.get("bias")
    assert weight is not None
    arguments: dict[str, Any] = {name: getattr(module, name) for name in _ARGUMENTS[type(module)]}
    if "bias" in module._parameters:
        arguments["bias"] = bias is not None
    try:
        layer = cls(**arguments, device="meta", dtype=weight.dtype, **options)
    except TypeError as error:
        raise DpvdError(f"{cls.__name__}: {error}; see its arguments for the options allowed") from None
    layer.to_empty(device=weight.device)
    layer.reset_noise()
    layer.requires_grad_(weight.requires_grad)
    layer.weight, layer.bias = weight, bias
    layer.train(module.training)
    vars(layer).update({name: value for name, value in vars(module).items() if "_hooks" in name})
    return layer


def _left(model: nn.Module) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name or "model", type(module).__name__)
        for name, module in model.named_modules()
        if module._parameters and not isinstance(module, VariationalLayer)
    )
