"""The plan: what it refuses, that its two readers see the same thing, and that it survives being
written down.
"""

import json
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, ClippingMode
from dpvd.mechanisms import SeededBits, SystemBits
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, poisson_event
from tests.mechanisms.statistics import ALARM, fixed_size_p_value, poisson_p_value

EXAMPLES = 60


def drawn(plan: PrivacyPlan, **options: bool) -> np.ndarray:
    """[steps, examples]: who took part in each of the plan's batches, as seen from the data
    alone.
    """
    rows = torch.arange(plan.examples)
    taken = np.zeros((plan.steps, plan.examples), dtype=bool)
    for step, (batch,) in enumerate(plan.batches((rows,), **options)):
        taken[step, batch.numpy()] = True
    return taken


def shuffled_epochs(plan: PrivacyPlan, generator: torch.Generator) -> np.ndarray:
    """What a shuffling data loader would do instead."""
    taken = np.zeros((plan.steps, plan.examples), dtype=bool)
    for step in range(plan.steps):
        if step % (plan.examples // plan.batch_size) == 0:
            order = torch.randperm(plan.examples, generator=generator).split(plan.batch_size)
        taken[step, order[step % len(order)].numpy()] = True
    return taken


def test_poisson_batches_are_what_the_account_assumes(generator):
    plan = PrivacyPlan(EXAMPLES, 15, steps=3000, noise_multiplier=1.0)
    assert plan.event() == poisson_event(1.0, 0.25, 3000)
    assert poisson_p_value(drawn(plan), plan.sampling_prob) > ALARM
    assert poisson_p_value(shuffled_epochs(plan, generator), plan.sampling_prob) < ALARM


def test_fixed_size_batches_are_what_the_account_assumes(generator):
    plan = PrivacyPlan(
        EXAMPLES,
        15,
        steps=3000,
        noise_multiplier=1.0,
        sampling="fixed-size",
        relation="replace-one",
    )
    assert fixed_size_p_value(drawn(plan), 15) > ALARM
    assert fixed_size_p_value(shuffled_epochs(plan, generator), 15) < ALARM


def test_batches_keep_examples_together():
    plan = PrivacyPlan(EXAMPLES, 15, steps=5, noise_multiplier=1.0)
    x, y = torch.arange(EXAMPLES), -torch.arange(EXAMPLES)
    batches = list(plan.batches((x, y)))
    assert len(batches) == 5
    assert all(torch.equal(bx, -by) for bx, by in batches)
    assert len(list(plan.batches((x, y), start=3))) == 2


def test_batches_of_memory_mapped_bytes_are_those_of_memory_and_stay_bytes(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, size=(EXAMPLES, 3, 5), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = torch.from_numpy(np.load(tmp_path / "images.npy", mmap_mode="c"))
    plan = PrivacyPlan(EXAMPLES, 15, steps=20, noise_multiplier=1.0, noise="seeded", seed=4)
    from_file, from_memory = (list(plan.batches((x,))) for x in (mapped, torch.from_numpy(images)))
    assert all(torch.equal(a, b) for (a,), (b,) in zip(from_file, from_memory, strict=True))
    assert {x.dtype for (x,) in from_file} == {torch.uint8}
    assert len({len(x) for (x,) in from_file}) > 1


def test_prefetched_batches_are_what_the_account_assumes():
    plan = PrivacyPlan(EXAMPLES, 15, steps=3000, noise_multiplier=1.0)
    assert poisson_p_value(drawn(plan, prefetch=True), plan.sampling_prob) > ALARM


def test_prefetching_reads_one_batch_ahead_and_none_of_a_seeded_stream():
    read: list[int] = []

    class Watched(torch.Tensor):
        def index_select(self, *args):  # how rows are gathered
            read.append(threading.get_ident())
            return torch.Tensor.index_select(self.as_subclass(torch.Tensor), *args)

    rows = torch.arange(EXAMPLES).as_subclass(Watched)
    plan = PrivacyPlan(EXAMPLES, 15, steps=5, noise_multiplier=1.0)
    batches = plan.batches((rows,), prefetch=True)
    next(batches)
    batches.close()
    assert len(read) == 2
    assert threading.get_ident() not in read
    read.clear()
    seeded, bits = replace(plan, noise="seeded", seed=1), SeededBits(1, "sampling")
    batches = seeded.batches((rows,), bits=bits, prefetch=True)
    next(batches)
    assert read == [threading.get_ident()]
    in_step = SeededBits(1, "sampling")
    next(seeded.batches((rows,), bits=in_step))
    assert bits.position == in_step.position


def test_what_goes_wrong_while_prefetching_is_raised():
    class Broken(torch.Tensor):
        def index_select(self, *args):
            raise OSError("the file is gone")

    plan = PrivacyPlan(EXAMPLES, 15, steps=5, noise_multiplier=1.0)
    with pytest.raises(OSError, match="the file is gone"):
        list(plan.batches((torch.arange(EXAMPLES).as_subclass(Broken),), prefetch=True))


def test_batches_are_brought_to_the_device_that_is_asked_for():
    plan = PrivacyPlan(EXAMPLES, 15, steps=2, noise_multiplier=1.0)
    data = torch.arange(EXAMPLES), torch.zeros(EXAMPLES, 3)
    assert {x.device.type for batch in plan.batches(data, device="meta") for x in batch} == {"meta"}
    assert {x.device.type for batch in plan.batches(data) for x in batch} == {"cpu"}


def test_seeded_batches_repeat_and_system_batches_do_not():
    seeded = PrivacyPlan(EXAMPLES, 15, steps=50, noise_multiplier=1.0, noise="seeded", seed=4)
    assert (drawn(seeded) == drawn(seeded)).all()
    assert (drawn(seeded) != drawn(replace(seeded, seed=5))).any()
    system = PrivacyPlan(EXAMPLES, 15, steps=50, noise_multiplier=1.0)
    assert (drawn(system) != drawn(system)).any()
    assert isinstance(system.bits("noise"), SystemBits)
    assert isinstance(seeded.bits("noise"), SeededBits)


def test_noise_and_sampling_never_share_a_stream():
    for plan in (
        PrivacyPlan(EXAMPLES, 15, steps=50, noise_multiplier=1.0),
        PrivacyPlan(EXAMPLES, 15, steps=50, noise_multiplier=1.0, noise="seeded", seed=4),
    ):
        noise, sampling = np.empty(16, np.uint8), np.empty(16, np.uint8)
        plan.bits("noise").fill(noise)
        plan.bits("sampling").fill(sampling)
        assert (noise != sampling).any()


@pytest.mark.parametrize(
    ("epochs", "examples", "batch_size", "steps"),
    [
        (200, 60_000, 600, 20_000),
        (100, 1437, 100, 1437),
        (1, 10, 3, 4),
        (0.1, 1437, 1437, 1),
        (0.3, 10, 1, 3),
    ],
)
def test_epochs_become_steps(epochs, examples, batch_size, steps):
    assert PrivacyPlan(examples, batch_size, epochs=epochs).steps == steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 101}, "batch_size must be at most the number of examples, 100"),
        ({"batch_size": 0}, "batch_size must be an integer"),
        ({"examples": 0}, "examples must be an integer"),
        ({"steps": 0}, "steps must be an integer"),
        ({"epochs": 3}, "steps or epochs"),
        ({"steps": 0, "epochs": -1}, "epochs must be a finite number above 0"),
        ({"steps": 0, "epochs": 1e308}, "make more than 100,000,000 steps"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"sampling": "shuffle"}, "sampling must be one of poisson, fixed-size; got 'shuffle'"),
        ({"relation": "swap"}, "relation must be one of"),
        ({"noise": "fast"}, "noise must be one of"),
        ({"noise": "seeded"}, "needs a seed"),
        ({"seed": 3}, "asked for by name"),
        (
            {"noise_multiplier": 1.0, "clipping": Clipping(ClippingMode.NONE)},
            "noise without clipping",
        ),
    ],
)
def test_bad_plans_are_refused(arguments, message):
    with pytest.raises(DpvdError, match=message):
        PrivacyPlan(**({"examples": 100, "batch_size": 10, "steps": 5} | arguments))


