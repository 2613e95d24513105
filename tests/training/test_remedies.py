"""Every refusal of a model names the module and a remedy, and with that remedy the model trains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dpvd
from dpvd import DpvdError, PrivacyPlan, PrivateStep

COUNT, FEATURES, CLASSES = 12, 8, 3


def numbers() -> tuple[Tensor, Tensor]:
    return torch.randn(COUNT, FEATURES), torch.arange(COUNT) % CLASSES


def words() -> tuple[Tensor, Tensor]:
    return torch.randint(9, (COUNT, 4)), torch.arange(COUNT) % CLASSES


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def between(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), *middle, nn.Linear(8, CLASSES))


def table(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4, **options), nn.Flatten(), nn.Linear(16, CLASSES))


def expanded() -> nn.Module:
    model = between()
    model[1].weight = nn.Parameter(torch.zeros(CLASSES, 1).expand(CLASSES, 8))
    return model


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class ByCount(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.divides = True

    def forward(self, x: Tensor) -> Tensor:
        return x / len(x) if self.divides else x


class Remembers(nn.Module):
    """Keeps the mean of the last batch, in a buffer or where nobody watches."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.buffer = buffer
        self.kept: list[Tensor] = [torch.zeros(())]
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        shifted = x + self.kept[0] + self.mean
        if self.training and self.buffer:
            self.mean = x.detach().mean()
        elif self.training:
            self.kept[0] = x.detach().mean()
        return shifted


class MovesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.moves = True

    def forward(self, x: Tensor) -> Tensor:
        if self.moves:
            with torch.no_grad():
                self.scale.add_(1e-3)
        return x * self.scale


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.reentrant = True

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


Remedy = Callable[[nn.Module], nn.Module | None]


@dataclass(frozen=True)
class Refusal:
    """A model that is refused, what is said of it, and what that says to do."""

    make: Callable[[], nn.Module]
    module: str
    advice: str
    remedy: Remedy
    data: Callable[[], tuple[Tensor, Tensor]] = numbers
    isolation: str = "checked"


def put(place: int, **attributes: Any) -> Remedy:
    """Set attributes of one module."""

    def remedy(model: nn.Module) -> None:
        for name, value in attributes.items():
            setattr(model[place], name, value)

    return remedy


def replaced(place: int, by: Callable[[], nn.Module]) -> Remedy:
    def remedy(model: nn.Module) -> None:
        model[place] = by()

    return remedy


def call_once(model: nn.Module) -> None:
    model(torch.zeros(1, FEATURES))


def own_memory(model: nn.Module) -> None:
    model[1].weight = nn.Parameter(model[1].weight.detach().clone())


def nothing(model: nn.Module) -> None:
    """The remedy is an option of the step."""


