"""A batch in slices gives what it gives as a whole, and no more than a slice passes through the
model at once.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpvd.errors import DpvdError
from dpvd.grads import (
    Clipping,
    ClippingMode,
    Engine,
    as_batch,
    batch_size,
    clipped_grad,
    micro_batches,
)
from dpvd.nn import NoiseTape, noise_from, sampling
from dpvd.privacy import Relation
from tests.grads.models import LAYERS, cross_entropy, make_batch, two_layers

ENGINES = [Engine.FACTORED, Engine.VMAP, Engine.LOOP]


def assert_same(sliced, whole, tolerance=1e-12):
    assert (sliced.count, sliced.non_finite, sliced.groups) == (
        whole.count,
        whole.non_finite,
        whole.groups,
    )
    assert set(sliced.jacobian) == set(whole.jacobian)
    for relation in Relation:
        assert sliced.sensitivity(relation) == whole.sensitivity(relation)
    torch.testing.assert_close(sliced.norms, whole.norms, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        sliced.losses, whole.losses, rtol=tolerance, atol=tolerance, equal_nan=True
    )
    torch.testing.assert_close(sliced.grads, whole.grads, rtol=tolerance, atol=tolerance)


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(0, 12),
    size=st.integers(1, 14),
    seed=st.integers(0, 99),
    mode=st.sampled_from(ClippingMode),
)
def test_any_slicing_gives_the_same_sum(count, size, seed, mode):
    model = two_layers(LAYERS["additive per weight"])
    batch = make_batch(count, torch.Generator().manual_seed(seed))
    with sampling(False):
        whole = clipped_grad(
            model, cross_entropy, batch, clipping=Clipping(mode, 0.5), engine="factored"
        )
        sliced = clipped_grad(
            model,
            cross_entropy,
            batch,
            clipping=Clipping(mode, 0.5),
            engine="factored",
            micro_batch=size,
        )
    assert_same(sliced, whole)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", ["linear", "type A per layer", "additive per weight", "no rule"])
def test_noise_is_drawn_for_each_example_in_slices_too(layer, engine, generator):
    """The noise of all slices, put together, gives the whole batch the same result: each row was
    one example's.
    """
    model, batch, tape = two_layers(LAYERS[layer]), make_batch(8, generator), NoiseTape()
    with noise_from(generator), tape.recording():
        sliced = clipped_grad(
            model, cross_entropy, batch, clipping=Clipping(), engine=engine, micro_batch=3
        )
    draws_per_slice = len(tape.draws) // 3
    assert len(tape.draws) == 3 * draws_per_slice
    together = NoiseTape()
    together.draws = [torch.cat(tape.draws[i::draws_per_slice]) for i in range(draws_per_slice)]
    assert [len(noise) for noise in together.draws] == [8] * draws_per_slice
    with together.replaying():
        whole = clipped_grad(model, cross_entropy, batch, clipping=Clipping(), engine=engine)
    assert_same(sliced, whole)


@pytest.mark.parametrize("size", [4, 64, 100, 300])
def test_slices_give_the_same_bits_where_torch_does(size, generator):
    model = torch.nn.Sequential(
        torch.nn.Linear(78, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10)
    ).double()
    x, y = (
        torch.rand(600, 78, generator=generator).double(),
        torch.randint(10, (600,), generator=generator),
    )
    weight, total = model[0].weight.detach(), torch.zeros(100, 78).double()
    apart = torch.cat([rows @ weight.T for rows in x.split(size)])
    for left, right in zip(apart.split(size), x.split(size), strict=True):
        total.addmm_(left.T, right)
    if not (
        torch.equal(apart, x @ weight.T)
        and torch.equal(total, torch.zeros_like(total).addmm_(apart.T, x))
    ):
        pytest.skip("torch's own products depend on how many rows there are")
    whole, sliced = (
        clipped_grad(
            model, cross_entropy, (x, y), clipping=Clipping(), engine="factored", micro_batch=limit
        )
        for limit in (None, size)
    )
    assert all(torch.equal(sliced.grads[name], grad) for name, grad in whole.grads.items())


def test_the_same_slicing_repeats_bit_for_bit(generator):
    model, batch = two_layers(LAYERS["additive per weight"]), make_batch(10, generator)
    results = []
    for _ in range(2):
        with noise_from(torch.Generator().manual_seed(1)):
            results.append(
                clipped_grad(model, cross_entropy, batch, clipping=Clipping(), micro_batch=4)
            )
    assert all(
        torch.equal(results[0].grads[name], results[1].grads[name]) for name in results[0].grads
    )
    assert torch.equal(results[0].norms, results[1].norms)


@pytest.mark.parametrize("engine", ENGINES)
def test_non_finite_examples_are_counted_over_all_slices(engine, generator):
    x, y = make_batch(9, generator)
    x[[1, 7, 8]] = math.nan
    model = two_layers(LAYERS["linear"])
    whole = clipped_grad(model, cross_entropy, (x, y), clipping=Clipping(), engine=engine)
    sliced = clipped_grad(
        model, cross_entropy, (x, y), clipping=Clipping(), engine=engine, micro_batch=2
    )
    assert sliced.non_finite == 3
    assert_same(sliced, whole)


@pytest.mark.parametrize(
    ("engine", "micro_batch"), [("factored", 4), ("vmap", 4), ("loop", 4), ("auto", 4), ("auto", 1)]
)
def test_no_more_than_a_slice_is_in_the_model_at_once(engine, micro_batch, generator):
    model, batch = two_layers(LAYERS["additive per weight"]), make_batch(50, generator)
    rows_seen = []
    for module in model:
        module.register_forward_hook(lambda module, args, output: rows_seen.append(len(output)))
    clipped_grad(
        model, cross_entropy, batch, clipping=Clipping(), engine=engine, micro_batch=micro_batch
    )
    assert max(rows_seen) == micro_batch


def test_an_example_moves_the_sum_by_no_more_than_the_sensitivity(generator):
    model, (x, y) = two_layers(LAYERS["linear"]), make_batch(11, generator)
    options = {"clipping": Clipping(clip_norm=0.1), "micro_batch": 3}
    more = clipped_grad(model, cross_entropy, (x * 50, y), **options)
    less = clipped_grad(
        model, cross_entropy, (x[1:] * 50, y[1:]), **options
    )  # every later slice is another one
    moved = torch.cat(
        [(more.grads[name] - less.grads[name]).flatten() for name in more.grads]
    ).norm()
    assert 0.09 < moved <= more.sensitivity(Relation.ADD_OR_REMOVE) + 1e-12


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "3"])
def test_a_slice_has_at_least_one_example(size, generator):
    with pytest.raises(DpvdError, match="micro_batch must be an integer of at least 1"):
        clipped_grad(
            two_layers(LAYERS["linear"]),
            cross_entropy,
            make_batch(4, generator),
            clipping=Clipping(),
            micro_batch=size,
        )


def test_slices_are_in_order_and_complete(generator):
    x, y = make_batch(7, generator)
    whole = as_batch((x, y))
    parts = list(micro_batches(whole, 3))
    assert [batch_size(part) for part in parts] == [3, 3, 1]
    assert torch.equal(torch.cat([part.tensors[0] for part in parts]), x)
    assert torch.equal(torch.cat([part.tensors[1] for part in parts]), y)
    empty = as_batch((x[:0], y[:0]))
    assert [batch_size(part) for part in micro_batches(empty, 3)] == [0]
    assert [batch_size(part) for part in micro_batches(whole, None)] == [7]
