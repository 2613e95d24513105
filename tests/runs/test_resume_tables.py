"""Runs on tables that were interrupted: nothing is paid for twice, and nothing is forgotten."""

import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest

from dpvd.errors import DpvdError
from dpvd.privacy import Ledger
from dpvd.runs import RunOptions, TableChoice, charged_in, execute_table, prepare_table
from dpvd.runs.tables import resume_table

DELTA = 1e-5
OPTIONS = RunOptions(delta=DELTA, epsilon=4.0, private_bounds=1.0)
SEEDED = replace(OPTIONS, seeded_noise=True, seed=3)
# What a run writes, in this order; an interrupted one lacks the end of it.
STAGES = (
    "ledger-estimate-1.jsonl",
    "ledger-estimate-2.jsonl",
    "ledger-estimate-3.jsonl",
    "ledger-mean.jsonl",
    "ledger-moments.jsonl",
    "ledger.jsonl",
    "ledger-calibration.jsonl",
    "model.safetensors",
    "record.json",
    "manifest.json",
)


@pytest.fixture(scope="module")
def choice(tmp_path_factory):
    """A regression on 4,000 rows, whose recipe takes steps and measures the residual."""
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("table") / "table.csv"
    age = rng.integers(20, 90, 4000)
    ward = rng.choice(["north", "south"], 4000)
    days = age / 10 + rng.normal(size=4000)
    rows = zip(age, ward, days, strict=True)
    lines = ["age,ward,days", *(f"{a},{w},{d:.2f}" for a, w, d in rows)]
    path.write_text("\n".join(lines))
    schema = path.with_name("schema.toml")
    schema.write_text(
        '[target]\nname = "days"\nbounds = [0, 12]\nsource = "public"\n'
        '[columns.age]\nkind = "numeric"\nsource = "private"\n'
        '[columns.ward]\nkind = "categorical"\nsource = "private"\nunseen = "other"\n'
    )
    return TableChoice(path, schema=schema, test_fraction=0.2)


@pytest.fixture(scope="module")
def whole(choice, tmp_path_factory):
    """A run that nothing interrupted, with seeded noise."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, execute_table(prepare_table(SEEDED, choice), folder)


def cut_short(whole, folder, last: str):
    """The folder as it was when the process died after writing this file."""
    source, _ = whole
    shutil.copytree(source, folder)
    for name in STAGES[STAGES.index(last) + 1 :]:
        (folder / name).unlink()
    if STAGES.index(last) < STAGES.index("ledger.jsonl"):
        (folder / "checkpoint.safetensors").unlink()
    return folder


def test_a_whole_run_writes_these_files_and_its_owner_alone_reads_the_releases(whole):
    folder, _ = whole
    known = {*STAGES, "options.json", "contents.json", "checksum.key", "checkpoint.safetensors"}
    assert {path.name for path in folder.iterdir()} == known
    for path in folder.glob("ledger-*.jsonl"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert Ledger.open(path).kept is not None


@pytest.mark.parametrize("last", STAGES)
def test_an_interrupted_run_goes_on_to_the_same_end_and_pays_nothing_twice(
    whole, choice, tmp_path, last
):
    folder = cut_short(whole, tmp_path / "run", last)
    before = {path.name: path.read_bytes() for path in folder.glob("ledger*.jsonl")}
    record = resume_table(SEEDED, choice, folder)
    _, expected = whole
    assert record.model["checksum"] == expected.model["checksum"]
    assert record.guarantee == expected.guarantee
    assert record.releases == expected.releases
    assert record.test == expected.test
    for name, content in before.items():
        assert (folder / name).read_bytes() == content
    charged = charged_in(folder)
    assert charged.steps == record.guarantee["steps"]
    # A hundredth of δ is for categories that one person alone has.
    assert charged.epsilon(0.99 * DELTA) == pytest.approx(record.guarantee["epsilon"], rel=1e-9)


def test_noise_from_the_system_is_not_drawn_again(choice, tmp_path):
    execute_table(prepare_table(OPTIONS, choice), tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "model.safetensors").unlink()
    resume_table(OPTIONS, choice, tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


@pytest.mark.parametrize("file", ["table", "schema"])
def test_a_file_that_has_changed_since_is_refused(whole, choice, tmp_path, file):
    folder = cut_short(whole, tmp_path / "run", "ledger-moments.jsonl")
    path = getattr(choice, file)
    kept = path.read_bytes()
    state = {each.name: each.read_bytes() for each in folder.iterdir()}
    try:
        path.write_bytes(kept + (b"\n30,north,4.0\n" if file == "table" else b"\n# a word\n"))
        with pytest.raises(DpvdError, match=f"the {file} has changed since"):
            resume_table(SEEDED, choice, folder)
    finally:
        path.write_bytes(kept)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == state


def test_a_charge_whose_result_is_not_there_is_not_had_again_for_nothing(whole, choice, tmp_path):
    folder = cut_short(whole, tmp_path / "run", "ledger-moments.jsonl")
    path = folder / "ledger-moments.jsonl"
    ledger = Ledger.open(path)
    kept = dict(ledger.kept)
    for changed in (None, {}, kept | {"numbers": "!"}, kept | {"shape": [1]}):
        path.unlink()
        Ledger.create(path, ledger.plan).charge(1, kept=changed)
        with pytest.raises(DpvdError, match=r"without its noisy result|damaged"):
            resume_table(SEEDED, choice, folder)
        assert charged_in(folder).steps == 5


@pytest.mark.parametrize("torn", ["ledger-mean.jsonl", "ledger.jsonl"])
def test_a_ledger_whose_making_was_cut_off_is_begun_again(whole, choice, tmp_path, torn):
    folder = cut_short(whole, tmp_path / "run", STAGES[STAGES.index(torn) - 1])
    (folder / torn).write_bytes(b'{"fingerprint": "12')
    record = resume_table(SEEDED, choice, folder)
    assert record.guarantee == whole[1].guarantee


@pytest.mark.parametrize("gone", [("contents.json",), ("contents.json", "checksum.key")])
def test_a_run_that_was_cut_off_before_its_first_charge_begins_anew(whole, choice, tmp_path, gone):
    folder = cut_short(whole, tmp_path / "run", STAGES[0])
    for name in (STAGES[0], *gone):
        (folder / name).unlink()
    assert resume_table(SEEDED, choice, folder).guarantee == whole[1].guarantee
