"""Plans with correlated noise: what a step adds, when it may go on, and what is said of it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpvd.errors import DpvdError
from dpvd.grads import Clipping
from dpvd.nn import variational
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Guarantee, cyclic_event, epsilon
from dpvd.training import AdamBC, PrivateStep, Recipe, cross_entropy, fit
from tests.mechanisms.statistics import ALARM, normal_p_value
from tests.mechanisms.test_correlated import strategy

PLAN = PrivacyPlan(400, 20, steps=22, noise_multiplier=1.5, bands=4)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 3)).double()


def data(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    x[:, 0] = torch.arange(count)  # by which an example is known
    return x, torch.randint(3, (count,), generator=generator)


def without_gradient(model, x, y):
    return 0 * model(x).sum(1)


def make_step(plan=PLAN, model=None, loss_fn=cross_entropy, momentum=0.0, **options) -> PrivateStep:
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    return PrivateStep(model, loss_fn, plan, optimizer, **options)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_c_times_what_steps_add_is_independent_noise_of_the_planned_size(momentum):
    """Through the sums into the parameters, and through ``.grad``."""
    step = make_step(loss_fn=without_gradient, momentum=momentum)
    added = []
    for batch in PLAN.batches(data()):
        before = flat(step.model)
        step(batch)
        if momentum:
            added.append(torch.cat([p.grad.flatten() for p in step.model.parameters()]))
        else:
            added.append((before - flat(step.model)) / 0.5)
    made_of = strategy(4, PLAN.steps) @ torch.stack(added).numpy()
    expected = 1.5 * PLAN.clipping.clip_norm / PLAN.batch_size
    assert normal_p_value(torch.from_numpy(made_of), expected) > ALARM
    assert normal_p_value(torch.from_numpy(made_of), expected * 0.9) < ALARM
    assert normal_p_value(torch.stack(added), expected) < ALARM


def turns(batches) -> dict[int, list[int]]:
    """By example, the steps that it takes part in."""
    found: dict[int, list[int]] = {}
    for step, (x, _) in enumerate(batches):
        for example in x[:, 0].int().tolist():
            found.setdefault(example, []).append(step)
    return found


def passes_of(loader, steps):
    while loader.position < steps:
        yield from loader


@pytest.mark.parametrize("way", ["batches", "loader"])
def test_no_example_comes_twice_within_the_bands(way):
    """Over all passes of a loader, too; and so no more often than the account says."""
    plan = replace(PLAN, examples=200, steps=62)
    draws = plan.batches(data(200))
    if way == "loader":
        draws = passes_of(plan.loader(data(200)), plan.steps)
    found = turns(draws)
    assert len(found) > 190
    parts = {example: {step % 4 for step in steps} for example, steps in found.items()}
    assert all(len(part) == 1 for part in parts.values())
    assert len(set.union(*parts.values())) == 4
    most = max(len(steps) for steps in found.values())
    assert 7 < most <= math.ceil(62 / 4)
    # Batches are as large as the plan says: 62 of 20.
    drawn = sum(len(steps) for steps in found.values())
    assert abs(drawn - 62 * 20) < 6 * math.sqrt(62 * 20 + 62 * 20**2 / 200)


def test_another_run_divides_the_data_anew():
    first, second = (turns(PLAN.batches(data())) for _ in range(2))
    both = first.keys() & second.keys()
    same = sum(first[example][0] % 4 == second[example][0] % 4 for example in both)
    assert same < 0.5 * len(both)


def test_the_account_is_that_of_whole_cycles():
    assert PLAN.event() == cyclic_event(1.5, 0.2, 4, 22)
    assert PLAN.event().count == 6
    assert PLAN.epsilon(1e-5, steps=5) == epsilon(cyclic_event(1.5, 0.2, 4, 8), 1e-5)
    calibrated = replace(PLAN, noise_multiplier=None).calibrate(3.0, 1e-5)
    assert 2.99 < calibrated.epsilon(1e-5) <= 3.0
    assert calibrated.affordable_steps(3.0, 1e-5) == 24


def test_steps_are_charged_by_the_cycle_and_a_new_object_begins_with_one():
    step = make_step()
    batches = PLAN.batches(data())
    for _ in range(5):
        step(next(batches))
    assert (step.position, step.charged) == (5, 8)
    later = make_step(model=step.model)
    assert later.position == 8
    for batch in PLAN.batches(data(), start=8):
        later(batch)
    assert later.charged == 22
    guarantee = later.guarantee(1e-5)
    assert guarantee.steps == 22
    assert guarantee.epsilon == PLAN.epsilon(1e-5)


def test_batches_of_another_partition_are_refused_inside_a_cycle():
    step = make_step()
    batches = PLAN.batches(data())
    for _ in range(5):
        step(next(batches))
    with pytest.raises(DpvdError, match="start must be a multiple of the plan's 4 bands, got 5"):
        PLAN.batches(data(), start=step.position)
    others = PLAN.batches(data(), start=4)
    next(others)
    weights = flat(step.model)
    with pytest.raises(DpvdError, match="step 5 is not a multiple of the plan's 4 bands"):
        step(next(others))
    assert torch.equal(flat(step.model), weights)
    assert (step.position, step.charged) == (5, 8)
    step(next(batches))


def test_batches_of_another_partition_begin_the_noise_anew_between_cycles():
    step = make_step()
    for batch in PLAN.batches(data()):
        step(batch)
        if step.position == 8:
            break
    assert len(step._correlated._kept.past) == 3
    step(next(PLAN.batches(data(), start=8)))
    assert len(step._correlated._kept.past) == 1


def test_a_change_of_scale_is_refused_inside_a_cycle():
    step = make_step()
    batches = PLAN.batches(data())
    step(next(batches))
    step.clipper.clipping = Clipping("flat", 0.5)
    with pytest.raises(DpvdError, match="clip norm and trainable parameters"):
        step(next(batches))


def test_a_step_that_fails_before_its_charge_can_be_repeated():
    failing = []

    def sometimes(model, x, y):
        if failing:
            raise KeyboardInterrupt
        return cross_entropy(model, x, y)

    step = make_step(loss_fn=sometimes)
    batches = PLAN.batches(data())
    step(next(batches))
    batch = next(batches)
    failing.append(True)
    with pytest.raises(KeyboardInterrupt):
        step(batch)
    failing.clear()
    step(batch)
    assert step.position == 2
    assert len(step._correlated._kept.past) == 2


def test_a_run_resumes_with_the_next_cycle_and_tells_nothing_of_its_noise(tmp_path):
    plan = replace(PLAN, steps=40)
    recipe = Recipe(learning_rate=0.1, momentum=0.9)

    def interrupt(progress):
        if progress.step == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(network(), data(), plan, recipe, delta=1e-5, folder=tmp_path, on_step=interrupt)
    kept = (tmp_path / "checkpoint.safetensors").stat().st_size
    entries = len(flat(network()))
    assert kept < 8 * entries * 3 + 20_000  # weights, average, momentum; noise would be 3 more
    resumed = fit(network(), data(), plan, recipe, delta=1e-5, folder=tmp_path, resume=True)
    assert resumed.guarantee.steps == 40
    assert resumed.guarantee.epsilon == plan.epsilon(1e-5)
    assert resumed.steps == 13 + 40 - 16


def test_the_statement_says_it_and_old_plans_keep_their_names():
    guarantee = PLAN.guarantee(1e-5)
    sentence = guarantee.sentence()
    assert "noise of multiplier 1.5, correlated over up to 4 steps, from the system's" in sentence
    assert "with probability 0.2 from one of 4 random parts of the data after the other" in sentence
    assert Guarantee.from_dict(guarantee.to_dict()) == guarantee
    assert PrivacyPlan.from_dict(PLAN.to_dict()) == PLAN
    assert PLAN.fingerprint != replace(PLAN, bands=5).fingerprint
    independent = replace(PLAN, bands=1)
    assert "bands" not in independent.to_dict()
    assert "bands" not in independent.guarantee(1e-5).to_dict()
    assert "correlated" not in independent.guarantee(1e-5).sentence()


def test_a_joint_statement_says_it_too():
    model = network()
    first = make_step(model=model)
    for batch in PLAN.batches(data()):
        first(batch)
    plan = replace(PLAN, bands=1, steps=3)
    second = make_step(plan, model)
    for batch in plan.batches(data()):
        second(batch)
    guarantee = second.guarantee(1e-5)
    assert guarantee.bands == 4
    assert "correlated over up to 4 steps" in guarantee.sentence()
    assert guarantee.epsilon > PLAN.epsilon(1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bands": 0}, "bands"),
        ({"bands": 2.0}, "bands"),
        ({"bands": 21}, "bands must be at most 20 here, got 21"),
        ({"bands": 65, "batch_size": 1}, "bands must be at most 64 here"),
        ({"sampling": "fixed-size"}, "needs sampling='poisson'"),
        ({"relation": "replace-one"}, "under relation='add-or-remove' only"),
        ({"clipping": Clipping("adaptive")}, "adaptive clipping changes the scale"),
    ],
)
def test_plans_without_a_theorem_are_refused(change, words):
    with pytest.raises(DpvdError, match=words):
        replace(PLAN, **change)


def test_steps_without_a_theorem_are_refused():
    with pytest.raises(DpvdError, match="of declared ones nobody knows"):
        make_step(batches="declared")
    with pytest.raises(DpvdError, match="ties its dropout noise"):
        make_step(model=variational(network(), rates="layer", learned=False))
    model = network()
    with pytest.raises(DpvdError, match="AdamBC corrects for noise that is independent"):
        PrivateStep(model, cross_entropy, PLAN, AdamBC(model.parameters(), lr=0.1))


def test_a_secret_size_is_divided_like_any_other():
    plan = replace(PLAN, secret_size=True)
    found = turns(plan.batches(data(390)))
    assert all(len({step % 4 for step in steps}) == 1 for steps in found.values())
    assert max(found) > 380


def test_seeded_draws_are_the_same_again():
    plan = replace(PLAN, noise="seeded", seed=3)
    assert turns(plan.batches(data())) == turns(plan.batches(data()))
    whole = [x for x, _ in plan.batches(data())]
    later = [x for x, _ in plan.batches(data(), start=8)]
    assert all(torch.equal(a, b) for a, b in zip(whole[8:], later, strict=True))


def test_without_noise_nothing_is_correlated():
    plan = PLAN.calibrate(math.inf, 1e-5)
    step = make_step(plan)
    for batch in plan.batches(data()):
        step(batch)
    assert step._correlated is None
