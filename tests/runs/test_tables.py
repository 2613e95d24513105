"""Runs on tables: what the statement adds up, what is estimated under it, what is left behind."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from dpvd.data import Kind, open_table
from dpvd.errors import DpvdError
from dpvd.runs import (
    RunOptions,
    RunRecord,
    TableChoice,
    TrainedTable,
    charged_in,
    execute_table,
    prepare_table,
)
from dpvd.runs.tables.metrics import class_metrics, number_metrics
from dpvd.tabular import Prediction

DELTA = 1e-5


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """3,000 rows of 1,000 people, with every kind of column, gaps and rare categories."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    lines = ["person,age,ward,smoker,admitted,days,ill"]
    for row in range(3000):
        age = rng.integers(20, 90)
        ward = rng.choice(["north", "south", "east"]) if row % 500 else f"alone {row}"
        day = f"20{rng.integers(10, 20)}-0{rng.integers(1, 9)}-1{rng.integers(0, 9)}"
        ill = age / 20 + rng.normal() + (ward == "east") > 3
        gap = "" if rng.random() < 0.1 else age
        yes = rng.choice(["yes", "no"])
        lines.append(
            f"{row % 1000},{gap},{ward},{yes},{day},{0.1 * age:.1f},{'ill' if ill else 'well'}"
        )
    path.write_text("\n".join(lines))
    return path


def composed(record: RunRecord, delta: float) -> float:
    """ε of the record's releases, by dp-accounting alone and from multipliers alone."""
    accountant = PLDAccountant()
    for release in record.releases:
        event = GaussianDpEvent(release["noise_multiplier"])
        accountant.compose(SelfComposedDpEvent(event, release["steps"]))
    return accountant.get_epsilon(delta)


def run_of(path, folder, *, target="ill", id=None, **options):
    choice = TableChoice(
        path, target=target, id=id, rows_per_unit=None if id is None else 2, test_fraction=0.2
    )
    return execute_table(
        prepare_table(RunOptions(delta=DELTA, epsilon=4.0, **options), choice), folder
    )


@pytest.mark.parametrize("id", [None, "person"])
def test_nobody_can_know_the_split_in_advance(visits, id):
    choice = TableChoice(
        visits, target="ill", id=id, rows_per_unit=None if id is None else 2, test_fraction=0.2
    )
    drafted = {"delta": DELTA, "epsilon": 4.0, "private_bounds": 1.0, "seed": 7}
    splits = [prepare_table(RunOptions(**drafted), choice).seed for _ in range(2)]
    assert splits[0] != splits[1]
    assert 7 not in splits


@pytest.mark.parametrize("id", [None, "person"])
@pytest.mark.parametrize("target", ["ill", "days"])
def test_the_statement_is_the_sum_of_everything_private_bounds_included(
    visits, tmp_path, id, target
):
    record = run_of(visits, tmp_path / "run", target=target, id=id, private_bounds=1.5)
    names = [release["name"] for release in record.releases]
    assert {"rough bounds of age", "bounds of age", "categories of ward"} <= set(names)
    assert "bounds of days" in names
    assert names[-1] in ("training", "calibration")
    # A hundredth of δ is for categories that one person alone has.
    stated = record.guarantee["epsilon"]
    assert stated == pytest.approx(composed(record, 0.99 * DELTA), rel=2e-3)
    assert 0.99 * 4 < stated <= 4
    assert record.guarantee["delta"] == DELTA
    estimates = [r for r in record.releases if "of" in r["name"].split()]
    assert composed(RunRecord(**{**vars(record), "releases": estimates}), DELTA) <= 1.5
    assert sum(release["share"] for release in record.releases) == pytest.approx(1)
    # And on disk: every release in a ledger, before it was used.
    charged = charged_in(tmp_path / "run")
    assert charged.steps == record.guarantee["steps"]
    assert charged.epsilon(0.99 * DELTA) == pytest.approx(stated, rel=1e-9)


@pytest.mark.parametrize("method", ["svi", "dpsgd"])
@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_baselines_are_private_steps_and_nothing_else(visits, tmp_path, method, network):
    record = run_of(
        visits, tmp_path / "run", method=method, network=network, id="person", private_bounds=1.0
    )
    assert record.method == method
    assert record.releases[-1]["name"] == "training"
    learnt = {release["name"] for release in record.releases} & {"mean", "moments", "calibration"}
    assert not learnt
    stated = record.guarantee["epsilon"]
    assert stated == pytest.approx(composed(record, 0.99 * DELTA), rel=2e-3)
    assert 0.99 * 4 < stated <= 4
    assert record.model["network"].get("hidden", 0) == (16 if network == "mlp" else 0)
    assert "centred" not in record.dataset["preprocessing"]
    assert record.test["accuracy"] > 0.6
    assert ("prior_std" in record.recipe) is (method == "svi")


