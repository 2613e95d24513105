"""Rules of embeddings equal the oracle; options that cannot be private are refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dpvd.nn as dn
from dpvd.errors import DpvdError
from dpvd.grads import Clipping, clipped_grad
from tests.grads.conformance import assert_rule_equals_oracle, randomised, squares

WORDS = 5


class Tied(nn.Module):
    """Words in and scores of words out share one table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=1)
        self.scores = nn.Linear(width, WORDS)
        self.scores.weight = self.words.weight

    def forward(self, x):
        return self.scores(torch.tanh(self.words(x)))


def tokens(shape, generator):
    return torch.randint(WORDS, tuple(shape), generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    padding=st.sampled_from([None, 0, -1]),
    count=st.integers(0, 5),
    positions=st.lists(st.integers(1, 6), max_size=2),
    width=st.integers(1, 4),
    mode=st.sampled_from(["flat", "per-layer"]),
    seed=st.integers(0, 2**31),
)
def test_embedding(padding, count, positions, width, mode, seed):
    """Five words and up to 36 places: the same word comes several times in one example."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(WORDS, width, padding_idx=padding), nn.Tanh(), nn.Linear(width, 2)
    )
    batch = tokens((count, *positions), generator)
    result = assert_rule_equals_oracle(randomised(model, generator), batch, mode=mode)
    if padding is not None:
        assert not result.grads["0.weight"][padding].any()


@settings(max_examples=60, deadline=None)
@given(
    rates=st.sampled_from(["layer", "neuron", "weight"]),
    learned=st.booleans(),
    pruned=st.booleans(),
    padding=st.sampled_from([None, 0, -1]),
    count=st.integers(0, 4),
    positions=st.lists(st.integers(1, 6), max_size=2),
    seed=st.integers(0, 2**31),
)
def test_noisy_embedding(rates, learned, pruned, padding, count, positions, seed):
    generator = torch.Generator().manual_seed(seed)
    table = dn.AdditiveEmbedding(WORDS, 3, padding, rates=rates, learned=learned, log_sigma2=-2.0)
    model = randomised(nn.Sequential(table, nn.Tanh(), nn.Linear(3, 2)), generator)
    if pruned:
        with torch.no_grad():
            table.weight[2:3] *= 1e-9
        table.prune(3.0)
    assert_rule_equals_oracle(model, tokens((count, *positions), generator))


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 4),
    positions=st.integers(1, 6),
    width=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_a_table_tied_to_a_dense_layer(count, positions, width, seed):
    generator = torch.Generator().manual_seed(seed)
    assert_rule_equals_oracle(
        randomised(Tied(width), generator), tokens((count, positions), generator)
    )


def test_a_table_used_twice(generator):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, 3)

        def forward(self, x):
            return self.words(x) * torch.sin(self.words(x.flip(1)[:, :2])).sum(1, keepdim=True)

    assert_rule_equals_oracle(randomised(Twice(), generator), tokens((4, 3), generator))


@pytest.mark.parametrize(
    "option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}]
)
def test_options_that_cannot_be_private_are_refused(option, generator):
    model = nn.Sequential(nn.Embedding(WORDS, 3, **option)).double()
    with pytest.raises(DpvdError, match=rf"'0'.*Set {next(iter(option))}="):
        clipped_grad(model, squares, tokens((4, 3), generator), clipping=Clipping())
