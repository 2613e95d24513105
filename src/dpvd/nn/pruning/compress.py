"""Remove the units that pruning has left without use: a sparse network becomes a small one."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.nn.conv import ConvMap
from dpvd.nn.linear import DenseMap
from dpvd.nn.pruning.links import LAYERS, Layer, Link, links

__all__ = ["Compression", "LayerSize", "compress"]

_GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


@dataclass(frozen=True)
class LayerSize:
    """Inputs and outputs of a dense layer, or channels of a convolution, before and after."""

    name: str
    before: tuple[int, int]
    after: tuple[int, int]

    def __str__(self) -> str:
        name = self.name or "model"
        inputs, outputs = self.before
        fewer_inputs, fewer_outputs = self.after
        return f"{name}: {inputs}→{outputs} became {fewer_inputs}→{fewer_outputs}"


@dataclass(frozen=True)
class Compression:
    """What :func:`compress` made of a model.

    Attributes:
        layers: sizes of the dense layers and convolutions.
        parameters_before, parameters_after: of the means; noise parameters do not count.
        score_before, score_after: what ``score`` said, or None without one.
    """

    layers: tuple[LayerSize, ...]
    parameters_before: int
    parameters_after: int
    score_before: float | None = None
    score_after: float | None = None

    @property
    def ratio(self) -> float:
        """Parameters before / after; ∞ if none are left."""
        if self.parameters_after == 0:
            return math.inf
        return self.parameters_before / self.parameters_after

    def __str__(self) -> str:
        lines = [str(layer) for layer in self.layers]
        sizes = f"{self.parameters_before:,} became {self.parameters_after:,}"
        lines.append(f"parameters: {sizes} ({self.ratio:.1f}x fewer)")
        if self.score_before is not None:
            lines.append(f"score: {self.score_before:.4f} became {self.score_after:.4f}")
        return "\n".join(lines)


@torch.no_grad()
def compress(
    model: nn.Module,
    *,
    score: Callable[[nn.Module], float] | None = None,
) -> tuple[nn.Module, Compression]:
    """Return an ordinary network of the means, without the units that pruning has left without use.

    In an ``nn.Sequential``, between two layers with nothing between them that sees two units at
    once, unit j (of a convolution: channel j) goes

    - if no weight leaves it: nothing of it arrives anywhere; or
    - if no weight enters it: it has the constant value f(b_j), with f the activations, and w_j
      f(b_j), summed over the positions at which the next layer reads it, is added to that layer's
      bias.

    Units stay apart in pointwise activations, and channels also in pooling and, from a convolution
    to a dense layer, in ``nn.Flatten``. A unit that goes may leave others without use, in the
    layers before and after; they go too.

    Guarantees: the result computes what the model does in eval mode, up to rounding (1e-12 in
    float64). The model itself is untouched. Only parameters are looked at, so a private model stays
    as private as it is.

    Edge cases: dense and convolutional variational layers become torch's; the result does not
    sample any more and is in eval mode. Layers outside such chains keep their size, and so do
    layers with hooks or groups, the inputs of the first layer and the outputs of the last. Zeros
    around an image (padding) differ from a constant other than 0: such a channel stays. A network
    that has lost everything becomes a constant one, with dense layers of width 0 and convolutions
    of one channel. Inputs come in batches.

    Args:
        model: any module, as a rule pruned.
        score: what to report for the model, in eval mode, and for the result, say the accuracy on
            test data. It is the only thing here that may look at data.

    Returns:
        The smaller model, and the sizes before and after.

    >>> from dpvd.nn import AdditiveLinear, prune
    >>> model = nn.Sequential(AdditiveLinear(4, 3), nn.ReLU(), AdditiveLinear(3, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.fill_(1.0)
    ...     _ = model[2].weight.fill_(1.0)
    ...     _ = model[2].weight[:, 1:].zero_()
    >>> _ = prune(model)
    >>> print(compress(model)[1])
    0: 4→3 became 4→1
    2: 3→2 became 1→2
    parameters: 23 became 9 (2.6x fewer)
    """
    copied = _means(copy.deepcopy(model)).eval()
    before = _sizes(copied)
    parameters_before = _count(copied)
    score_before = None if score is None else float(score(copied))
    chains = [m for m in copied.modules() if type(m).forward is nn.Sequential.forward]
    shrinking = True
    while shrinking:
        shrinking = False
        for chain in chains:
            for link in list(links(chain)):
                shrinking |= _shrink(chain, link)
    after = _sizes(copied)
    compression = Compression(
        layers=tuple(LayerSize(name, before[name], after[name]) for name in before),
        parameters_before=parameters_before,
        parameters_after=_count(copied),
        score_before=score_before,
        score_after=None if score is None else float(score(copied)),
    )
    return copied, compression


def _means(model: nn.Module) -> nn.Module:
    """The model with torch's layers for variational ones; each place gets a layer of its own."""
    if isinstance(model, DenseMap | ConvMap):
        return _layer(model, model.mean_weight(), model.bias)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, DenseMap | ConvMap):
                parent._modules[name] = _layer(child, child.mean_weight(), child.bias)
    return model


def _shrink(chain: nn.Module, link: Link) -> bool:
    """Take the useless units between two layers out; whether there were any."""
    first: Layer = chain.get_submodule(link.first)  # type: ignore[assignment]
    second: Layer = chain.get_submodule(link.second)  # type: ignore[assignment]
    units = len(first.weight)
    outputs = len(second.weight)
    positions = math.prod(second.weight.shape[1:]) // max(units, 1)
    reads = second.weight.reshape(outputs, units, positions)
    value, constant = link.constants(first, second)  # [units]
    is_read = (reads != 0).any(2).any(0)  # [units]
    used = ~constant & is_read
    if type(first) is not nn.Linear and not used.any():
        used[0] = True  # torch has no convolution without channels
    if used.all():
        return False
    # A unit that goes without having a constant value has no weight here.
    removed = ~used
    weights = reads.sum(2)[:, removed]  # [out, removed units]
    folded = weights @ value[removed]  # [out]
    second_bias = second.bias
    if second_bias is not None:
        second_bias = second_bias + folded
    elif folded.any():
        second_bias = folded
    first_bias = None if first.bias is None else first.bias[used]
    # After Flatten a channel is read at several positions.
    inputs_per_unit = second.weight.shape[1] // units
    inputs = used.repeat_interleave(inputs_per_unit)
    smaller_first = _layer(first, first.weight[used], first_bias)
    smaller_second = _layer(second, second.weight[:, inputs], second_bias)
    setattr(chain, link.first, smaller_first)
    setattr(chain, link.second, smaller_second)
    return True


def _layer(like: nn.Module, weight: Tensor, bias: Tensor | None) -> Layer:
    """A torch layer with copies of these values, in eval mode, otherwise as the given one.

    The given one is plain or variational.
    """
    assert isinstance(like, LAYERS)
    layer: Layer
    if isinstance(like, nn.Linear):
        layer = nn.Linear(1, 1, device="meta")  # initialises nothing and draws nothing
        layer.out_features = weight.shape[0]
        layer.in_features = weight.shape[1]
    else:
        kind = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(like, kind))
        geometry = {name: getattr(like, name) for name in _GEOMETRY}
        layer = kind(like.groups, like.groups, **geometry, device="meta")
        layer.out_channels = weight.shape[0]
        layer.in_channels = weight.shape[1] * like.groups
    trainable = like.weight.requires_grad
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=trainable)
    own_bias = None
    if bias is not None:
        own_bias = nn.Parameter(bias.detach().clone(), requires_grad=trainable)
    layer.register_parameter("bias", own_bias)
    return layer.eval()


def _sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Inputs and outputs, by name."""
    sizes = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes[name] = module.in_features, module.out_features
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            sizes[name] = module.in_channels, module.out_channels
    return sizes


def _count(model: nn.Module) -> int:
    sizes = [parameter.numel() for parameter in model.parameters()]
    return sum(sizes)
