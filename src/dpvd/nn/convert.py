"""Turn the layers of an ordinary model into variational ones."""

import copy
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.nn.counterparts import (
    Classes,
    LayerName,
    class_names,
    converted,
    counterparts,
    is_convertible,
    weights,
)
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.transformer import VariationalTransformerEncoderLayer

__all__ = ["Conversion", "variational"]

_logger = logging.getLogger("dpvd")


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
        names: list[str] = []
        for _, of_class in self.classes:
            names += of_class
        return tuple(names)

    def __str__(self) -> str:
        parts = []
        for kind, names in self.classes:
            parts.append(f"converted to {kind}: {', '.join(names)}")
        left = ", ".join(f"{name} ({kind})" for name, kind in self.left)
        parts.append(f"left as they are: {left or 'none'}")
        return "; ".join(parts)


def variational(
    model: nn.Module,
    layer: LayerName | str = LayerName.ADDITIVE,
    *,
    kinds: Collection[type[nn.Module]] | None = None,
    **options: Any,
) -> nn.Module:
    """Return a copy of the model whose layers are variational, where the family has them.

    Guarantees: the model is untouched; weights, biases, ``requires_grad``, device, dtype, mode and
    hooks are kept, so in eval mode the copy computes what the model does; the noise parameters of a
    frozen layer are frozen too. A layer used in several places stays one layer. No random numbers
    are used up. The copy carries the account of what was done as ``conversion``, which is also
    logged at level INFO.

    Edge cases: only the exact classes are converted; subclasses, reparametrised layers, whose
    weight is not a plain parameter, embeddings that rescale (``max_norm``), count words over a
    batch or ask for sparse gradients, and LSTMs with projections are left. An embedding whose
    weight is tied to a layer that is converted is left, and stays tied. An
    ``nn.TransformerEncoderLayer`` in which something is converted becomes a
    ``VariationalTransformerEncoderLayer``, so that its fast path does not go past the noise.

    Args:
        model: any module, also a single layer.
        layer: "additive" (``nn.Linear``, ``nn.Conv1d/2d/3d``, ``nn.ConvTranspose2d``,
            ``nn.Embedding``, ``nn.RNN``, ``nn.GRU``, ``nn.LSTM``, ``nn.MultiheadAttention``),
            "multiplicative" (``nn.Linear``, ``nn.Conv1d/2d/3d``, ``nn.MultiheadAttention``),
            "gaussian" or "binary" (``nn.Linear``).
        kinds: the torch classes to convert, of those that the family has; None for all of them.
        options: passed to the constructors of the layers (``rates``, ``learned``, ``prior``,
            ``rate``, ...).

    Raises:
        DpvdError: nothing to convert; two layers that share one weight; an unknown family, kind or
            option.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    >>> print(variational(model, rates="layer").conversion)
    converted to AdditiveLinear: 0; left as they are: 1 (LayerNorm)
    """
    classes = counterparts(layer, kinds)
    copied = copy.deepcopy(model)
    convertible = {n: m for n, m in copied.named_modules() if is_convertible(m, classes)}
    plain = _without_tied_embeddings(convertible)
    _refuse(model, plain, classes)
    replacements: dict[nn.Module, VariationalLayer] = {
        module: converted(classes[type(module)], module, options) for module in plain.values()
    }
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():  # named_children() would skip repeats
            if child in replacements:
                parent._modules[name] = replacements[child]
        _keep_off_the_fast_path(parent)
    result: nn.Module = replacements.get(copied, copied)
    conversion = Conversion(_by_class(plain, replacements), _left(result))
    result.conversion = conversion  # type: ignore[assignment]
    _logger.info("%s", conversion)
    return result


def _by_class(
    plain: dict[str, nn.Module],
    replacements: dict[nn.Module, VariationalLayer],
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The names of the layers replaced, by the class that replaced them."""
    names: dict[str, list[str]] = {}
    for name, module in plain.items():
        kind = type(replacements[module]).__name__
        names.setdefault(kind, []).append(name or "model")
    return tuple((kind, tuple(replaced)) for kind, replaced in names.items())


def _keep_off_the_fast_path(module: nn.Module) -> None:
    """Give an encoder layer the class that computes the same through its inner layers.

    The module is a part of the copy, which is ours to change.
    """
    has_noise = any(isinstance(child, VariationalLayer) for child in module.children())
    if type(module) is nn.TransformerEncoderLayer and has_noise:
        module.__class__ = VariationalTransformerEncoderLayer


def _without_tied_embeddings(plain: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """One weight has one noise: that of the layer it is tied to."""
    others: set[Tensor] = set()
    for module in plain.values():
        if not isinstance(module, nn.Embedding):
            others.update(weights(module))
    untied = {}
    for name, module in plain.items():
        if not (isinstance(module, nn.Embedding) and module.weight in others):
            untied[name] = module
    return untied


def _refuse(model: nn.Module, plain: dict[str, nn.Module], classes: Classes) -> None:
    if not plain:
        raise DpvdError(
            f"{type(model).__name__} has nothing to convert, no {class_names(classes)}; subclasses "
            "and layers that are variational already do not count"
        )
    by_weight: dict[Tensor, str] = {}
    for name, module in plain.items():
        for weight in weights(module):
            other = by_weight.setdefault(weight, name)
            if other != name:
                raise DpvdError(
                    f"layers {other} and {name} share one weight: its noise and its KL term would "
                    "count twice; use one layer in both places, or untie the weights"
                )


def _left(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Modules with parameters of their own, neither variational nor a part of a layer that is."""
    done: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, VariationalLayer):
            done.update(module.modules())
    left = []
    for name, module in model.named_modules():
        has_own = any(True for _ in module.parameters(recurse=False))
        if has_own and module not in done:
            left.append((name or "model", type(module).__name__))
    return tuple(left)
