"""Networks that nobody here wrote: the fast engine equals a loop over examples, masks replayed."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from dpvd.grads import ClippedGradients, Clipping, Engine, GradientClipper
from tests.grads.public_models import MODELS, WITH_LORA, build, make_examples, with_adapters

pytest.importorskip("peft")

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
