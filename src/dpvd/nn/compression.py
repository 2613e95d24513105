"""Remove the units that pruning has left without use, so that a sparse network is also a small one."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.nn.linear import DenseMap

__all__ = ["Compression", "LayerSize", "compress"]

# Activations that treat every unit alike and on its own, so that one unit can go without touching the others.
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


@dataclass(frozen=True)
class LayerSize:
    """Inputs and outputs of a dense layer before and after."""

    name: str
    before: tuple[int, int]
    after: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name or 'model'}: {self.before[0]}→{self.before[1]} became {self.after[0]}→{self.after[1]}"


@dataclass(frozen=True)
class Compression:
    """What :func:`compress` made of a model. Parameters are those of the means: noise parameters do not count."""

    layers: tuple[LayerSize, ...]
    parameters_before: int
    parameters_after: int

    @property
    def ratio(self) -> float:
        """Parameters before / after; ∞ if none are left."""
        return self.parameters_before / self.parameters_after if self.parameters_after else float("inf")

    def __str__(self) -> str:
        total = f"parameters: {self.parameters_before:,} became {self.parameters_after:,} ({self.ratio:.1f}x fewer)"
        return "\n".join([*map(str, self.layers), total])


@torch.no_grad()
def compress(model: nn.Module) -> tuple[nn.Module, Compression]:
    """Return an ordinary network of the means, without the units that pruning has left without use.

    In an ``nn.Sequential``, between two dense layers with nothing but pointwise activations f between them, unit j goes

    - if no weight leaves it: nothing of it arrives anywhere; or
    - if no weight enters it: it has the constant value f(b_j), and w_j f(b_j) is added to the next layer's bias.

    A unit that goes may leave others without use, in the layers before and after; they go too.

    Guarantees: the result computes what the model does in eval mode, up to rounding (1e-12 in float64). The model
    itself is untouched. Only parameters are looked at, so a private model stays as private as it is.

    Edge cases: dense variational layers become ``nn.Linear``; the result does not sample any more and is in eval mode.
    Layers outside such chains keep their size, and so do layers with hooks, the inputs of the first layer and the
    outputs of the last. A network that has lost everything becomes a constant one, with layers of width 0.

    Returns:
        The smaller model, and the sizes before and after.

    >>> from dpvd.nn import AdditiveLinear, prune
    >>> model = nn.Sequential(AdditiveLinear(4, 3), nn.ReLU(), AdditiveLinear(3, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.fill_(1.0), model[2].weight.fill_(1.0), model[2].weight[:, 1:].zero_()
    >>> _ = prune(model)
    >>> print(compress(model)[1])
    0: 4→3 became 4→1
    2: 3→2 became 1→2
    parameters: 23 became 9 (2.6x fewer)
    """
    copied = _means(copy.deepcopy(model)).eval()
    before, parameters_before = _sizes(copied), _count(copied)
    chains = [module for module in copied.modules() if type(module).forward is nn.Sequential.forward]
    shrinking = True
    while shrinking:
        shrinking = False
        for chain in chains:
            for pair in list(_pairs(chain)):
                shrinking |= _shrink(chain, *pair)
    after = _sizes(copied)
    layers = tuple(LayerSize(name, before[name], after[name]) for name in before)
    return copied, Compression(layers, parameters_before, _count(copied))


def _means(model: nn.Module) -> nn.Module:
    """The model with ``nn.Linear`` for dense variational layers; each place gets a layer of its own."""
    if isinstance(model, DenseMap):
        return _linear(model.mean_weight(), model.bias, like=model.weight)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, DenseMap):
                parent._modules[name] = _linear(child.mean_weight(), child.bias, like=child.weight)
    return model


def _pairs(chain: nn.Module) -> Iterator[tuple[str, list[nn.Module], str]]:
    """Names of two dense layers, and the pointwise activations between them."""
    last: str | None = None
    between: list[nn.Module] = []
    for name, module in chain._modules.items():  # named_children() would skip the repeats of a module
        if module is None:
            continue
        if _is_dense(module):
            if last is not None:
                yield last, between, name
            last, between = name, []
        elif type(module) in POINTWISE:
            between = [*between, module]
        else:
            last = None


def _shrink(chain: nn.Module, first_name: str, between: list[nn.Module], second_name: str) -> bool:
    """Take the useless units between two layers out; whether there were any."""
    first, second = chain.get_submodule(first_name), chain.get_submodule(second_name)
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    used = (first.weight != 0).any(1) & (second.weight != 0).any(0)
    if used.all():
        return False
    value = first.weight.new_zeros(first.out_features) if first.bias is None else first.bias.clone()
    for activation in between:
        value = activation(value)
    constant = second.weight[:, ~used] @ value[~used]  # a unit whose value is not constant has no weight here
    bias = constant if second.bias is None else second.bias + constant
    first_bias = None if first.bias is None else first.bias[used]
    second_bias = None if second.bias is None and not constant.any() else bias
    setattr(chain, first_name, _linear(first.weight[used], first_bias, like=first.weight))
    setattr(chain, second_name, _linear(second.weight[:, used], second_bias, like=second.weight))
    return True


def _is_dense(module: nn.Module) -> bool:
    plain = type(module) is nn.Linear and set(module._parameters) == {"weight", "bias"}  # not reparametrised
    return plain and not module._forward_hooks and not module._forward_pre_hooks


def _linear(weight: Tensor, bias: Tensor | None, like: Tensor) -> nn.Linear:
    """A dense layer with copies of these values, in eval mode, that is trainable if ``like`` is."""
    layer = nn.Linear(1, 1, device="meta")  # initialises nothing and draws nothing
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=like.requires_grad)
    values = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=like.requires_grad)
    layer.register_parameter("bias", values)
    return layer.eval()


def _sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (m.in_features, m.out_features) for name, m in model.named_modules() if type(m) is nn.Linear}


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
