"""Which variational class stands for which of torch's, and how one takes the place of the other."""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, TypeAlias

from torch import Tensor, nn

from dpvd.errors import DpvdError, choice
from dpvd.nn.attention.layers import AdditiveMultiheadAttention, MultiplicativeMultiheadAttention
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
from dpvd.nn.recurrent.layers import AdditiveGRU, AdditiveLSTM, AdditiveRNN

__all__ = [
    "Classes",
    "LayerName",
    "class_names",
    "converted",
    "counterparts",
    "is_convertible",
    "weights",
]

Classes: TypeAlias = dict[type[nn.Module], type[VariationalLayer]]


class LayerName(StrEnum):
    """The families that layers can be converted to."""

    ADDITIVE = "additive"
    """Additive noise, sparse variational dropout, Algorithm 1: all kinds of layers."""
    MULTIPLICATIVE = "multiplicative"
    """Variational dropout: dense layers (types A and B), convolutions and attention (type B)."""
    GAUSSIAN = "gaussian"
    """``GaussianDropoutLinear``: a fixed rate."""
    BINARY = "binary"
    """``BinaryDropoutLinear``: a fixed rate."""


_CLASSES: dict[LayerName, Classes] = {
    LayerName.ADDITIVE: {
        nn.Linear: AdditiveLinear,
        nn.Conv1d: AdditiveConv1d,
        nn.Conv2d: AdditiveConv2d,
        nn.Conv3d: AdditiveConv3d,
        nn.ConvTranspose2d: AdditiveConvTranspose2d,
        nn.Embedding: AdditiveEmbedding,
        nn.RNN: AdditiveRNN,
        nn.GRU: AdditiveGRU,
        nn.LSTM: AdditiveLSTM,
        nn.MultiheadAttention: AdditiveMultiheadAttention,
    },
    LayerName.MULTIPLICATIVE: {
        nn.Linear: MultiplicativeLinear,
        nn.Conv1d: MultiplicativeConv1d,
        nn.Conv2d: MultiplicativeConv2d,
        nn.Conv3d: MultiplicativeConv3d,
        nn.MultiheadAttention: MultiplicativeMultiheadAttention,
    },
    LayerName.GAUSSIAN: {nn.Linear: GaussianDropoutLinear},
    LayerName.BINARY: {nn.Linear: BinaryDropoutLinear},
}

_CHANNELS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
)
_STEPS = (
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
)
_HEADS = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
# The attributes of torch's layers that are arguments of both constructors.
_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: (*_CHANNELS, "padding_mode"),
    nn.Conv2d: (*_CHANNELS, "padding_mode"),
    nn.Conv3d: (*_CHANNELS, "padding_mode"),
    nn.ConvTranspose2d: (*_CHANNELS, "output_padding"),
    nn.Embedding: ("num_embeddings", "embedding_dim", "padding_idx"),
    nn.RNN: (*_STEPS, "nonlinearity"),
    nn.GRU: _STEPS,
    nn.LSTM: _STEPS,
    nn.MultiheadAttention: _HEADS,
}

# Options of torch's layers that the variational ones do not have.
_WITHOUT_COUNTERPART: dict[type[nn.Module], Callable[[Any], bool]] = {
    nn.Embedding: lambda layer: bool(layer.max_norm or layer.scale_grad_by_freq or layer.sparse),
    nn.LSTM: lambda layer: bool(layer.proj_size),
}


def counterparts(
    layer: LayerName | str,
    kinds: Collection[type[nn.Module]] | None = None,
) -> Classes:
    """What each torch class becomes in a family, of the kinds asked for."""
    name = choice(layer, LayerName, "layer")
    classes = _CLASSES[name]
    unknown = [kind for kind in kinds or () if kind not in classes]
    if unknown:
        wrong = class_names(unknown)
        allowed = class_names(classes)
        raise DpvdError(f"layer='{name}' has no form of {wrong}; kinds may be {allowed}")
    return {kind: cls for kind, cls in classes.items() if kinds is None or kind in kinds}


def class_names(kinds: Collection[type[nn.Module]]) -> str:
    """As one writes them.

    >>> class_names([nn.Linear, nn.GRU])
    'nn.Linear, nn.GRU'
    """
    names = [f"nn.{kind.__name__}" for kind in kinds]
    return ", ".join(names)


def is_convertible(module: nn.Module, classes: Classes) -> bool:
    """Whether a module is of exactly such a class, with plain parameters and no option we lack."""
    kind = type(module)
    if kind not in classes:
        return False
    if kind in _WITHOUT_COUNTERPART and _WITHOUT_COUNTERPART[kind](module):
        return False
    return all(name in owner._parameters for owner, name in _expected(module))


def _expected(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Where a layer that is not reparametrised has its weights: owner and name."""
    if isinstance(module, nn.RNNBase):
        return [(module, name) for names in module._all_weights for name in names]
    if isinstance(module, nn.MultiheadAttention):
        return [(module, "in_proj_weight"), (module, "q_proj_weight"), (module.out_proj, "weight")]
    return [(module, "weight")]


def weights(module: nn.Module) -> list[Tensor]:
    """The weights of a layer, without its biases: what noise goes onto."""
    found: list[Tensor] = []
    for name, parameter in module.named_parameters():
        if "weight" in name:
            found.append(parameter)
    return found


def converted(
    cls: type[VariationalLayer],
    module: nn.Module,
    options: dict[str, Any],
) -> VariationalLayer:
    """A layer of the class around the very parameters and hooks of the plain layer.

    Args:
        cls: the counterpart of the module's class.
        module: the plain layer; it is taken apart.
        options: of the constructor, beside those that the plain layer has too.

    Raises:
        DpvdError: an option that the class does not have.
    """
    weight = weights(module)[0]
    arguments: dict[str, Any] = {name: getattr(module, name) for name in _ARGUMENTS[type(module)]}
    if isinstance(module, nn.MultiheadAttention):
        arguments["bias"] = module.in_proj_bias is not None
        arguments["add_bias_kv"] = module.bias_k is not None
    elif "bias" in module._parameters:
        arguments["bias"] = module.bias is not None
    try:
        layer = cls(**arguments, device="meta", dtype=weight.dtype, **options)
    except TypeError as error:
        message = f"{cls.__name__}: {error}; see its arguments for the options allowed"
        raise DpvdError(message) from None
    layer.to_empty(device=weight.device)
    layer.reset_noise()
    layer.requires_grad_(any(w.requires_grad for w in weights(module)))
    for name, own in (*module._parameters.items(), *module._modules.items()):
        setattr(layer, name, own)
    layer.train(module.training)
    # Hooks, and what other parts of dpvd remember of a module.
    kept = {
        name: value
        for name, value in vars(module).items()
        if "_hooks" in name or name.startswith("_dpvd_")
    }
    vars(layer).update(kept)
    return layer
