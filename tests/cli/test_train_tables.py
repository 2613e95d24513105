"""A table from CSV to a report and predictions, and what is said of tables that are not right."""

import csv
import json
import os
import pty
import shutil
import stat
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

from tests.cli.program import PROGRAM, assert_refused, call, contents

BUDGET = ("--epsilon", 1, "--delta", 1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Breast cancer as CSV files, split by hand, with a schema that somebody went through."""
    place = tmp_path_factory.mktemp("breast-cancer")
    frame = load_breast_cancer(as_frame=True).frame
    frame["diagnosis"] = frame.pop("target").map({0: "malignant", 1: "benign"})
    frame = frame.sample(frac=1, random_state=0)
    frame[:449].to_csv(place / "train.csv", index=False)
    frame[449:].to_csv(place / "test.csv", index=False)
    drafted = call("schema", place / "train.csv", "--target", "diagnosis")
    assert drafted.code == 0, drafted.err
    (place / "schema.toml").write_text(drafted.out.replace('source = "data"', 'source = "public"'))
    return place


@pytest.fixture(scope="module")
def trained(folder):
    line = ("train", folder / "train.csv", "--target", "diagnosis", "--schema")
    test = ("--test", folder / "test.csv", "--unit", "patient", "--tuned", "nothing")
    outcome = call(*line, folder / "schema.toml", *test, *BUDGET, "--out", folder / "run", "--json")
    assert outcome.code == 0, outcome.err
    return folder / "run", outcome.json


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_summary_has_what_scripts_rely_on(trained):
    run, said = trained
    assert said["test_accuracy"] > 0.88
    assert said["auc"] > 0.96
    assert said["rmse"] is None
    assert 0.9 < said["epsilon"] <= 1
    assert said["delta"] == 1e-5
    assert said["run"] == str(run)
    assert "adding or removing one patient" in said["statement"]
    assert "Tuned on the data: nothing." in said["statement"]
    assert "bounds of mean radius" in said["statement"].partition("Public: ")[2]
    assert "Not covered" not in said["statement"]


def test_the_folder_holds_no_more_than_it_should(trained):
    run, _ = trained
    assert {"model.safetensors", "record.json", "report.html", "checksum.key"} <= {
        path.name for path in run.iterdir()
    }
    key = run / "checksum.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text().strip()
    for name in ("record.json", "report.html", "options.json"):
        assert secret not in (run / name).read_text()
    assert call("show", run).code == 0


def test_rows_are_predicted_by_column_name(folder, trained, tmp_path):
    run, said = trained
    rows = rows_of(folder / "test.csv")
    out = tmp_path / "out.csv"
    outcome = call("predict", run, folder / "test.csv", "--coverage", 0.8, "--out", out)
    assert outcome.code == 0, outcome.err
    told = rows_of(out)
    right = [a["class"] == b["diagnosis"] for a, b in zip(told, rows, strict=True)]
    assert sum(right) / len(right) == pytest.approx(said["test_accuracy"], abs=0.02)
    for row in told:
        together = float(row["p_benign"]) + float(row["p_malignant"])
        assert together == pytest.approx(1, abs=1e-5)
        assert float(row["probability"]) == float(row[f"p_{row['class']}"])
        assert 0 <= float(row["mutual_information"]) <= float(row["entropy"]) <= np.log(2) + 1e-6
    abstained = [float(row["probability"]) for row in told if row["abstain"] == "1"]
    answered = [float(row["probability"]) for row in told if row["abstain"] == "0"]
    assert len(answered) == np.ceil(0.8 * len(rows))
    assert max(abstained) <= min(answered)
    # Other order, no label, a further column: the same predictions.
    names = [name for name in reversed(rows[0]) if name != "diagnosis"]
    lines = [",".join([*names, "extra"])]
    lines += [",".join([*(row[name] for name in names), "x"]) for row in rows]
    (tmp_path / "other.csv").write_text("\n".join(lines))
    again = call("predict", run, tmp_path / "other.csv", "--coverage", 0.8)
    assert again.out.splitlines() == out.read_text().splitlines()


def test_a_finished_run_is_left_as_it_is_by_resume(folder, trained):
    run, said = trained
    before = contents(run)
    line = ("train", folder / "train.csv", "--target", "diagnosis", "--schema")
    test = ("--test", folder / "test.csv", "--unit", "patient", "--tuned", "nothing")
    end = (*BUDGET, "--out", run, "--resume", "--json")
    again = call(*line, folder / "schema.toml", *test, *end)
    assert again.code == 0, again.err
    assert again.json == said
    assert contents(run) == before
    other = call(*line, folder / "schema.toml", *BUDGET, "--out", run, "--resume")
    assert_refused(other, "was started with")


def test_an_interrupted_run_goes_on_and_costs_nothing_more(folder, trained, tmp_path):
    run, printed = trained
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    for name in ("record.json", "report.html", "statement.html", "ledger-calibration.jsonl"):
        (broken / name).unlink(missing_ok=True)
    line = ("train", folder / "train.csv", "--target", "diagnosis", "--schema")
    test = ("--test", folder / "test.csv", "--unit", "patient", "--tuned", "nothing")
    end = (*test, *BUDGET, "--out", broken, "--resume", "--json")
    outcome = call(*line, folder / "schema.toml", *end)
    assert outcome.code == 0, outcome
    assert outcome.json["statement"] == printed["statement"]
    assert (broken / "report.html").exists()
    changed = tmp_path / "train.csv"
    changed.write_bytes((folder / "train.csv").read_bytes())
    (broken / "record.json").unlink()
    other = call("train", changed, "--schema", folder / "schema.toml", *end)
    assert_refused(other, "was started with dataset")


def test_without_a_test_nothing_is_measured(folder, tmp_path):
    outcome = call(
        *("train", folder / "train.csv", "--schema", folder / "schema.toml", *BUDGET),
        *("--out", tmp_path / "run", "--json"),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.json["test_accuracy"] is None
    assert outcome.json["calibration_error"] is None
    assert json.loads((tmp_path / "run/record.json").read_text())["test"]["note"] == "not measured"
    assert "adding or removing one row" in outcome.json["statement"]
    assert "what was tuned on the data" in outcome.json["statement"].partition("Not declared")[2]


def test_a_table_without_a_schema_is_told_how_to_get_one(folder, tmp_path):
    outcome = call(
        *("train", folder / "train.csv", "--target", "diagnosis", *BUDGET),
        *("--out", tmp_path / "run"),
    )
    assert_refused(outcome, f"dpvd schema {folder / 'train.csv'} --target diagnosis --out")
    assert not (tmp_path / "run").exists()


def test_what_was_read_off_the_data_is_not_covered(folder, tmp_path):
    text = (folder / "schema.toml").read_text()
    (tmp_path / "s.toml").write_text(text.replace('"public"', '"data"'))
    outcome = call(
        *("train", folder / "train.csv", "--schema", tmp_path / "s.toml", *BUDGET),
        *("--out", tmp_path / "run", "--json"),
    )
    left_open = outcome.json["statement"].partition("Not covered: ")[2].partition("Public: ")[0]
    assert "bounds of mean radius" in left_open
    assert "classes of diagnosis" in left_open


def test_regression_has_errors_and_intervals(tmp_path):
    load_diabetes(as_frame=True, scaled=False).frame.to_csv(tmp_path / "d.csv", index=False)
    call("schema", tmp_path / "d.csv", "--target", "target", "--out", tmp_path / "s.toml")
    outcome = call(
        *("train", tmp_path / "d.csv", "--schema", tmp_path / "s.toml", "--test-fraction", 0.3),
        *("--epsilon", 8, "--delta", 1e-5, "--out", tmp_path / "run", "--json"),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.json["rmse"] < 85  # the standard deviation of the target is 77
    assert outcome.json["test_accuracy"] is None
    told = call("predict", tmp_path / "run", tmp_path / "d.csv", "--json").json
    assert list(told[0]) == ["mean", "std", "low", "high"]
    assert all(row["low"] <= row["mean"] <= row["high"] for row in told)


def test_a_baseline_without_privacy_says_so(folder, tmp_path):
    outcome = call(
        *("train", folder / "train.csv", "--schema", folder / "schema.toml", "--method", "none"),
        *("--delta", 1e-5, "--test", folder / "test.csv", "--out", tmp_path / "run", "--json"),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.json["epsilon"] is None
    assert outcome.json["statement"].startswith("Not differentially private")
    assert outcome.json["test_accuracy"] > 0.9


def test_identifiers_with_repeats_are_warned_of_and_passed_through(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["patient_id,age,ill"]
    for row in range(400):
        age = rng.integers(20, 90)
        lines.append(f"p{row % 150},{age},{'yes' if age + rng.normal(0, 9) > 55 else 'no'}")
    (tmp_path / "visits.csv").write_text("\n".join(lines))
    (tmp_path / "s.toml").write_text(
        '[target]\nname = "ill"\nclasses = ["no", "yes"]\nsource = "public"\n'
        '[columns.age]\nkind = "numeric"\nbounds = [0, 100]\nsource = "public"\n'
    )
    line = ("train", tmp_path / "visits.csv", "--schema", tmp_path / "s.toml", *BUDGET)
    by_row = call(*line, "--out", tmp_path / "rows", "--json")
    assert '"patient_id" looks like an identifier with repeats' in by_row.err
    assert "one row" in by_row.json["statement"]
    assert_refused(call(*line, "--id", "patient_id", "--out", tmp_path / "x"), "--rows-per-unit")
    by_person = call(
        *(*line, "--id", "patient_id", "--rows-per-unit", 2, "--unit", "patient"),
        *("--out", tmp_path / "people", "--json"),
    )
    assert by_person.code == 0, by_person.err
    assert by_person.err == ""
    assert by_person.json["batch_size"] == 150
    assert "one patient" in by_person.json["statement"]
    told = call("predict", tmp_path / "people", tmp_path / "visits.csv", "--json").json
    assert [row["patient_id"] for row in told] == [f"p{row % 150}" for row in range(400)]


GOOD = "age,ward,ill\n" + "30,north,no\n60,south,yes\n" * 30
SCHEMA = """
[target]
name = "ill"
classes = ["no", "yes"]
source = "public"
[columns.age]
kind = "numeric"
bounds = [0, 100]
source = "public"
[columns.ward]
kind = "categorical"
categories = ["north", "south"]
source = "public"
"""
BAD_TABLES = {
    "delimiter": (GOOD.replace(",", ";"), ("--delimiter", ","), ["delimiter"]),
    "duplicate column": (GOOD.replace("ward", "age"), (), ["two columns", "age"]),
    "missing column": (GOOD.replace("ward", "war"), (), ["no column", "ward"]),
    "unseen category": (GOOD + "1,eastern,no\n", (), ["row 61", "ward"]),
    "mixed types": (GOOD + "ninety,north,no\n", (), ["row 61", "age"]),
    "NaN": (GOOD + "nan,north,no\n", (), ["row 61", "age"]),
    "infinity": (GOOD + "inf,north,no\n", (), ["row 61", "age"]),
    "empty cell": (GOOD + ",north,no\n", (), ["row 61", "age", "empty"]),
    "one class": (GOOD.replace("yes", "no"), (), ["no", "nothing to tell apart"]),
    "no rows": ("age,ward,ill\n", (), ["no rows"]),
    "one row": ("age,ward,ill\n3,north,no\n", (), ["two or more"]),
    "nothing": ("", (), ["empty"]),
    "long line": (GOOD + "1" * 20_000_000 + ",north,no\n", (), ["line"]),
    "other target": (GOOD, ("--target", "age"), ["target", "ill"]),
    "network option": (GOOD, ("--epochs", 10), ["--epochs can be chosen for networks"]),
    "network for images": (GOOD, ("--network", "cnn"), ["network cnn takes images"]),
    "hidden units of a line": (
        GOOD,
        ("--network", "linear", "--hidden", 3),
        ["hidden units are for the network mlp"],
    ),
    "two tests": (GOOD, ("--test", "x.csv", "--test-fraction", 0.2), ["not both"]),
    "fraction": (GOOD, ("--test-fraction", 1.5), ["--test-fraction must "]),
    "nothing to estimate": (GOOD, ("--private-bounds", 0.5), ["nothing to estimate"]),
    "too much to estimate": (GOOD, ("--private-bounds", 2), ["--private-bounds must "]),
    "id": (GOOD, ("--id", "who", "--rows-per-unit", 3), ["no column", "who"]),
    "no words": (GOOD, ("--tuned", " "), ["tuned must be words"]),
    "no delta": (GOOD, ("--delta", 0), ["--delta must "]),
}
CELLS = ("eastern", "ninety")  # which no line may repeat


def test_the_table_to_train_on_is_no_test(tmp_path, monkeypatch):
    """Results are exact: on rows that were trained on they would tell what noise hides."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "s.toml").write_text(SCHEMA)
    flags = ("--schema", "s.toml", "--epsilon", 1, "--delta", 1e-5, "--out", "run")
    outcome = call("train", "t.csv", *flags, "--test", tmp_path / "t.csv")
    assert_refused(outcome, "--test is the table to train on")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_and_options_leave_nothing_behind(name, tmp_path):
    text, options, words = BAD_TABLES[name]
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "s.toml").write_text(SCHEMA)
    before = contents(tmp_path)
    line = ("train", tmp_path / "t.csv", "--schema", tmp_path / "s.toml", *BUDGET)
    outcome = call(*line, *options, "--out", tmp_path / "run")
    assert_refused(outcome, *words)
    assert not any(cell in outcome.err for cell in CELLS)
    assert contents(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_a_mark_at_the_beginning_and_other_delimiters_are_read(tmp_path):
    (tmp_path / "t.csv").write_text("\ufeff" + GOOD.replace(",", ";"), encoding="utf-8")
    (tmp_path / "s.toml").write_text(SCHEMA)
    line = ("train", tmp_path / "t.csv", "--schema", tmp_path / "s.toml", *BUDGET)
    assert call(*line, "--out", tmp_path / "run").code == 0


def test_folders_and_archives_are_no_tables(tmp_path):
    (tmp_path / "s.toml").write_text(SCHEMA)
    (tmp_path / "folder.csv").mkdir()
    with zipfile.ZipFile(tmp_path / "bomb.csv", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", b"\0" * 10_000_000)
    for name, words in (("folder.csv", "folder"), ("bomb.csv", "zip archive")):
        line = ("train", tmp_path / name, "--schema", tmp_path / "s.toml", *BUDGET)
        assert_refused(call(*line, "--out", tmp_path / "run"), words)
    assert_refused(call("train", "patients", *BUDGET), "digits, mnist, or a file")
    assert_refused(call("train", "digits", *BUDGET, "--target", "y"), "--target can be given for")


def test_bad_rows_to_predict_are_named_and_nothing_is_written(folder, trained, tmp_path):
    run, _ = trained
    header, first, *_ = (folder / "test.csv").read_text().splitlines()
    out = tmp_path / "out.csv"
    cells = first.split(",")
    (tmp_path / "t.csv").write_text(f"{header}\n{first}\n{','.join(['', *cells[1:]])}\n")
    refused = call("predict", run, tmp_path / "t.csv", "--out", out)
    assert_refused(refused, "row 2", "mean radius", "empty")
    lacking = ",".join(header.split(",")[1:])
    (tmp_path / "t.csv").write_text(f"{lacking}\n{','.join(cells[1:])}\n")
    refused = call("predict", run, tmp_path / "t.csv", "--out", out)
    assert_refused(refused, "no column", "mean radius")
    refused = call("predict", run, folder / "test.csv", "--coverage", 0)
    assert_refused(refused, "coverage must ")
    assert not out.exists()


@pytest.mark.parametrize("damage", ["byte", "pickle", "gone", "encoder", "record"])
def test_a_damaged_model_is_refused_and_runs_nothing(damage, folder, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained[0], run)
    model = run / "model.safetensors"
    content = bytearray(model.read_bytes())
    if damage == "byte":
        content[-3] ^= 1
        model.write_bytes(content)
    elif damage == "pickle":
        model.write_bytes(b"\x80\x04\x95cposix\nsystem\n(S'touch /tmp/pwned'\ntR.")
    elif damage == "gone":
        model.unlink()
    else:
        record = json.loads((run / "record.json").read_text())
        columns = record["table"]["encoder"]["schema"]["columns"]
        if damage == "encoder":
            del columns["mean radius"]
        else:  # still a record, of a model that says something else
            columns["mean radius"]["bounds"][1] *= 3
        (run / "record.json").write_text(json.dumps(record))
    name = "model.safetensors" if damage in {"byte", "pickle", "gone"} else "record.json"
    assert_refused(call("predict", run, folder / "test.csv"), name)
    out = tmp_path / "model.onnx"
    assert_refused(call("export", run, "--format", "onnx", "--out", out), name)
    assert not out.exists()


def test_images_of_ones_own_need_no_schema(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 600)
    images = rng.integers(0, 60, (600, 6, 6)).astype(np.uint8)
    images[labels == 1, :3] += 120
    names = np.array(["empty", "full"])[labels]
    np.savez(
        tmp_path / "i.npz", x=images[:500], y=names[:500], x_test=images[500:], y_test=names[500:]
    )
    line = ("train", tmp_path / "i.npz", *BUDGET, "--hidden", 16)
    outcome = call(*line, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["test_accuracy"] > 0.9
    assert "Not covered: classes of y" in outcome.json["statement"]
    assert (tmp_path / "run" / "checksum.key").exists()
    told = call("predict", tmp_path / "run", tmp_path / "i.npz", "--json").json
    assert {row["class"] for row in told} == {"empty", "full"}
    again = call(*line, "--out", tmp_path / "run", "--resume", "--json")
    assert again.json == outcome.json
    np.savez(tmp_path / "f.npz", x=images.reshape(600, 36) / 255.0, y=labels)
    refused = call("train", tmp_path / "f.npz", *BUDGET, "--out", tmp_path / "x")
    assert_refused(refused, "a table needs a schema", "--target y")
    kept = call(
        *("train", tmp_path / "i.npz", *BUDGET, "--hidden", 8, "--out", tmp_path / "y"),
        *("--test-fraction", 0.2),
    )
    assert_refused(kept, "x_test")


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """Rows of numbers in array files, with classes and with a number to predict."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1500, 3))
    x[::50, 2] = np.nan
    ill = np.where(x[:, 0] > 0, "ill", "well")
    folder = tmp_path_factory.mktemp("scores")
    np.savez(folder / "ill.npz", x=x[:1200], y=ill[:1200], x_test=x[1200:], y_test=ill[1200:])
    np.savez(folder / "days.npz", x=x.astype(np.float32), y=2 * x[:, 0] + 1)
    np.save(folder / "plain.npy", np.nan_to_num(x))
    np.save(folder / "images.npy", np.zeros((5, 4, 4)))
    return folder


def test_rows_of_numbers_in_arrays_are_a_table(scores, tmp_path):
    drafted = call("schema", scores / "ill.npz", "--target", "y", "--out", tmp_path / "s.toml")
    assert drafted.code == 0, drafted.err
    line = ("train", scores / "ill.npz", "--schema", tmp_path / "s.toml", *BUDGET)
    outcome = call(*line, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["test_accuracy"] > 0.85
    assert "bounds of x0" in outcome.json["statement"].partition("Not covered: ")[2]
    told = call("predict", tmp_path / "run", scores / "ill.npz", "-o", tmp_path / "told.csv")
    assert told.code == 0, told.err
    assert (tmp_path / "told.csv").read_text().count("\n") == 1201
    again = call(*line, "--out", tmp_path / "x", "--test-fraction", 0.2)
    assert_refused(again, "holds x_test", "--test-fraction")
    assert not (tmp_path / "x").exists()


def test_a_number_in_arrays_and_a_column_of_one_array_are_targets(scores, tmp_path):
    bounds = ("--private-bounds", 2, "--epsilon", 5, "--delta", 1e-5, "--test-fraction", 0.2)
    line = ("train", scores / "days.npz", "--target", "y", *bounds, "--json")
    outcome = call(*line, "--out", tmp_path / "a")
    assert outcome.code == 0, outcome.err
    assert outcome.json["rmse"] < 1.5
    line = ("train", scores / "plain.npy", "--target", "x0", *bounds, "--json")
    outcome = call(*line, "--out", tmp_path / "b")
    assert outcome.code == 0, outcome.err
    assert outcome.json["rmse"] is not None


def test_arrays_that_cannot_be_learnt_from_are_refused(scores, tmp_path):
    out = (*BUDGET, "--out", tmp_path / "x")
    assert_refused(call("train", scores / "plain.npy", *out), "no y", "np.savez", "--target x2")
    assert_refused(call("train", scores / "images.npy", *out), "np.savez")
    np.savez(tmp_path / "odd.npz", x=np.zeros((5, 2)), y=np.zeros((5, 2)))
    assert_refused(call("schema", tmp_path / "odd.npz", "--target", "y"), "one for each row of x")
    np.savez(tmp_path / "names.npz", x=np.zeros((5, 2)), labels=np.zeros(5))
    assert_refused(call("schema", tmp_path / "names.npz", "--target", "y"), "labels, x")
    np.savez(tmp_path / "half.npz", x=np.zeros((5, 2)), y=np.zeros(5), x_test=np.zeros((5, 2)))
    assert_refused(call("schema", tmp_path / "half.npz", "--target", "y"), "both x_test and y_test")
    objects = np.array([[object()]], dtype=object)
    np.savez(tmp_path / "objects.npz", x=objects, y=np.zeros(1), allow_pickle=True)
    assert_refused(call("train", tmp_path / "objects.npz", "--target", "y", *out), "would run code")
    content = (scores / "ill.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    assert_refused(call("train", tmp_path / "cut.npz", *out), "damaged")
    assert not (tmp_path / "x").exists()


def on_a_terminal(line: tuple[object, ...], answer: str) -> tuple[int, str]:
    """Exit code and everything shown, of a command in a process with a terminal of its own."""
    ours, theirs = pty.openpty()
    command = [*PROGRAM, *map(str, line)]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
            if b"[y/N]" in piece:
                os.write(ours, answer.encode())
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return child.wait(), " ".join(shown.decode().split())


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """A table with a column that looks like an identifier with repeats, and the line to train."""
    folder = tmp_path_factory.mktemp("repeated")
    rows = [f"{i % 40},{i % 50},{'ab'[i % 2]}" for i in range(200)]
    (folder / "t.csv").write_text("\n".join(["patient_id,age,y", *rows]))
    (folder / "s.toml").write_text(
        '[target]\nname = "y"\nclasses = ["a", "b"]\nsource = "public"\n'
        '[columns.age]\nkind = "numeric"\nbounds = [0, 50]\nsource = "public"\n'
    )
    return ("train", folder / "t.csv", "--schema", folder / "s.toml", *BUDGET)


def test_a_terminal_is_asked_about_an_identifier_and_no_means_no(repeated, tmp_path):
    code, shown = on_a_terminal((*repeated, "--out", tmp_path / "run"), "n\n")
    assert code == 2, shown
    assert "looks like an identifier with repeats" in shown
    assert "nothing was charged or written" in shown
    assert not (tmp_path / "run").exists()


def test_a_sweep_asks_once_and_tests_all_runs_on_the_same_rows(repeated, tmp_path):
    line = (*repeated, "--seeds", 2, "--test-fraction", 0.3, "--out", tmp_path / "runs")
    code, shown = on_a_terminal(line, "y\n")
    assert code == 0, shown
    assert shown.count("Go on with a guarantee for one row?") == 1
    assert shown.count("looks like an identifier") == 1
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/record.json")]
    assert len({record["dataset"]["checksum"] for record in records}) == 1
    compared = call("compare", *(tmp_path / "runs").iterdir())
    assert compared.err == ""
    assert compared.out.count("dpvd") == 1  # the seeds are averaged


def test_without_a_terminal_it_is_said_and_not_asked(repeated, tmp_path):
    outcome = call(*repeated, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("looks like an identifier with repeats") == 1
    assert "[y/N]" not in outcome.err
