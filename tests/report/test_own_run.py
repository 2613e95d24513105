"""Models trained from Python: written, shown, compared and loaded like those of the command."""

from pathlib import Path

import pytest
import torch
from tests.cli.program import assert_refused, call
from torch import nn

import dpvd
from dpvd.errors import DpvdError
from dpvd.report import write_report, write_run
from dpvd.runs import RunRecord, event_of, load_own_model
from dpvd.training.account_store import entries_of

PLAN = dpvd.PrivacyPlan(
    examples=64, batch_size=64, steps=3, noise_multiplier=4.0, unit="patient", public=()
)
RECIPE = dpvd.Recipe(learning_rate=0.1)


class Tied(nn.Module):
    """A model of one's own, in which two names stand for one tensor's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.last = nn.Linear(5, 2)
        self.register_buffer("view", self.first.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh())


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def test_a_fit_becomes_a_run_that_commands_read(tmp_path, data):
    folder = str(tmp_path / "run")  # a text is a path
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5, folder=folder)
    record = write_run(
        folder, model, result, PLAN, name="ward 7", recipe=RECIPE, test=(data[0][:20], data[1][:20])
    )
    assert RunRecord.read(Path(folder)) == record
    assert record.guarantee == result.guarantee.to_dict()
    assert record.is_private
    assert event_of(record) is not None
    names = {path.name for path in Path(folder).iterdir()}
    assert names >= {"record.json", "model.safetensors", "report.html", "statement.html"}
    shown = call("show", folder)
    assert shown.out.splitlines()[0] == result.guarantee.sentence()
    assert "ward 7" in shown.out
    assert call("compare", folder, "--json").json[0]["data"] == "ward 7"
    assert "ward 7" not in (Path(folder) / "statement.html").read_text(encoding="utf-8")


def test_the_weights_come_back_with_their_account(tmp_path, data):
    model = Tied()
    step = dpvd.PrivateStep(
        model, dpvd.training.cross_entropy, PLAN, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    for batch in PLAN.batches(data):
        step(batch)
    write_run(tmp_path / "run", model, step.guarantee(1e-5), PLAN, name="ward 7")
    again = Tied()
    record = load_own_model(again, tmp_path / "run")
    assert record.test == {}
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    assert sum(entry["charged"] for entry in entries_of(again).values()) == 3
    shown = call("show", tmp_path / "run")
    assert "not measured" in shown.out
    assert_refused(call("compare", tmp_path / "run", "--figure", tmp_path / "a.svg"), "nothing to")


def test_predict_says_how_to_open_a_model_of_ones_own(tmp_path, data):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5)
    write_run(tmp_path / "own", model, result, PLAN, name="ward 7")
    with pytest.raises(DpvdError, match="load_own_model"):
        dpvd.TrainedRun(tmp_path / "own")


def test_results_may_come_from_elsewhere(tmp_path, data):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5)
    record = write_run(tmp_path, model, result, PLAN, name="ward 7", test={"rmse": 1.25})
    assert record.test == {"rmse": 1.25}
    assert "1.2500" in call("show", tmp_path).out


def test_what_does_not_belong_together_is_refused_and_nothing_written(tmp_path, data):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5)
    other_plan = dpvd.PrivacyPlan(examples=64, batch_size=64, steps=3, noise_multiplier=9.0)
    half = PLAN.guarantee(1e-5, steps=2).observed(seen=("every batch",))
    folder = tmp_path / "run"
    for refused, words in (
        ((nn.Linear(5, 2), result, PLAN), "another model"),
        ((model, PLAN.guarantee(1e-5), PLAN), "nobody carried out"),
        ((model, result, other_plan), "not trained under this plan"),
        ((nn.Linear(5, 2), result.guarantee, PLAN), "not trained under this plan"),
        ((model, half, PLAN), "3 steps were charged"),
    ):
        with pytest.raises(DpvdError, match=words):
            write_run(folder, *refused, name="ward 7")
    for test, words in (
        ({"rmse": float("nan")}, "must be a finite number"),
        ({"accuracy": 0.5}, "incomplete"),
    ):
        with pytest.raises(DpvdError, match=words):
            write_run(folder, model, result, PLAN, name="ward 7", test=test)
    with pytest.raises(DpvdError, match="name must be words"):
        write_run(folder, model, result, PLAN, name="")
    assert not folder.exists()


def test_a_finished_run_is_not_replaced(tmp_path, data):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5)
    write_run(tmp_path, model, result, PLAN, name="ward 7")
    with pytest.raises(DpvdError, match="holds a finished run"):
        write_run(tmp_path, model, result, PLAN, name="ward 8")


def test_a_fit_without_a_record_is_said_to_have_none(tmp_path, data):
    dpvd.fit(nn.Linear(5, 2), data, PLAN, RECIPE, delta=1e-5, folder=tmp_path)
    shown = call("show", tmp_path)
    assert "3 of 3 steps are charged" in shown.out
    assert "write_run" in shown.out
    assert_refused(call("show", tmp_path, "--registry"), "not finished")


def test_weights_that_do_not_fit_are_refused(tmp_path, data):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5)
    write_run(tmp_path, model, result, PLAN, name="ward 7")
    with pytest.raises(DpvdError, match="does not fit"):
        load_own_model(nn.Linear(4, 2), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(DpvdError, match="cannot be read"):
        load_own_model(nn.Linear(5, 2), tmp_path)


@pytest.mark.parametrize("name", ["record.json", "model.safetensors"])
def test_weights_are_not_loaded_by_changed_files(tmp_path, data, name):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5)
    write_run(tmp_path, model, result, PLAN, name="ward 7")
    load_own_model(nn.Linear(5, 2), tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1 if name == "model.safetensors" else ord("\n") ^ ord(" ")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DpvdError, match=rf"{name} cannot be read.*manifest"):
        load_own_model(nn.Linear(5, 2), tmp_path)
    (tmp_path / "manifest.json").unlink()  # as in runs of early versions
    load_own_model(nn.Linear(5, 2), tmp_path)


def test_the_report_of_a_result_is_written_with_model_and_record(tmp_path, data):
    model = nn.Linear(5, 2)
    result = dpvd.fit(model, data, PLAN, RECIPE, delta=1e-5, folder=tmp_path / "run")
    page = write_report(result, str(tmp_path / "run"))
    assert page == tmp_path / "run" / "report.html"
    assert RunRecord.read(tmp_path / "run").guarantee == result.guarantee.to_dict()
    assert (tmp_path / "run" / "model.safetensors").exists()
    alone = dpvd.fit(nn.Linear(5, 2), data, PLAN, RECIPE, delta=1e-5)
    with pytest.raises(DpvdError, match="no ledger of one plan"):
        write_report(alone, tmp_path)
    with pytest.raises(DpvdError, match=r"takes a RunRecord, .*got Linear"):
        write_report(model, tmp_path)