def test_a_network_of_a_table_is_accounted_written_and_read_again(visits, tmp_path):
    record = run_of(
        visits, tmp_path / "run", id="person", private_bounds=1.0, network="mlp", hidden=4
    )
    names = [release["name"] for release in record.releases]
    assert names[-3:] == ["mean", "moments", "training"]
    stated = record.guarantee["epsilon"]
    assert stated == pytest.approx(composed(record, 0.99 * DELTA), rel=2e-3)
    assert charged_in(tmp_path / "run").steps == record.guarantee["steps"]
    assert record.recipe["method"] == "network"
    assert record.model["parameters"] > 4
    trained = TrainedTable(tmp_path / "run")
    assert trained.model.head.hidden.out_features == 4
    rows = torch.randn(3, trained.encoder.width)
    told = trained.model.predict(rows)
    assert (told.mutual_information > 0).all()


@pytest.mark.parametrize("target", ["ill", "days"])
@pytest.mark.parametrize("network", ["auto", "linear", "mlp"])
def test_the_ordinary_baseline_has_a_network_where_a_private_run_would(
    visits, tmp_path, network, target
):
    schema = (
        f'[target]\nname = "{target}"\nsource = "public"\n'
        + ('classes = ["well", "ill"]\n' if target == "ill" else "bounds = [0, 10]\n")
        + '[columns.age]\nkind = "numeric"\nbounds = [0, 100]\nsource = "public"\n'
        + 'missing = "indicator"\n'
    )
    (tmp_path / "s.toml").write_text(schema)
    choice = TableChoice(visits, schema=tmp_path / "s.toml", test_fraction=0.2)
    options = RunOptions(delta=DELTA, method="none", network=network)
    record = execute_table(prepare_table(options, choice), tmp_path / "run")
    is_network = network == "mlp" or (network == "auto" and target == "ill")
    assert ("hidden" in record.model["network"]) is is_network
    trained = TrainedTable(tmp_path / "run")
    assert trained.model(torch.zeros(2, trained.encoder.width)).isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"network": "cnn"}, "takes images"),
        ({"network": "linear", "hidden": 3}, "a linear model has none"),
        ({"epochs": 3.0}, "images only"),
    ],
)
def test_options_that_do_not_fit_a_table_are_refused(visits, wrong, message):
    options = RunOptions(delta=DELTA, epsilon=4.0, private_bounds=1.0, **wrong)
    with pytest.raises(DpvdError, match=message):
        prepare_table(options, TableChoice(visits, target="ill"))


def test_private_bounds_and_categories_are_near_the_truth_and_tell_of_nobody_alone(
    visits, tmp_path
):
    record = run_of(visits, tmp_path / "run", private_bounds=2.0)
    trained = TrainedTable(tmp_path / "run")
    schema = trained.encoder.schema
    low, high = schema.column("age").bounds
    assert 0 <= low <= 30
    assert 80 <= high <= 130
    assert schema.column("ward").categories == ("east", "north", "south")
    first, last = schema.column("admitted").bounds
    assert first.year <= 2011
    assert last.year >= 2019
    assert record.test["accuracy"] > 0.7
    sentence = record.guarantee["sentence"]
    assert "estimated within the budget" in sentence
    assert "classes of ill" in sentence.partition("Not covered: ")[2]
    assert "kinds of the columns" in sentence.partition("Not covered: ")[2]


def test_a_column_that_noise_hides_is_left_out(visits, tmp_path):
    header, *lines = visits.read_text().splitlines()
    rare = tmp_path / "rare.csv"  # with a column that twenty people have
    with_rare = [f"{line},{i if i < 20 else ''}" for i, line in enumerate(lines)]
    rare.write_text("\n".join([f"{header},score", *with_rare]))
    options = RunOptions(delta=DELTA, epsilon=4.0, private_bounds=2.0)
    record = execute_table(
        prepare_table(options, TableChoice(rare, target="ill")), tmp_path / "run"
    )
    assert record.table["left_out"] == ["score"]
    assert "smoker" not in record.table["left_out"]  # yes or no has no bounds
    # Noise was drawn, so it is paid for.
    assert composed(record, 0.99 * DELTA) == pytest.approx(record.guarantee["epsilon"], rel=2e-3)


