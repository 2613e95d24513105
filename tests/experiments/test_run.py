"""Running a spec: the settings that are trained with, and the ε of what ran."""

from dataclasses import replace

import pytest
import torch

from dpvd.errors import DpvdError
from dpvd.experiments import ExperimentResult, Part, ResultStore, Variant, run_spec
from dpvd.experiments.catalogue import make_spec
from dpvd.experiments.prepare import hold_out, prepare
from dpvd.plan import PrivacyPlan
from tests.experiments.small import TINY, digits, made_up, spec


def test_a_run_can_be_repeated_and_read_back(tmp_path) -> None:
    first, second = run_spec(spec(), digits()), run_spec(spec(), digits())
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    store = ResultStore(tmp_path)
    store.write(first)
    assert store.read(spec()) == first
    assert store.read_all() == [first]
    assert first.accuracy == first.curve[-1][1]
    assert first.examples == 360


def test_a_records_epsilon_is_that_of_its_plan() -> None:
    record = run_spec(spec(epochs=2.0), digits())
    plan = PrivacyPlan.from_dict(record.plan)
    assert record.epsilons["pld"] == plan.epsilon(1e-5, "pld") <= record.epsilons["zcdp"] <= 1.0
    assert plan.steps == 15
    assert [round(epoch) for epoch, _ in record.curve] == [1, 2]
    assert any("truncated" in note for note in record.notes)


def test_needless_noise_is_noted() -> None:
    record = run_spec(spec(accountant="advanced"), digits())
    assert any("more noise than needed" in note for note in record.notes)
    assert record.epsilons["pld"] < 0.5


def test_printed_settings_are_trained_with() -> None:
    run = prepare(spec(), digits())
    assert (run.recipe.momentum, run.recipe.average) == (0, 0)
    assert (run.recipe.kl_weight, run.recipe.kl_warmup) == (0, 0)
    assert (str(run.recipe.decay), run.recipe.gamma, run.recipe.learning_rate) == (
        "power",
        1.0,
        0.05,
    )
    assert (str(run.plan.clipping.mode), run.plan.clipping.clip_norm) == ("per-layer", 2.0)
    assert torch.equal(run.network.inputs(run.dataset.train_x), digits().train_x)
    assert run.plan.tuned == ()
    assert (
        "tenth of the training data" in prepare(spec(variant=Variant.TUNED), digits()).plan.tuned[0]
    )


def test_bytes_are_brought_between_zero_and_one() -> None:
    data = digits()
    stored = replace(
        data, train_x=(data.train_x * 255).byte(), test_x=(data.test_x * 255).byte(), checksum=""
    )
    inputs = prepare(spec(), stored).dataset.train_x
    assert torch.equal(inputs, stored.train_x.float() / 255)


def test_the_recipe_is_the_default_rule() -> None:
    run = prepare(make_spec(TINY, "DPVD-PLD", Variant.RECIPE, 1.0, 0), digits())
    assert run.plan.batch_size == 1437
    assert run.recipe.momentum == 0.9
    assert run.network.centred


def test_without_privacy_there_is_no_epsilon() -> None:
    record = run_spec(make_spec(TINY, "NP", Variant.AS_PRINTED, None, 0), digits())
    assert record.epsilons == {}
    assert record.plan["noise_multiplier"] == 0


def test_trials_never_see_the_test_data() -> None:
    data = digits()
    blind = replace(
        data,
        test_x=torch.zeros_like(data.test_x),
        test_y=torch.zeros_like(data.test_y),
        checksum="",
    )
    trial = spec(part=Part.HELD_OUT)
    seen, unseen = run_spec(trial, data), run_spec(trial, blind)
    assert replace(seen, seconds=0.0) == replace(unseen, seconds=0.0)
    assert seen.examples == 144
    assert seen.plan["examples"] == 1293


def test_the_held_out_tenth_is_not_trained_on() -> None:
    data, held = digits(), hold_out(digits())
    both = torch.cat([held.train_x, held.test_x])
    assert len(both) == len(data.train_x)
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, data.train_x.tolist()))


@pytest.mark.parametrize("damage", ["{", "[]", "{}"])
def test_damaged_results_are_refused_by_name(tmp_path, damage) -> None:
    store = ResultStore(tmp_path)
    store.write(made_up(spec(), 0.5))
    (path,) = (tmp_path / "pending").iterdir()
    path.write_text(damage)
    with pytest.raises(DpvdError, match=spec().hash):
        store.read(spec())


def test_a_result_under_a_wrong_hash_is_refused() -> None:
    values = made_up(spec(), 0.5).to_dict() | {"hash": "0" * 64}
    with pytest.raises(DpvdError, match="hash"):
        ExperimentResult.from_dict(values)
