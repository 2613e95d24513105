"""What is refused, why, and what the repair makes of it."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MinMaxObserver

import dpvd
from dpvd.errors import DpvdError
from dpvd.grads import Clipping, clipped_grad
from tests.grads.models import cross_entropy, make_batch


def lookup(embedding: nn.Module) -> nn.Module:
    return nn.Sequential(embedding, nn.Flatten(), nn.Linear(12, 3))


def with_expanded_weight() -> nn.Module:
    layer = nn.Linear(5, 3)
    layer.weight = nn.Parameter(torch.zeros(3, 1).expand(3, 5))
    return layer


# A model and what is said of it: name of the module, words of the reason, words of the replacement.
BROKEN = {
    "batch norm": (
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)),
        "1",
        "statistics of the whole batch",
        "GroupNorm",
    ),
    "batch norm 2d": (
        nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)),
        "1",
        "whole batch",
        "GroupNorm",
    ),
    "frozen batch norm": (
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8).requires_grad_(False)),
        "1",
        "whole batch",
        "eval mode",
    ),
    "batch norm without statistics, in eval mode": (
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8, track_running_stats=False)).eval(),
        "1",
        "whole batch",
        "GroupNorm",
    ),
    "instance norm with statistics": (
        nn.Sequential(nn.Conv1d(5, 8, 1), nn.InstanceNorm1d(8, track_running_stats=True)),
        "1",
        "keeps running statistics",
        "track_running_stats=False",
    ),
    "observer": (
        nn.Sequential(nn.Linear(5, 3), MinMaxObserver()),
        "1",
        "range of what passes",
        "quantise after training",
    ),
    "embedding that rescales": (
        lookup(nn.Embedding(9, 4, max_norm=1.0)),
        "0",
        "rows",
        "max_norm=None",
    ),
    "embedding that counts": (
        lookup(nn.Embedding(9, 4, scale_grad_by_freq=True)),
        "0",
        "counts",
        "False",
    ),
    "sparse embedding": (
        lookup(nn.Embedding(9, 4, sparse=True)),
        "0",
        "sparse gradients",
        "sparse=False",
    ),
    "bag that rescales": (
        nn.Sequential(nn.EmbeddingBag(9, 4, max_norm=1.0)),
        "0",
        "rows",
        "max_norm=None",
    ),
    "lazy": (nn.Sequential(nn.LazyLinear(3)), "0", "without a shape", "Call the model once"),
    "half precision": (nn.Sequential(nn.Linear(5, 3).half()), "0", "torch.float16", "model.float"),
    "bfloat16": (nn.Sequential(nn.Linear(5, 3).bfloat16()), "0", "torch.bfloat16", "model.float"),
    "entries that share memory": (
        nn.Sequential(with_expanded_weight()),
        "0",
        "share memory",
        "clone()",
    ),
    "all frozen": (
        nn.Linear(5, 3).requires_grad_(False),
        "",
        "no trainable parameter",
        "requires_grad",
    ),
}

FINE = {
    "dense": nn.Sequential(nn.Linear(5, 8), nn.Dropout(), nn.Linear(8, 3)),
    "other norms": nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.LayerNorm(4)
    ),
    "batch norm in eval mode": nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8)).eval(),
    "plain embedding": lookup(nn.Embedding(9, 4)),
    "frozen half precision": nn.Sequential(
        nn.Linear(5, 8).half().requires_grad_(False), nn.Linear(8, 3)
    ),
    "variational": dpvd.variational(nn.Sequential(nn.Linear(5, 3))),
}


@pytest.mark.parametrize("case", BROKEN)
def test_problems_are_named_with_reason_and_replacement(case):
    model, module, reason, replacement = BROKEN[case]
    (problem,) = dpvd.check(model)
    assert problem.module == module
    assert problem.kind == type(model.get_submodule(module)).__name__
    assert reason in problem.reason
    assert replacement in problem.replacement
    for part in (problem.kind, problem.module, problem.reason, problem.replacement):
        assert part in str(problem)


@pytest.mark.parametrize("case", BROKEN)
def test_gradients_are_refused_for_the_same_reason(case, generator):
    model = BROKEN[case][0]
    with pytest.raises(DpvdError) as refusal:
        clipped_grad(model, cross_entropy, make_batch(4, generator), clipping=Clipping())
    assert str(refusal.value) == str(dpvd.check(model)[0])


def test_fake_quantisation_is_refused_while_it_observes():
    quantise = FakeQuantize()
    assert [problem.module for problem in dpvd.check(nn.Sequential(nn.Linear(5, 3), quantise))] == [
        "1"
    ]
    quantise.disable_observer()
    assert dpvd.check(nn.Sequential(nn.Linear(5, 3), quantise)) == []


@pytest.mark.parametrize("case", FINE)
def test_nothing_is_said_of_sound_models(case):
    assert dpvd.check(FINE[case]) == []


def test_all_problems_are_listed_and_the_refusal_counts_them(generator):
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3).half(), nn.BatchNorm1d(3)
    )
    assert [problem.module for problem in dpvd.check(model)] == ["1", "2", "3"]
    with pytest.raises(DpvdError, match=r"'1'.*\(2 more: dpvd\.check\(model\) lists all\)"):
        clipped_grad(model, cross_entropy, make_batch(4, generator), clipping=Clipping())


def test_max_norm_really_shows_what_was_looked_up():
    """Why it is refused: the forward pass alone changes the rows that the batch holds."""
    embedding = nn.Embedding(9, 4, max_norm=0.01)
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([[2, 7]]))
    assert (embedding.weight != before).any(1).nonzero().flatten().tolist() == [2, 7]


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(8, 1), (16, 2), (64, 8), (512, 32), (7, 1), (1, 1), (96, 12), (34, 2), (37, 1), (1000, 25)],
)
def test_groups_divide_the_channels_and_are_not_too_small(channels, groups):
    fixed = dpvd.fix(nn.Sequential(nn.BatchNorm2d(channels)))
    assert isinstance(fixed[0], nn.GroupNorm)
    assert (fixed[0].num_groups, fixed[0].num_channels) == (groups, channels)


def test_the_repair_keeps_affine_weights_and_leaves_the_model_alone(generator):
    norm = nn.BatchNorm1d(16, eps=1e-3).double()
    with torch.no_grad():
        norm.weight.uniform_(generator=generator)
        norm.bias.uniform_(generator=generator)
    norm.bias.requires_grad_(False)
    model = nn.Sequential(nn.Linear(5, 16).double(), norm, nn.Linear(16, 3).double())
    before = copy.deepcopy(model.state_dict())
    fixed = dpvd.fix(model)
    assert type(model[1]) is nn.BatchNorm1d
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(fixed[1].weight, norm.weight)
    torch.testing.assert_close(fixed[1].bias, norm.bias)
    assert (fixed[1].weight.requires_grad, fixed[1].bias.requires_grad, fixed[1].eps) == (
        True,
        False,
        1e-3,
    )
    assert fixed[1].weight is not norm.weight


def test_the_repaired_model_trains_like_the_oracle(generator):
    model = nn.Sequential(
        nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)
    ).double()
    fixed, batch = dpvd.fix(model), make_batch(6, generator)
    assert dpvd.check(fixed) == []
    ours = clipped_grad(fixed, cross_entropy, batch, clipping=Clipping())
    truth = clipped_grad(fixed, cross_entropy, batch, clipping=Clipping(), engine="loop")
    torch.testing.assert_close(ours.grads, truth.grads, rtol=1e-9, atol=1e-9)
    assert ours.grads["1.weight"].abs().min() > 0


def test_the_repair_says_what_it_did(caplog):
    model = nn.Sequential(
        nn.Conv1d(5, 16, 1),
        nn.BatchNorm1d(16, affine=False),
        nn.InstanceNorm1d(16, track_running_stats=True),
    )
    with caplog.at_level(logging.INFO, logger="dpvd"):
        fixed = dpvd.fix(model)
    said = (
        "1: BatchNorm1d became GroupNorm of 2 groups; 2: InstanceNorm1d keeps no running statistics"
    )
    assert str(fixed.repair) == said
    assert said in caplog.text
    assert dpvd.check(fixed) == []
    assert not list(fixed.buffers())
    assert str(dpvd.fix(fixed).repair) == "nothing to repair"


def test_a_shared_norm_stays_shared_and_a_bare_one_is_replaced():
    norm = nn.BatchNorm1d(16)
    fixed = dpvd.fix(nn.ModuleDict({"a": norm, "b": nn.Sequential(norm)}))
    assert isinstance(fixed["a"], nn.GroupNorm)
    assert fixed["a"] is fixed["b"][0]
    assert isinstance(dpvd.fix(norm), nn.GroupNorm)


def test_a_norm_of_unknown_size_is_refused():
    with pytest.raises(DpvdError, match="LazyBatchNorm1d at '0' does not know its channels yet"):
        dpvd.fix(nn.Sequential(nn.LazyBatchNorm1d()))
