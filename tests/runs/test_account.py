"""Runs that draw from one account: refused before, counted whatever ends them, charged once."""

import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest

from dpvd.data import load
from dpvd.errors import DpvdError
from dpvd.privacy import DataAccount
from dpvd.report.facts import statement_facts
from dpvd.runs import RunOptions, RunRecord, TableChoice, execute, execute_table, prepare_run
from dpvd.runs.tables import prepare_table
from dpvd.sklearn import DPVDClassifier
from tests.cli.program import SMALL, assert_refused, call, train_line

DELTA = 1e-5


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture
def account(tmp_path):
    """With room for one run of ε = 1, and not for two."""
    return DataAccount.create(tmp_path / "data.account", epsilon=1.2, delta=DELTA)


def prepared(digits, account, **changes):
    options = RunOptions(**{**SMALL, "account": str(account.path), **changes})
    return prepare_run(options, digits)


def now(account):
    return DataAccount.open(account.path)


def test_a_run_is_reserved_before_its_first_step_and_settled_by_its_ledger(
    digits, account, tmp_path
):
    seen = []
    run = prepared(digits, account)
    record = execute(run, tmp_path / "run", on_step=lambda step: seen.append(now(account)))
    assert seen[0].spent == record.epsilon
    assert not seen[0].drawn[0].settled
    [drawn] = now(account).drawn
    assert drawn.settled
    assert drawn.who == "run"
    assert now(account).spent == record.epsilon
    assert "limit for all runs together is (1.2, 1e-05)" in record.guarantee["sentence"]


def test_a_run_beyond_the_limit_is_refused_and_leaves_nothing(digits, account, tmp_path):
    execute(prepared(digits, account), tmp_path / "first")
    before = account.path.read_bytes()
    with pytest.raises(DpvdError, match="with this run it would be"):
        execute(prepared(digits, account, seed=1), tmp_path / "second")
    assert account.path.read_bytes() == before
    assert not (tmp_path / "second").exists()


