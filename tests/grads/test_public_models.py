"""Networks that nobody here wrote: the fast engine equals a loop over examples, masks replayed."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from dpvd.grads import ClippedGradients, Clipping, Engine, GradientClipper
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep
from tests.grads.public_models import LORA_TARGETS, MODELS, WITH_LORA, build, make_examples

peft = pytest.importorskip("peft")

COUNT = 5
CLIPPING = Clipping("flat", clip_norm=1.0)


@pytest.fixture(autouse=True)
def in_double_precision(monkeypatch):
    """Some networks compute parts of themselves in float32, whatever they are given."""
    plain_to, plain_softmax = Tensor.to, nn.functional.softmax

    def wider(dtype):
        return torch.float64 if dtype is torch.float32 else dtype

    def to(self, *args, **kwargs):
        options = {key: wider(value) for key, value in kwargs.items()}
        return plain_to(self, *map(wider, args), **options)

    def softmax(x, dim=None, dtype=None, **options):
        return plain_softmax(x, dim=dim, dtype=wider(dtype), **options)

    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "float", lambda self: self.to(torch.float64))
    monkeypatch.setattr(nn.functional, "softmax", softmax)


def with_adapters(name: str, model: nn.Module, **options) -> nn.Module:
    config = peft.LoraConfig(
        r=2, lora_dropout=0.1, target_modules=LORA_TARGETS.get(name, "all-linear"), **options
    )
    with warnings.catch_warnings():  # of what its own libraries are about to rename
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config).double().train()
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_B" in key:  # zero at first, which would hide the gradients of lora_A
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    return adapted


def assert_equals_loop(model: nn.Module, loss_fn, batch: tuple[Tensor, ...]) -> None:
    """Norms and clipped sums are those of one backward pass for each example, masks and all."""
    clipper = GradientClipper(model, loss_fn, clipping=CLIPPING)
    for _ in clipper(batch):  # the first batch is tried out
        pass
    assert clipper.engine is Engine.FACTORED, clipper.passed_over
    torch.manual_seed(7)
    (ours,) = clipper(batch)
    norms, totals = one_by_one(model, loss_fn, batch, ours, seed=7)
    torch.testing.assert_close(ours.norms[:, 0], norms, rtol=1e-10, atol=1e-10)
    found = {name: torch.zeros_like(total) for name, total in totals.items()}
    ours.add_to(found)
    torch.testing.assert_close(found, totals, rtol=1e-10, atol=1e-10)


def one_by_one(
    model: nn.Module, loss_fn, batch: tuple[Tensor, ...], ours: ClippedGradients, seed: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms, and the sum of clipped gradients, by autograd alone."""
    parameters = ours.grouping.parameters
    torch.manual_seed(seed)
    losses = loss_fn(model, *batch)
    norms = []
    totals = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for loss, factor in zip(losses, ours.factors[:, 0], strict=True):
        found = torch.autograd.grad(
            loss, list(parameters.values()), retain_graph=True, materialize_grads=True
        )
        norms.append(torch.cat([grad.flatten() for grad in found]).norm())
        for name, grad in zip(parameters, found, strict=True):
            totals[name] += factor * grad
    return torch.stack(norms), totals


@pytest.mark.parametrize("name", MODELS)
def test_all_parameters_of_a_public_network(name, generator):
    _, loss_fn, _ = MODELS[name]
    assert_equals_loop(build(name), loss_fn, make_examples(name, COUNT, generator))


@pytest.mark.parametrize("name", WITH_LORA)
def test_low_rank_adapters_on_a_public_network(name, generator):
    _, loss_fn, _ = MODELS[name]
    model = with_adapters(name, build(name))
    assert_equals_loop(model, loss_fn, make_examples(name, COUNT, generator))


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_adapters_that_learn_magnitudes(name, generator):
    _, loss_fn, _ = MODELS[name]
    model = with_adapters(name, build(name), use_dora=True)
    assert_equals_loop(model, loss_fn, make_examples(name, COUNT, generator))


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "T5"])
def test_gradient_checkpointing(name, generator):
    _, loss_fn, _ = MODELS[name]
    model = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_equals_loop(model, loss_fn, make_examples(name, COUNT, generator))


@pytest.mark.parametrize("name", ["BERT", "ViT"])
def test_as_many_examples_as_positions(name, generator):
    """What the batch is was found on other sizes: an equal size later does not confuse it."""
    _, loss_fn, _ = MODELS[name]
    model = build(name)
    clipper = GradientClipper(model, loss_fn, clipping=CLIPPING, engine=Engine.FACTORED)
    for count in (4, 2, 6, 5, 1):
        batch = make_examples(name, count, generator)
        torch.manual_seed(7)
        (ours,) = clipper(batch)
        torch.manual_seed(7)
        (again,) = clipper(batch)
        norms, _ = one_by_one(model, loss_fn, batch, again, seed=7)
        torch.testing.assert_close(again.norms[:, 0], norms, rtol=1e-10, atol=1e-10)
        assert len(ours.losses) == count


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5", "ViT", "Mamba"])
def test_a_public_network_trains(name, generator):
    _, loss_fn, _ = MODELS[name]
    model = build(name).float()
    data = make_examples(name, 12, generator)
    data = tuple(part.float() if part.is_floating_point() else part for part in data)
    plan = PrivacyPlan(examples=12, batch_size=6, steps=2, noise_multiplier=1.0)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    step = PrivateStep(model, loss_fn, plan, torch.optim.AdamW(model.parameters(), lr=1e-3))
    for batch in plan.batches(data):
        step(batch)
    moved = [not torch.equal(before[key], value) for key, value in model.named_parameters()]
    assert all(moved)
    assert step.guarantee(delta=1e-5).epsilon > 0