@pytest.mark.parametrize(
    "columns", [(1, 6), (2, 6), (1, 5)], ids=["bounds", "categories", "target"]
)
def test_a_budget_that_hides_everybody_is_refused_before_anything_is_charged(
    visits, tmp_path, columns
):
    lines = [line.split(",") for line in visits.read_text().splitlines()]
    short = tmp_path / "short.csv"
    short.write_text("\n".join(",".join(line[place] for place in columns) for line in lines))
    target = "ill" if 6 in columns else "days"
    options = RunOptions(delta=DELTA, epsilon=1.0, private_bounds=0.01)
    prepared = prepare_table(options, TableChoice(short, target=target))
    with pytest.raises(DpvdError, match=r"3000 examples are too few .* nothing was charged"):
        execute_table(prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_refusal_before_the_first_charge_leaves_no_folder(visits, tmp_path, monkeypatch):
    prepared = prepare_table(
        RunOptions(delta=DELTA, epsilon=4.0, private_bounds=1.0), TableChoice(visits, target="ill")
    )
    copy = visits.read_text()
    try:
        visits.write_text("person,age\n1,2\n")  # its checksum would not be that of what was read
        with pytest.raises(DpvdError, match="has changed since it was read"):
            execute_table(prepared, tmp_path / "run")
    finally:
        visits.write_text(copy)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def opened(monkeypatch):
    """How often each file was opened."""
    found = Counter()
    really = Path.open

    def counted(path, *arguments, **others):
        found[path] += 1
        return really(path, *arguments, **others)

    monkeypatch.setattr(Path, "open", counted)
    return found


def test_a_file_is_parsed_once_and_read_once_more_for_its_checksum(visits, tmp_path, opened):
    test = tmp_path / "test.csv"
    test.write_text(visits.read_text())
    opened.clear()
    for _ in open_table(visits).batches():
        pass
    once = opened.pop(visits)  # it is looked at for its encoding and so on before it is parsed
    options = RunOptions(delta=DELTA, epsilon=4.0, private_bounds=1.0)
    choice = TableChoice(visits, target="ill", test=test)
    execute_table(prepare_table(options, choice), tmp_path / "run")
    assert (opened[visits], opened[test]) == (once + 1, once + 1)


def test_a_model_read_again_predicts_the_same_and_goes_on_counting(visits, tmp_path):
    record = run_of(visits, tmp_path / "run", private_bounds=1.0)
    trained = TrainedTable(tmp_path / "run")
    kept = vars(trained.model)["_dpvd_account"]
    assert sum(entry["charged"] for entry in kept.values()) == record.guarantee["steps"]
    assert json.loads((tmp_path / "run" / "record.json").read_text()) == record.to_dict()


def test_the_same_seed_gives_the_same_run(visits, tmp_path):
    runs = [
        run_of(visits, tmp_path / name, private_bounds=1.0, seeded_noise=True, seed=5)
        for name in ("a", "b")
    ]
    assert runs[0].test == runs[1].test
    assert runs[0].table == runs[1].table
    assert runs[0].dataset["checksum"] != runs[1].dataset["checksum"]  # keyed, each by its own
    assert "seed" in runs[0].guarantee["sentence"]


def test_columns_with_private_source_and_bounds_are_said_to_be_outside_the_account(
    visits, tmp_path
):
    (tmp_path / "s.toml").write_text(
        '[target]\nname = "ill"\nclasses = ["well", "ill"]\nsource = "public"\n'
        '[columns.days]\nkind = "numeric"\nbounds = [0, 10]\nsource = "private"\n'
        '[columns.age]\nkind = "numeric"\nsource = "private"\nmissing = "indicator"\n'
    )
    choice = TableChoice(visits, schema=tmp_path / "s.toml")
    with pytest.raises(DpvdError, match="give --private-bounds"):
        prepare_table(RunOptions(delta=DELTA, epsilon=4.0), choice)
    options = RunOptions(delta=DELTA, epsilon=4.0, private_bounds=1.0)
    record = execute_table(prepare_table(options, choice), tmp_path / "run")
    left_open = record.guarantee["not_covered"]
    assert left_open == ["bounds of days, which the schema says were estimated privately before"]
    assert record.table["estimated"] == ["age"]
    assert TrainedTable(tmp_path / "run").encoder.schema.column("age").kind is Kind.NUMERIC


def test_metrics_of_classes_by_hand():
    told = Prediction(probabilities=torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.7, 0.3]]))
    found = class_metrics(told, torch.tensor([0, 1, 1, 0]))
    assert found["accuracy"] == 0.75
    assert found["auc"] == 0.75  # of four pairs, one is in the wrong order
    brier = 2 * (0.1**2 + 0.4**2 + 0.8**2 + 0.3**2) / 4
    assert found["brier"] == pytest.approx(brier)
    loss = -(math.log(0.9) + math.log(0.6) + math.log(0.2) + math.log(0.7)) / 4
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    # One row in each bin: the mean of |right - confidence|.
    assert found["calibration_error"] == pytest.approx((0.1 + 0.4 + 0.8 + 0.3) / 4)


def test_ties_count_half_in_the_area_under_the_curve():
    told = Prediction(probabilities=torch.full((4, 2), 0.5))
    assert class_metrics(told, torch.tensor([0, 1, 1, 0]))["auc"] == 0.5
    assert class_metrics(told, torch.tensor([1, 1, 1, 1]))["auc"] is None


def test_metrics_of_numbers_by_hand():
    told = Prediction(mean=torch.tensor([1.0, 2.0]), std=torch.tensor([1.0, 1.0]))
    found = number_metrics(told, torch.tensor([2.0, 4.0]))
    assert found["rmse"] == pytest.approx(math.sqrt(2.5))
    assert found["mae"] == 1.5
    assert found["coverage"] == 0.5
