"""Samplers: what is drawn is what the account assumes, and the checks that say so reject other
samplers.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.mechanisms import (
    CyclicSampler,
    FixedSizeSampler,
    Partition,
    PoissonSampler,
    Sampler,
    SeededBits,
    SystemBits,
)
from dpvd.privacy import cyclic_event, fixed_size_event, poisson_event
from tests.mechanisms.statistics import (
    ALARM,
    fixed_size_p_value,
    fixed_size_weights,
    poisson_p_value,
    poisson_weights,
    subsets_p_value,
)

EXAMPLES, STEPS, PROB = 400, 2000, 0.1
BATCH = int(EXAMPLES * PROB)


def draws(sampler: Sampler, examples: int, steps: int) -> np.ndarray:
    bits = SystemBits()
    taken = np.zeros((steps, examples), dtype=bool)
    for row in taken:
        row[sampler.draw(examples, bits).numpy()] = True
    return taken


def shuffled_epochs(rng: np.random.Generator) -> np.ndarray:
    """What an ordinary data loader does: each epoch is cut into batches of a shuffled data set."""
    taken = np.zeros((STEPS, EXAMPLES), dtype=bool)
    for epoch in range(STEPS * BATCH // EXAMPLES):
        for step, batch in enumerate(rng.permutation(EXAMPLES).reshape(-1, BATCH)):
            taken[epoch * EXAMPLES // BATCH + step, batch] = True
    return taken


def uniform_subsets(rng: np.random.Generator) -> np.ndarray:
    return rng.permuted(np.arange(EXAMPLES) < np.full((STEPS, 1), BATCH), axis=1)


def independent(rng: np.random.Generator, prob: float = PROB) -> np.ndarray:
    return rng.random((STEPS, EXAMPLES)) < prob


def biased(rng: np.random.Generator) -> np.ndarray:
    return rng.random((STEPS, EXAMPLES)) < np.linspace(0.8 * PROB, 1.2 * PROB, EXAMPLES)


def without_last(rng: np.random.Generator) -> np.ndarray:
    taken = independent(rng)
    taken[:, -1] = False
    return taken


def pairwise(rng: np.random.Generator) -> np.ndarray:
    return independent(rng)[:, ::2].repeat(2, axis=1)


def each_batch_twice(rng: np.random.Generator) -> np.ndarray:
    return independent(rng)[::2].repeat(2, axis=0)


def with_replacement(rng: np.random.Generator) -> np.ndarray:
    taken = np.zeros((STEPS, EXAMPLES), dtype=bool)
    for row in taken:
        row[rng.integers(EXAMPLES, size=BATCH)] = True
    return taken


def subsets_twice(rng: np.random.Generator) -> np.ndarray:
    return uniform_subsets(rng)[::2].repeat(2, axis=0)


def favoured_subsets(rng: np.random.Generator) -> np.ndarray:
    keys = rng.random((STEPS, EXAMPLES)) * np.linspace(0.9, 1.1, EXAMPLES)
    return keys.argsort(axis=1).argsort(axis=1) < BATCH


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20170)


class TestPoissonSampler:
    def test_draws_agree_with_the_account(self) -> None:
        taken = draws(PoissonSampler(PROB), EXAMPLES, STEPS)
        assert poisson_p_value(taken, PROB) > ALARM
        assert poisson_p_value(taken, PROB * 2 / 3) < ALARM
        assert poisson_p_value(taken, PROB * 3 / 2) < ALARM

    @pytest.mark.parametrize(
        "fault",
        [shuffled_epochs, uniform_subsets, biased, without_last, pairwise, each_batch_twice],
    )
    def test_other_samplers_are_rejected(
        self, fault: Callable[[np.random.Generator], np.ndarray], rng: np.random.Generator
    ) -> None:
        assert poisson_p_value(fault(rng), PROB) < ALARM

    @pytest.mark.parametrize("prob", [0.3, 0.6])
    def test_every_subset_and_pair_of_subsets_has_its_probability(self, prob: float) -> None:
        taken = draws(PoissonSampler(prob), 3, 40_000)
        assert subsets_p_value(taken, poisson_weights(3, prob)) > ALARM
        assert subsets_p_value(taken.reshape(20_000, 6), poisson_weights(6, prob)) > ALARM
        assert subsets_p_value(taken, poisson_weights(3, prob * 0.95)) < ALARM

    def test_indices_are_sorted_distinct_and_of_type_int64(self) -> None:
        indices = PoissonSampler(0.3).draw(1000, SystemBits())
        assert indices.dtype == torch.int64
        assert (indices.diff() > 0).all()
        assert int(indices[-1]) < 1000

    def test_threshold_is_exact(self) -> None:
        taken = PoissonSampler(0.25).draw(4, Words([2**62 - 1, 2**62, 0, 2**64 - 1]))
        assert taken.tolist() == [0, 2]
        below_one = float(np.nextafter(1.0, 0.0))
        assert PoissonSampler(below_one).draw(
            2, Words([2**64 - 2**11 - 1, 2**64 - 2**11])
        ).tolist() == [0]

    def test_empty_draws_happen(self) -> None:
        indices = PoissonSampler(1e-9).draw(10, SystemBits())
        assert indices.shape == (0,)
        assert indices.dtype == torch.int64

    def test_probability_one_takes_all(self) -> None:
        assert torch.equal(PoissonSampler(1).draw(100, SystemBits()), torch.arange(100))

    def test_event_is_the_one_of_the_account(self) -> None:
        assert PoissonSampler(0.25).event(1.5, 40) == poisson_event(1.5, 0.25, 40)

    def test_expected_batch_and_description(self) -> None:
        assert PoissonSampler(0.25).expected_batch(1437) == 0.25 * 1437
        assert PoissonSampler(0.01).describe() == "Poisson sampling with probability 0.01"

    @pytest.mark.parametrize("prob", [0.0, -0.1, 1.0001, float("nan"), True, "0.1"])
    def test_bad_probabilities_are_refused(self, prob: float) -> None:
        with pytest.raises(DpvdError, match="sampling_prob must be above 0 and at most 1"):
            PoissonSampler(prob)

    @pytest.mark.parametrize("examples", [0, -3, 2.0])
    def test_bad_sizes_are_refused(self, examples: int) -> None:
        with pytest.raises(DpvdError, match="examples"):
            PoissonSampler(0.5).draw(examples, SystemBits())


class TestFixedSizeSampler:
    def test_draws_agree_with_the_account(self) -> None:
        taken = draws(FixedSizeSampler(BATCH, EXAMPLES), EXAMPLES, STEPS)
        assert fixed_size_p_value(taken, BATCH) > ALARM

    @pytest.mark.parametrize(
        "fault", [shuffled_epochs, independent, with_replacement, subsets_twice, favoured_subsets]
    )
    def test_other_samplers_are_rejected(
        self, fault: Callable[[np.random.Generator], np.ndarray], rng: np.random.Generator
    ) -> None:
        assert fixed_size_p_value(fault(rng), BATCH) < ALARM

    @pytest.mark.parametrize("batch_size", [1, 2, 4])
    def test_every_subset_is_equally_likely(self, batch_size: int) -> None:
        taken = draws(FixedSizeSampler(batch_size, 5), 5, 20_000)
        assert subsets_p_value(taken, fixed_size_weights(5, batch_size)) > ALARM
        assert subsets_p_value(taken & ~taken[:, ::-1], fixed_size_weights(5, batch_size)) < ALARM

    def test_indices_are_sorted_distinct_and_of_type_int64(self) -> None:
        indices = FixedSizeSampler(37, 1000).draw(1000, SystemBits())
        assert indices.dtype == torch.int64
        assert indices.shape == (37,)
        assert (indices.diff() > 0).all()

    @pytest.mark.parametrize("batch_size", [1, 2, 37, 2500, 4999])
    def test_the_subset_is_where_the_smallest_keys_are(
        self, batch_size: int, rng: np.random.Generator
    ) -> None:
        keys = rng.integers(0, 2**64, 5000, dtype=np.uint64)
        drawn = FixedSizeSampler(batch_size, 5000).draw(5000, Words(keys.tolist()))
        assert drawn.tolist() == sorted(keys.argsort()[:batch_size].tolist())

    def test_a_batch_of_all_takes_all(self) -> None:
        assert torch.equal(FixedSizeSampler(50, 50).draw(50, SystemBits()), torch.arange(50))

    def test_event_is_the_one_of_the_account(self) -> None:
        assert FixedSizeSampler(64, 1437).event(2.0, 9) == fixed_size_event(2.0, 64, 1437, 9)

    def test_expected_batch_and_description(self) -> None:
        assert FixedSizeSampler(64, 1437).expected_batch(1437) == 64.0
        assert (
            FixedSizeSampler(6, 10).describe()
            == "fixed-size sampling of 6 of 10 without replacement"
        )

    def test_another_data_set_is_refused(self) -> None:
        sampler = FixedSizeSampler(5, 100)
        with pytest.raises(DpvdError, match="accounted for 100 examples, but the data has 99"):
            sampler.draw(99, SystemBits())
        with pytest.raises(DpvdError, match="for 100 examples, got 101"):
            sampler.expected_batch(101)

    @pytest.mark.parametrize(
        ("batch_size", "examples"), [(0, 5), (6, 5), (-1, 5), (2.0, 5), (1, 0)]
    )
    def test_bad_sizes_are_refused(self, batch_size: int, examples: int) -> None:
        with pytest.raises(DpvdError, match=r"batch_size|examples"):
            FixedSizeSampler(batch_size, examples)


class TestCyclicSampler:
    def test_each_part_in_its_turn_is_sampled_as_the_account_assumes(self) -> None:
        bits = SystemBits()
        partition = Partition.drawn(EXAMPLES, 4, bits)
        taken = np.zeros((STEPS, EXAMPLES), dtype=bool)
        for step, row in enumerate(taken):
            row[CyclicSampler(PROB, 4).draw(partition, step, bits).numpy()] = True
        in_turn = np.arange(STEPS)[:, None] % 4 == partition.parts
        assert not taken[~in_turn].any()
        for part in range(4):
            own = taken[part::4][:, partition.parts == part]
            assert poisson_p_value(own, PROB) > ALARM
            assert poisson_p_value(own, PROB * 2 / 3) < ALARM
            assert poisson_p_value(own, PROB * 3 / 2) < ALARM

    def test_parts_are_uniform_and_independent(self) -> None:
        partition = Partition.drawn(60_000, 3, SystemBits())
        hits = partition.parts.reshape(20_000, 3) == np.arange(3)
        assert poisson_p_value(hits, 1 / 3) > ALARM
        assert poisson_p_value(hits, 0.3) < ALARM

    def test_removing_an_example_moves_no_other(self) -> None:
        """Whatever bits it had: parts by position, or of equal size, would move them."""
        words = np.random.default_rng(1).integers(0, 2**64, 101, dtype=np.uint64).tolist()
        all_of_them = Partition.drawn(101, 5, Words(words)).parts
        without = Partition.drawn(100, 5, Words(words[:30] + words[31:])).parts
        assert np.array_equal(np.delete(all_of_them, 30), without)

    def test_probability_one_takes_the_part(self) -> None:
        partition = Partition(2, np.array([0, 1, 1, 0], np.uint8))
        drawn = [CyclicSampler(1.0, 2).draw(partition, t, SystemBits()).tolist() for t in range(3)]
        assert drawn == [[0, 3], [1, 2], [0, 3]]

    def test_another_number_of_parts_is_refused(self) -> None:
        partition = Partition(2, np.array([0, 1, 1, 0], np.uint8))
        with pytest.raises(DpvdError, match="accounted for 3 parts of the data, got 2"):
            CyclicSampler(1.0, 3).draw(partition, 0, SystemBits())

    @pytest.mark.parametrize(("steps", "cycles"), [(40, 10), (41, 11), (3, 1)])
    def test_event_is_the_one_of_the_account(self, steps: int, cycles: int) -> None:
        event = CyclicSampler(0.25, 4).event(1.5, steps)
        assert event == cyclic_event(1.5, 0.25, 4, steps)
        assert event.count == cycles
        assert event.event.sampling_probability == 0.25

    def test_expected_batch_and_description(self) -> None:
        assert CyclicSampler(0.2, 4).expected_batch(1000) == 50
        assert CyclicSampler(0.2, 4).describe() == (
            "Poisson sampling with probability 0.2 from one of 4 random parts of the data after"
            " the other"
        )
        assert CyclicSampler(1.0, 4).describe().startswith("all from one of 4 random parts")

    @pytest.mark.parametrize(("prob", "bands"), [(0.0, 2), (1.1, 2), (0.5, 0), (0.5, 2.0)])
    def test_bad_numbers_are_refused(self, prob: float, bands: int) -> None:
        with pytest.raises(DpvdError, match=r"sampling_prob|bands"):
            CyclicSampler(prob, bands)


@pytest.mark.parametrize(
    "sampler", [PoissonSampler(0.1), PoissonSampler(1.0), FixedSizeSampler(40, 400)]
)
def test_seeded_draws_can_be_resumed(sampler: Sampler) -> None:
    bits = SeededBits(4, "sampling")
    sampler.draw(400, bits)
    position = bits.position
    assert position == sampler.bytes_per_draw(400)
    expected = sampler.draw(400, bits)
    resumed = SeededBits(4, "sampling")
    resumed.position = position
    assert torch.equal(sampler.draw(400, resumed), expected)


class Words:
    """A source that yields the given 64-bit words."""

    description = "given words"
    private = False

    def __init__(self, words: list[int]) -> None:
        self.words = np.array(words, dtype=np.uint64)

    def fill(self, buffer: np.ndarray) -> None:
        buffer[:] = self.words.view(np.uint8)