@pytest.mark.parametrize("clipping", [1.0, "flat", None])
def test_a_clipping_that_is_none_is_refused(clipping):
    with pytest.raises(DpvdError, match="clipping must be a Clipping"):
        PrivacyPlan(10, 5, steps=1, clipping=clipping)


def test_a_delta_of_numpy_is_printed_as_a_number():
    plan = PrivacyPlan(10, 5, steps=1, noise_multiplier=1.0)
    assert ", 0.001)-differentially private" in plan.guarantee(np.float64(1e-3)).sentence()


def test_a_plan_without_noise_cannot_be_used_by_accident():
    plan = PrivacyPlan(100, 10, steps=5)
    for use in (
        plan.event,
        lambda: plan.private,
        lambda: plan.noise_std(1.0),
        lambda: plan.guarantee(1e-5),
    ):
        with pytest.raises(DpvdError, match="calibrate"):
            use()


@pytest.mark.parametrize("accountant", [*AccountantName, "moments"])
def test_calibrate_then_account(accountant):
    plan = PrivacyPlan(1000, 100, steps=50).calibrate(2.0, 1e-5, accountant)
    assert 1.9 < plan.epsilon(1e-5, accountant) <= 2.0
    assert plan.affordable_steps(2.0, 1e-5, accountant) >= 50
    guarantee = plan.guarantee(1e-5, accountant)
    assert guarantee.epsilon == plan.epsilon(1e-5, accountant)
    assert (guarantee.steps, guarantee.noise_multiplier) == (50, plan.noise_multiplier)
    assert guarantee.public == ("the number of training examples (1000)",)