def kill_at(step, run, folder):
    """Train in a process that kills itself after this step."""

    def on_step(progress):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(
        target=lambda: execute(run, folder, on_step=on_step)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_a_killed_run_counts_in_full_goes_on_uncharged_and_its_copy_is_refused(
    digits, account, tmp_path
):
    run = prepared(digits, account)
    kill_at(5, run, tmp_path / "run")
    assert not now(account).drawn[0].settled
    full = now(account).spent
    assert full == run.plan.epsilon(DELTA)
    with pytest.raises(DpvdError, match="with this run it would be"):
        execute(prepared(digits, account, seed=1), tmp_path / "other")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    record = execute(run, tmp_path / "run", resume=True)
    assert [each.settled for each in now(account).drawn] == [True]
    assert now(account).spent == record.epsilon <= full
    with pytest.raises(DpvdError, match="went on elsewhere"):
        execute(run, tmp_path / "copy", resume=True)
    assert execute(run, tmp_path / "run", resume=True) == record


def test_an_interrupted_run_keeps_its_reservation(digits, account, tmp_path):
    def interrupt(progress):
        if progress.step == 5:
            raise KeyboardInterrupt

    run = prepared(digits, account)
    with pytest.raises(KeyboardInterrupt):
        execute(run, tmp_path / "run", on_step=interrupt)
    assert now(account).spent == run.plan.epsilon(DELTA)


def test_a_run_killed_before_its_settlement_is_settled_when_it_is_resumed(
    digits, account, tmp_path, monkeypatch
):
    run = prepared(digits, account)
    with monkeypatch.context() as patch:
        patch.setattr(DataAccount, "settle", lambda *_: None)  # as if killed there
        execute(run, tmp_path / "run")
    assert not now(account).drawn[0].settled
    execute(run, tmp_path / "run", resume=True)
    assert now(account).drawn[0].settled


def test_a_run_that_ends_before_anything_is_charged_is_given_back(digits, account, tmp_path):
    def refuse(done, of_all):
        raise KeyboardInterrupt

    run = prepared(digits, account, hidden=None, batch_size=None, epochs=None)
    with pytest.raises(KeyboardInterrupt):
        execute(run, tmp_path / "run", on_features=refuse)
    assert now(account).spent == 0
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("table") / "table.csv"
    age = rng.integers(20, 90, 600)
    ward = rng.choice(["north", "south"], 600)
    well = np.where(age + rng.normal(size=600) * 9 > 55, "yes", "no")
    rows = [f"{a},{w},{y}" for a, w, y in zip(age, ward, well, strict=True)]
    path.write_text("\n".join(["age,ward,well", *rows]))
    schema = path.with_name("schema.toml")
    schema.write_text(
        '[target]\nname = "well"\nclasses = ["no", "yes"]\nsource = "public"\n'
        '[columns.age]\nkind = "numeric"\nsource = "private"\n'
        '[columns.ward]\nkind = "categorical"\nsource = "private"\nunseen = "other"\n'
    )
    return TableChoice(path, schema=schema)


def test_a_table_with_private_bounds_may_draw_the_whole_limit(table, tmp_path):
    account = DataAccount.create(tmp_path / "a", epsilon=4.0, delta=DELTA)
    options = RunOptions(delta=DELTA, epsilon=4.0, private_bounds=1.0, account=str(account.path))
    record = execute_table(prepare_table(options, table), tmp_path / "run")
    spent = now(account).spent
    assert 0.99 * 4.0 < spent <= 4.0
    assert spent == pytest.approx(record.epsilon, rel=1e-3)
    assert "drawn from the account" in record.guarantee["sentence"]
    said = statement_facts(record, {})["composition"]
    assert f"limit for all runs together is (4, {DELTA:g})" in said
    assert "outside of that account: not declared" in said
    with pytest.raises(DpvdError, match="with this run it would be"):
        execute_table(prepare_table(options, table), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_other_data_do_not_draw_from_it(table, digits, account, tmp_path):
    execute(prepared(digits, account, epsilon=0.1), tmp_path / "run")
    options = RunOptions(delta=DELTA, epsilon=0.2, private_bounds=0.1, account=str(account.path))
    with pytest.raises(DpvdError, match="is of other data"):
        execute_table(prepare_table(options, table), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_folds_and_fits_of_estimators_draw_too(tmp_path):
    account = DataAccount.create(tmp_path / "a", epsilon=1.5, delta=DELTA)
    x = np.linspace(0, 1, 200)[:, None]
    y = (x[:, 0] > 0.5).astype(int)
    settings = {"epsilon": 1.0, "delta": DELTA, "bounds": (0, 1), "classes": [0, 1]}
    for part in (slice(0, 150), slice(50, 200)):
        DPVDClassifier(**settings, account=account.path).fit(x[part], y[part])
    assert 1.35 < now(account).spent < 1.5
    with pytest.raises(DpvdError, match="with this run it would be"):
        DPVDClassifier(**settings, account=account.path).fit(x, y)
    with pytest.raises(DpvdError, match="can be repeated"):
        DPVDClassifier(**settings, account=account.path, noise="seeded", random_state=0).fit(x, y)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "none"}, "no ε to draw"),
        ({"seeded_noise": True}, "do not go together"),
        ({"account": "nowhere"}, "cannot read the account"),
        ({"relation": "replace-one"}, "under different relations"),
    ],
)
def test_runs_that_cannot_draw_are_refused(account, tmp_path, changes, words):
    line = train_line(tmp_path / "run", **{"account": account.path, **changes})
    assert_refused(call(*line), words)
    assert not (tmp_path / "run").exists()


def test_the_command_makes_shows_and_refuses(tmp_path):
    path = tmp_path / "data.account"
    assert_refused(call("account", path), "cannot read the account")
    assert_refused(call("account", path, "--epsilon", 1), "both --epsilon and --delta")
    assert "0 is drawn" in call("account", path, "--epsilon", 1.2, "--delta", DELTA).out
    assert_refused(call("account", path, "--epsilon", 9, "--delta", DELTA), "exists already")
    assert call(*train_line(tmp_path / "run", account=path)).code == 0
    assert_refused(call(*train_line(tmp_path / "two", account=path)), "with this run")
    told = call("account", path, "--json").json
    stated = RunRecord.read(tmp_path / "run").epsilon
    assert told["limit"] == {"epsilon": 1.2, "delta": DELTA}
    assert told["spent"] == told["runs"][0]["epsilon"] == stated
    assert told["remaining"] == pytest.approx(1.2 - stated)
    shown = call("account", path).out
    assert "run" in shown
    assert "settled" in shown