REFUSALS = {
    "batch norm": Refusal(
        lambda: between(nn.BatchNorm1d(8)), "BatchNorm1d at '1'", "dpvd.fix does", dpvd.fix
    ),
    "batch norm with public statistics": Refusal(
        lambda: between(nn.BatchNorm1d(8)),
        "BatchNorm1d at '1'",
        "put it in eval mode",
        lambda model: model[1].eval() and None,
    ),
    "running statistics": Refusal(
        lambda: between(
            nn.Unflatten(1, (4, 2)),
            nn.InstanceNorm1d(4, track_running_stats=True),
            nn.Flatten(),
        ),
        "InstanceNorm1d at '2'",
        "dpvd.fix does",
        dpvd.fix,
    ),
    "fake quantisation": Refusal(
        lambda: between(FakeQuantize()),
        "FakeQuantize at '1'",
        "module.disable_observer()",
        lambda model: model[1].disable_observer(),
    ),
    "observer": Refusal(
        lambda: between(MinMaxObserver()),
        "MinMaxObserver at '1'",
        "Put nn.Identity() in its place",
        replaced(1, nn.Identity),
    ),
    "rescaled rows": Refusal(
        lambda: table(max_norm=1.0),
        "Embedding at '0'",
        "Set max_norm=None",
        put(0, max_norm=None),
        words,
    ),
    "counts in the batch": Refusal(
        lambda: table(scale_grad_by_freq=True),
        "Embedding at '0'",
        "Set scale_grad_by_freq=False",
        put(0, scale_grad_by_freq=False),
        words,
    ),
    "sparse gradients": Refusal(
        lambda: table(sparse=True),
        "Embedding at '0'",
        "Set sparse=False",
        put(0, sparse=False),
        words,
    ),
    "no shape yet": Refusal(
        lambda: nn.Sequential(nn.LazyLinear(CLASSES)),
        "LazyLinear at '0'",
        "Call the model once",
        call_once,
    ),
    "shared entries": Refusal(
        expanded, "Linear at '1'", "nn.Parameter(values.clone())", own_memory
    ),
    "half precision": Refusal(
        lambda: between().bfloat16(), "Linear at '0'", "Use model.float()", nn.Module.float
    ),
    "nothing to train": Refusal(
        lambda: between().requires_grad_(False),
        "Sequential has no",
        "Set requires_grad",
        lambda model: model[1].requires_grad_() and None,
    ),
    "mixing": Refusal(
        lambda: between(Centred()),
        "module '1' (Centred)",
        "Remove the mixing",
        replaced(1, nn.Tanh),
    ),
    "mixing that stays": Refusal(
        lambda: between(Centred()),
        "module '1' (Centred)",
        "take isolation='vmap'",
        nothing,
        isolation="vmap",
    ),
    "the number of examples": Refusal(
        lambda: between(ByCount()),
        "module '1' (ByCount)",
        "Leave the division out",
        put(1, divides=False),
    ),
    "memory": Refusal(
        lambda: between(Remembers()),
        "module '1' (Remembers)",
        "Keep nothing of the data",
        lambda model: model[1].eval() and None,
    ),
    "a buffer": Refusal(
        lambda: between(Remembers(buffer=True)),
        "buffer '1.mean'",
        "in eval mode",
        lambda model: model[1].eval() and None,
    ),
    "a moving weight": Refusal(
        lambda: between(MovesItsWeight()),
        "parameter '1.scale'",
        "Change it between steps",
        put(1, moves=False),
    ),
    "reentrant checkpoints": Refusal(
        lambda: between(Checkpointed()),
        "checkpointing in '1' (Checkpointed)",
        "use_reentrant=False",
        put(1, reentrant=False),
    ),
}


def train(model: nn.Module, data: tuple[Tensor, Tensor], isolation: str = "checked") -> PrivateStep:
    plan = PrivacyPlan(examples=COUNT, batch_size=COUNT, steps=2, noise_multiplier=1.0)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained or [nn.Parameter(torch.zeros(1))], lr=0.1)
    step = PrivateStep(model, loss_of, plan, optimizer, isolation=isolation)
    for batch in plan.batches(data):
        step(batch)
    return step


@pytest.mark.parametrize("case", REFUSALS)
def test_the_remedy_that_a_refusal_names_works(case):
    refusal = REFUSALS[case]
    model = refusal.make()
    data = refusal.data()
    with pytest.raises(DpvdError) as refused:
        train(model, data)
    assert refusal.module in str(refused.value)
    assert refusal.advice in str(refused.value)
    model = refusal.remedy(model) or model
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = train(model, data, refusal.isolation)
    assert step.taken == 2
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert moved == [parameter.requires_grad for parameter in model.parameters()]


def test_a_repair_that_does_not_know_the_channels_yet_works_after_a_call():
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.LazyBatchNorm1d(), nn.Linear(8, CLASSES))
    with pytest.raises(DpvdError, match=r"LazyBatchNorm1d at '1'.*: call the model first"):
        dpvd.fix(model)
    model(torch.zeros(2, FEATURES))
    assert train(dpvd.fix(model), numbers()).taken == 2