def test_infinite_epsilon_is_ordinary_training():
    plan = PrivacyPlan(1000, 100, steps=50).calibrate(math.inf, 1e-5)
    assert not plan.private
    assert plan.clipping.mode is ClippingMode.NONE
    assert plan.noise_std(math.inf) == 0
    assert plan.epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (1, 0), (1, 1), (1, 2.0)]
)
def test_bad_budgets_are_refused(epsilon, delta):
    with pytest.raises(DpvdError):
        PrivacyPlan(1000, 100, steps=50).calibrate(epsilon, delta)


def test_fewer_steps_cost_less():
    plan = PrivacyPlan(1000, 100, steps=50, noise_multiplier=2.0)
    spent = [plan.epsilon(1e-5, steps=steps) for steps in (0, 1, 10, 50)]
    assert spent[0] == 0
    assert spent == sorted(set(spent))


@pytest.mark.parametrize("multiplier", [1e-9, 0.5, 1.0, 3.0])
def test_noise_std_is_multiplier_times_sensitivity(multiplier):
    plan = PrivacyPlan(100, 10, steps=5, noise_multiplier=multiplier)
    assert plan.private
    assert plan.noise_std(0.5) == 0.5 * multiplier


def test_the_plan_survives_being_written_down():
    plan = PrivacyPlan(
        100,
        10,
        steps=5,
        noise_multiplier=1.5,
        clipping=Clipping("per-layer", 2.0),
        noise="seeded",
        seed=1,
        sampling="fixed-size",
        relation="replace-one",
        unit="patient",
        tuned=("the learning rate",),
    )
    assert PrivacyPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(DpvdError, match="not a privacy plan"):
        PrivacyPlan.from_dict({"examples": 3})
    with pytest.raises(DpvdError, match=r"fields \['shuffle'\] are missing or unknown"):
        PrivacyPlan.from_dict(plan.to_dict() | {"shuffle": True})


@pytest.mark.parametrize(
    "declared",
    [
        {"public": ("the hospital",)},
        {"public": ()},
        {"initial_weights": "random"},
        {"secret_size": True},
    ],
)
def test_what_was_declared_is_part_of_the_plan(declared):
    """It survives being written down, and a plan without it is another one."""
    silent = PrivacyPlan(100, 10, steps=5, noise_multiplier=1.5)
    plan = replace(silent, **declared)
    assert PrivacyPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.fingerprint != silent.fingerprint
    assert not declared.keys() & silent.to_dict().keys()


def test_unit_and_tuning_reach_the_sentence():
    plan = PrivacyPlan(
        100, 10, steps=5, noise_multiplier=1.5, unit="patient", tuned=("the learning rate",)
    )
    sentence = plan.guarantee(1e-3).sentence()
    assert "one patient" in sentence
    assert "the number of training examples (100)" in sentence
    assert "Tuned on the data: the learning rate" in sentence
