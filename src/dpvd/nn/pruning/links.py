"""Which layers of a sequence hand their units on to each other one by one.

And which units hand on a constant.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

__all__ = ["LAYERS", "POINTWISE", "Layer", "Link", "links"]

Layer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
LAYERS: tuple[type[Layer], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Activations that treat every unit alike and on its own: one can go without touching the others.
POINTWISE: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Softsign,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
)

# What treats every channel alike and on its own, by the convolution whose dimensions it shares:
# with other dimensions it would see several channels at once.
_CHANNELWISE: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    nn.Conv1d: (
        nn.Dropout1d,
        nn.MaxPool1d,
        nn.AvgPool1d,
        nn.AdaptiveMaxPool1d,
        nn.AdaptiveAvgPool1d,
    ),
    nn.Conv2d: (
        nn.Dropout2d,
        nn.MaxPool2d,
        nn.AvgPool2d,
        nn.AdaptiveMaxPool2d,
        nn.AdaptiveAvgPool2d,
    ),
    nn.Conv3d: (
        nn.Dropout3d,
        nn.MaxPool3d,
        nn.AvgPool3d,
        nn.AdaptiveMaxPool3d,
        nn.AdaptiveAvgPool3d,
    ),
}


@dataclass(frozen=True)
class Link:
    """Two layers of a sequence: units of the first (or channels) are inputs of the second.

    Attributes:
        first, second: names of the layers in the sequence.
        between: the modules between them; none of them sees two units at once.
    """

    first: str
    between: tuple[nn.Module, ...]
    second: str

    def constants(self, first: Layer, second: Layer) -> tuple[Tensor, Tensor]:
        """What arrives of a unit without inputs, and for which units that is the same everywhere.

        A unit that no weight enters is its bias everywhere, and f(bias) behind a pointwise f.
        Pooling leaves that as it is. Zeros put around an image are other values than that, unless
        it is 0.

        Args:
            first, second: the layers themselves.

        Returns:
            Values and a mask, each [units of the first layer]; values outside the mask mean
            nothing.
        """
        value = first.weight.new_zeros(len(first.weight))
        if first.bias is not None:
            value = first.bias.detach().clone()
        is_entered = (first.weight != 0).flatten(1).any(1)
        constant = ~is_entered
        for module in (*self.between, second):
            if type(module) in POINTWISE:
                value = module(value)
            elif not _keeps_constants(module):
                constant = constant & (value == 0)
        return value, constant


def links(chain: nn.Module) -> Iterator[Link]:
    """The links of an ``nn.Sequential``, first to last."""
    last: str | None = None
    between: list[nn.Module] = []
    for name, module in chain._modules.items():  # named_children() would skip repeats
        if module is None:
            continue
        if _is_plain(module):
            if last is not None and _are_linked(chain.get_submodule(last), between, module):
                yield Link(last, tuple(between), name)
            last = name
            between = []
        else:
            between.append(module)


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer's weight is all there is to it: no reparametrisation, no hooks, no groups."""
    if type(module) not in LAYERS:
        return False
    plain = set(module._parameters) == {"weight", "bias"}
    hooked = bool(module._forward_hooks or module._forward_pre_hooks)
    grouped = getattr(module, "groups", 1) != 1
    return plain and not hooked and not grouped


def _are_linked(first: nn.Module, between: list[nn.Module], second: nn.Module) -> bool:
    """Whether units stay apart, and arrive along the dimension of the second layer's inputs."""
    flat = type(first) is nn.Linear
    for module in between:
        if not flat and _flattens(module):
            flat = True
        elif type(module) not in POINTWISE and (flat or not _is_channelwise(module, first)):
            return False
    if not flat:
        return type(second) is type(first)
    if not isinstance(first, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return isinstance(second, nn.Linear)
    # Each channel has p positions, and so p inputs.
    return isinstance(second, nn.Linear) and second.in_features % first.out_channels == 0


def _flattens(module: nn.Module) -> bool:
    """Whether all dimensions but the batch become one."""
    if type(module) is not nn.Flatten:
        return False
    return module.start_dim == 1 and module.end_dim == -1


def _is_channelwise(module: nn.Module, convolution: nn.Module) -> bool:
    # With return_indices a pooling returns a pair, which no layer takes.
    returns_pair = getattr(module, "return_indices", False)
    channelwise = _CHANNELWISE[type(convolution)]
    return type(module) in channelwise and not returns_pair


def _keeps_constants(module: nn.Module) -> bool:
    """Whether a constant channel is the same constant behind the module.

    Or, if the module is a layer, in what its inputs see.
    """
    if isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d):
        counts_zeros = module.count_include_pad and _is_padded(module.padding)
        divisor = getattr(module, "divisor_override", None)
        return not counts_zeros and divisor is None
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.padding_mode != "zeros" or not _is_padded(module.padding)
    return True


def _is_padded(padding: int | str | tuple[int, ...]) -> bool:
    if isinstance(padding, str):
        return padding == "same"
    return padding not in (0, (0,), (0, 0), (0, 0, 0))
