"""Turn the layers of an ordinary model into variational ones."""

import copy
import logging
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.nn.counterparts import (
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
        left: name and class of the other modules that hold parameters of their own which are
            trained.
        frozen: name and class of those whose own parameters are all frozen.
    """

    classes: tuple[tuple[str, tuple[str, ...]], ...]
    left: tuple[tuple[str, str], ...]
    frozen: tuple[tuple[str, str], ...] = ()

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
        if self.frozen:
            counts = Counter(kind for _, kind in self.frozen)
            kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            parts.append(f"frozen, and left: {kinds}")
        return "; ".join(parts)


def variational(
    model: nn.Module,
    layer: LayerName | str = LayerName.ADDITIVE,
    *,
    only: str | Collection[str] | None = None,
    kinds: Collection[type[nn.Module]] | None = None,
    frozen: bool = False,
    **options: Any,
) -> nn.Module:
    r"""Return a copy of the model whose trained layers are variational, where the family has them.

    Guarantees: the model is untouched; weights, biases, ``requires_grad``, device, dtype, mode and
    hooks are kept, so in eval mode the copy computes what the model does. Layers whose weights are
    all frozen are left unless asked for, and then their noise parameters are frozen too. A layer
    used in several places stays one layer. No random numbers are used up. The copy carries the
    account of what was done as ``conversion``, which is also logged at level INFO.

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
        only: a regular expression, or several, that is searched for in the names of the modules:
            "lora" takes every layer with lora in its name, as PEFT's adapters have, ``r"\.1\."``
            the second block of a stack, ("lora", "classifier$") adapters and head. None takes all.
        kinds: the torch classes to convert, of those that the family has; None for all of them.
        frozen: whether layers that are not trained are converted, too.
        options: passed to the constructors of the layers (``rates``, ``learned``, ``prior``,
            ``rate``, ...).

    Raises:
        DpvdError: nothing to convert; two layers that share one weight; an unknown family, kind or
            option; ``only`` that fits no layer.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    >>> print(variational(model, rates="layer").conversion)
    converted to AdditiveLinear: 0; left as they are: 1 (LayerNorm)
    """
    classes = counterparts(layer, kinds)
    copied = copy.deepcopy(model)
    convertible = {n: m for n, m in copied.named_modules() if is_convertible(m, classes)}
    if not convertible:
        raise DpvdError(
            f"{type(model).__name__} has nothing to convert, no {class_names(classes)}; subclasses "
            "and layers that are variational already do not count"
        )
    chosen = _matching(convertible, only)
    plain = _without_tied_embeddings(chosen if frozen else _trained(chosen))
    _refuse_shared(plain)
    replacements: dict[nn.Module, VariationalLayer] = {
        module: converted(classes[type(module)], module, options) for module in plain.values()
    }
    for parent in list(copied.modules()):
        for name, child in parent._modules.items():  # named_children() would skip repeats
            if child in replacements:
                parent._modules[name] = replacements[child]
        _keep_off_the_fast_path(parent)
    result: nn.Module = replacements.get(copied, copied)
    others = _others(result)
    conversion = Conversion(
        _by_class(plain, replacements),
        left=tuple((name, kind) for name, kind, is_trained in others if is_trained),
        frozen=tuple((name, kind) for name, kind, is_trained in others if not is_trained),
    )
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


def _matching(
    convertible: dict[str, nn.Module], only: str | Collection[str] | None
) -> dict[str, nn.Module]:
    """The layers in whose names one of the patterns is found."""
    if only is None:
        return convertible
    patterns = [only] if isinstance(only, str) else list(only)
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as problem:
        raise DpvdError(
            "only must be a regular expression, or several, such as 'lora' or 'head|score', got "
            f"{only!r} ({problem}); any text is '.*', not '*'"
        ) from None
    found = {}
    for name, module in convertible.items():
        if any(pattern.search(name) for pattern in compiled):
            found[name] = module
    if not found:
        raise DpvdError(
            f"only={only!r} fits none of the layers that can be converted: {_some(convertible)}"
        )
    return found


def _trained(chosen: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The layers of which some weight is trained."""
    found = {}
    for name, module in chosen.items():
        if any(weight.requires_grad for weight in weights(module)):
            found[name] = module
    if not found:
        raise DpvdError(
            f"all layers that could be converted are frozen: {_some(chosen)}. frozen=True converts "
            "them, too"
        )
    return found


def _some(named: Collection[str]) -> str:
    """The first few names."""
    names = [name or "model" for name in named]
    rest = len(names) - 6
    listed = ", ".join(names[:6])
    return f"{listed} and {rest} more" if rest > 0 else listed


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


def _refuse_shared(plain: dict[str, nn.Module]) -> None:
    by_weight: dict[Tensor, str] = {}
    for name, module in plain.items():
        for weight in weights(module):
            other = by_weight.setdefault(weight, name)
            if other != name:
                raise DpvdError(
                    f"layers {other} and {name} share one weight: its noise and its KL term would "
                    "count twice; use one layer in both places, or untie the weights"
                )


def _others(model: nn.Module) -> list[tuple[str, str, bool]]:
    """Name, class, and whether trained, of the other modules with parameters of their own.

    Parts of a variational layer are not among them.
    """
    done: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, VariationalLayer):
            done.update(module.modules())
    found = []
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and module not in done:
            is_trained = any(parameter.requires_grad for parameter in own)
            found.append((name or "model", type(module).__name__, is_trained))
    return found
