"""Batches in every container that collate functions make: one result, whatever they come in."""

import copy
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, GradientClipper, NotIsolated, as_batch, clipped_grad, rows
from dpvd.tree import leaves_of, mapped

Pair = namedtuple("Pair", ["x", "y"])


@dataclass(frozen=True, slots=True)
class Example:
    x: torch.Tensor
    y: torch.Tensor
    scale: float = 1.0


class Encoding(UserDict):
    """As transformers' BatchEncoding: a dictionary inside, and attributes beside it."""

    def __init__(self, data=None):
        super().__init__(data)
        self.note = "kept"


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def data(count: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (count,), generator=generator)


def nll(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


PACKINGS = {
    "tuple": (lambda x, y: (x, y), nll),
    "list": (lambda x, y: [x, y], nll),
    "flag": (lambda x, y: (x, y, True, None), lambda m, x, y, flag, none: nll(m, x, y)),
    "dict": (lambda x, y: {"x": x, "y": y}, lambda m, b: nll(m, b["x"], b["y"])),
    "ordered": (lambda x, y: OrderedDict(x=x, y=y), lambda m, b: nll(m, b["x"], b["y"])),
    "read-only": (
        lambda x, y: MappingProxyType({"x": x, "y": y}),
        lambda m, b: nll(m, b["x"], b["y"]),
    ),
    "user dict": (
        lambda x, y: Encoding({"x": x, "y": y}),
        lambda m, b: nll(m, b["x"], b["y"]) * (b.note == "kept"),
    ),
    "named tuple": (Pair, lambda m, b: nll(m, b.x, b.y)),
    "dataclass": (Example, lambda m, b: b.scale * nll(m, b.x, b.y)),
    "nested": (
        lambda x, y: ({"deep": [x, {"unused": x}]}, y),
        lambda m, inputs, y: nll(m, inputs["deep"][0], y),
    ),
}


@pytest.mark.parametrize("engine", ["auto", "factored", "vmap", "loop"])
@pytest.mark.parametrize("name", PACKINGS)
def test_containers_do_not_change_the_result(name, engine):
    pack, loss_fn = PACKINGS[name]
    options = {"clipping": Clipping("flat", 0.3), "engine": engine, "micro_batch": 3}
    expected = clipped_grad(network(), nll, data(), **options)
    found = clipped_grad(network(), loss_fn, pack(*data()), **options)
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-12, atol=0)
    for key, gradient in expected.grads.items():
        torch.testing.assert_close(found.grads[key], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", PACKINGS)
def test_mixing_is_found_in_every_container(name):
    pack, loss_fn = PACKINGS[name]

    def mixing(model, *batch):
        losses = loss_fn(model, *batch)
        return losses + 0.1 * losses.mean()

    with pytest.raises(NotIsolated, match="changes when the other examples"):
        clipped_grad(network(), mixing, pack(*data(32)), clipping=Clipping())


@pytest.mark.parametrize("name", PACKINGS)
def test_a_batch_is_put_together_as_it_was(name):
    pack, _ = PACKINGS[name]
    original = pack(*data())
    whole = as_batch(original).packed()
    assert type(whole) is type(original)
    for (path, ours), (same_path, given) in zip(leaves_of(whole), leaves_of(original), strict=True):
        assert path == same_path
        assert ours is given
    part = rows(as_batch(original), slice(2, 4)).packed()
    lengths = {len(leaf) for _, leaf in leaves_of(part) if isinstance(leaf, torch.Tensor)}
    assert lengths == {2}


def test_outputs_of_transformers_are_containers():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    x, y = data()
    batch = outputs.SequenceClassifierOutput(logits=x, hidden_states=(y,))
    part = rows(as_batch(batch), slice(0, 3)).packed()
    assert isinstance(part, outputs.SequenceClassifierOutput)
    assert torch.equal(part.logits, x[:3])
    assert torch.equal(part["hidden_states"][0], y[:3])


def test_the_original_is_left_alone():
    x, y = data()
    batch = Encoding({"x": x, "y": y})
    before = copy.copy(batch.data)
    mapped(lambda leaf: None, batch)
    assert batch.data == before


WRONG = {
    "nothing": ((), "a batch must be a tensor"),
    "empty dict": ({}, "got a dict"),
    "words": ({"x": torch.zeros(2, 4), "text": ["a", "b"]}, r"batch\['text'\] is a list of str"),
    "an object": ((torch.zeros(2), object()), r"batch\[1\] is an object"),
    "an array": ({"x": torch.zeros(2).numpy()}, r"batch\['x'\] is a ndarray"),
    "no rows": ((torch.zeros(2), torch.tensor(1.0)), "give a constant as a plain number"),
    "lengths": ({"x": torch.zeros(5, 2), "y": torch.zeros(2)}, r"batch\['x'\] 5, batch\['y'\] 2"),
    "packed": ((pack_sequence([torch.ones(1), torch.ones(1)]), torch.zeros(2)), "PackedSequence"),
    "nested": (
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        "nested tensor",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_row_for_each_example_is_refused(name):
    batch, message = WRONG[name]
    with pytest.raises(DpvdError, match=message):
        clipped_grad(network(), nll, batch, clipping=Clipping())


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": 0, "y": 1, "longest": 9}, r"batch\['longest'\] is 9, which it was not"),
        ({"x": 0, "y": 1, "longest": True}, r"batch\['longest'\] is True"),
        ({"x": 0, "y": 1}, r"batch\['longest'\] was 1 in the first batch"),
        ({"x": 0, "y": 1, "longest": 1, "more": 0}, r"batch\['more'\] is a tensor"),
    ],
)
def test_what_is_shared_must_be_constant(second, message):
    """The length of the longest sequence, given to every example, tells it of the others."""
    tensors = data()
    clipper = GradientClipper(network(), lambda m, b: nll(m, b["x"], b["y"]), clipping=Clipping())
    first = {"x": tensors[0], "y": tensors[1], "longest": 1}
    list(clipper(first))
    list(clipper(dict(first)))
    places = ("x", "y", "more")
    changed = {key: tensors[value] if key in places else value for key, value in second.items()}
    with pytest.raises(NotIsolated, match=message):
        list(clipper(changed))


class TestCriteria:
    def test_a_criterion_takes_outputs_and_targets(self):
        options = {"clipping": Clipping("flat", 0.3)}
        expected = clipped_grad(network(), nll, data(), **options)
        found = clipped_grad(network(), nn.CrossEntropyLoss(reduction="none"), data(), **options)
        assert all(torch.equal(found.grads[name], expected.grads[name]) for name in found.grads)

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_one_that_reduces_is_refused(self, reduction):
        with pytest.raises(DpvdError, match=r"take CrossEntropyLoss\(reduction='none'\)"):
            clipped_grad(
                network(), nn.CrossEntropyLoss(reduction=reduction), data(), clipping=Clipping()
            )

    def test_it_needs_targets(self):
        with pytest.raises(DpvdError, match="inputs and targets"):
            clipped_grad(
                network(), nn.MSELoss(reduction="none"), {"x": data()[0]}, clipping=Clipping()
            )

    def test_more_than_one_value_per_example_is_refused(self):
        x, _ = data()
        with pytest.raises(DpvdError, match=r"losses.flatten\(1\).mean\(1\)"):
            clipped_grad(
                network(), nn.MSELoss(reduction="none"), (x, x[:, :3]), clipping=Clipping()
            )

    def test_what_cannot_be_called_is_refused(self):
        with pytest.raises(DpvdError, match="the loss must be a function"):
            clipped_grad(network(), "cross_entropy", data(), clipping=Clipping())
