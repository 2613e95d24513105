"""Networks and losses that every gradient engine is tested on."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.nn import AdditiveLinear, BinaryDropoutLinear, GaussianDropoutLinear, MultiplicativeLinear

FEATURES, HIDDEN, CLASSES = 5, 7, 3


def two_layers(make: Callable[[int, int], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(make(FEATURES, HIDDEN), nn.Tanh(), make(HIDDEN, CLASSES)).double()


def type_a(i: int, o: int, **options: object) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # the caveat on type A is tested where it belongs
        return MultiplicativeLinear(i, o, kind="A", log_alpha=-1.0, **options)  # type: ignore[arg-type]


def pruned(layer: nn.Module) -> nn.Module:
    with torch.no_grad():
        layer.weight[::2] *= 1e-6
    layer.prune(3.0)
    return layer


class Unruly(nn.Module):
    """A module of the user's own: parameters without a rule, a plain and a variational layer
    inside.
    """

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, o))
        self.inner = nn.Linear(i, o)
        self.noisy = AdditiveLinear(i, o, log_sigma2=-1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * torch.sin(self.inner(x)) + self.noisy(x)


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": lambda i, o: nn.Linear(i, o),
    "linear without bias": lambda i, o: nn.Linear(i, o, bias=False),
    "binary dropout": lambda i, o: BinaryDropoutLinear(i, o, rate=0.3),
    "gaussian dropout": lambda i, o: GaussianDropoutLinear(i, o, rate=0.3),
    "type A per layer": lambda i, o: type_a(i, o, rates="layer"),
    "type A per neuron": lambda i, o: type_a(i, o, rates="neuron"),
    "type A fixed": lambda i, o: type_a(i, o, rates="neuron", learned=False),
    "type B per layer": lambda i, o: MultiplicativeLinear(i, o, rates="layer", log_alpha=-1.0),
    "type B per neuron": lambda i, o: MultiplicativeLinear(i, o, rates="neuron", log_alpha=-1.0),
    "type B per weight": lambda i, o: MultiplicativeLinear(i, o, rates="weight", log_alpha=-1.0),
    "type B fixed": lambda i, o: MultiplicativeLinear(i, o, learned=False, log_alpha=-1.0),
    "additive per layer": lambda i, o: AdditiveLinear(i, o, rates="layer", log_sigma2=-2.0),
    "additive per neuron": lambda i, o: AdditiveLinear(i, o, rates="neuron", log_sigma2=-2.0),
    "additive per weight": lambda i, o: AdditiveLinear(i, o, rates="weight", log_sigma2=-2.0),
    "additive tied": lambda i, o: AdditiveLinear(
        i, o, rates="layer", learned=False, log_sigma2=-2.0
    ),
    "additive without noise": lambda i, o: AdditiveLinear(
        i, o, rates="layer", learned=False, log_sigma2=-torch.inf
    ),
    "additive without bias": lambda i, o: AdditiveLinear(i, o, bias=False, log_sigma2=-2.0),
    "additive pruned": lambda i, o: pruned(AdditiveLinear(i, o, log_sigma2=-2.0)),
    "additive per neuron pruned": lambda i, o: pruned(
        AdditiveLinear(i, o, rates="neuron", log_sigma2=-2.0)
    ),
    "no rule": Unruly,
}


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    return F.cross_entropy(
        logits.flatten(1, -2).sum(1) if logits.dim() > 2 else logits, y, reduction="none"
    )


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - torch.eye(CLASSES, dtype=x.dtype)[y]).square().flatten(1).sum(1)


def confidence_penalty(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss that calls the model twice: its parameters are used twice, with noise drawn anew."""
    first, second = model(x), model(-x)
    return F.cross_entropy(first, y, reduction="none") + (first - second).square().mean(1)


LOSSES = {
    "cross entropy": cross_entropy,
    "squared error": squared_error,
    "two calls": confidence_penalty,
}


def make_batch(
    count: int, generator: torch.Generator, positions: int | None = None
) -> tuple[Tensor, Tensor]:
    shape = (count, FEATURES) if positions is None else (count, positions, FEATURES)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    return x, torch.randint(CLASSES, (count,), generator=generator)
