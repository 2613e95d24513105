"""A run's folder holds, or it is said which part of it does not."""

import json
import shutil

import pytest

from dpvd import Guarantee, PrivacyPlan
from dpvd.audit import AuditResult
from dpvd.errors import DpvdError
from dpvd.privacy import Ledger
from dpvd.runs import RunRecord, create_key, sign_run, verify_run, write_audit, write_manifest
from tests.cli.program import assert_refused, call, contents, train_line

SCHEMA = """[target]
name = "days"
bounds = [0, 12]
source = "public"
[columns.age]
kind = "numeric"
bounds = [0, 120]
source = "public"
[columns.ward]
kind = "categorical"
categories = ["n", "s"]
source = "public"
unseen = "other"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two finished runs, alike but for their noise."""
    place = tmp_path_factory.mktemp("runs")
    for name in ("one", "other"):
        assert call(*train_line(place / name)).code == 0
    return place


@pytest.fixture
def run(made, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(made / "one", folder)
    return folder


@pytest.fixture
def table_run(tmp_path):
    """A finished run on a table, on noise that is stated as secret."""
    rows = [f"{20 + i % 70},{'ns'[i % 2]},{(20 + i % 70) / 10:.2f}" for i in range(400)]
    (tmp_path / "table.csv").write_text("\n".join(["age,ward,days", *rows]))
    (tmp_path / "schema.toml").write_text(SCHEMA)
    line = ["train", tmp_path / "table.csv", "--target", "days", "--out", tmp_path / "table"]
    line += ["--schema", tmp_path / "schema.toml", "--epsilon", 4, "--delta", 1e-5]
    made = call(*line)
    assert made.code == 0, made.err
    return tmp_path / "table"


def problems_of(folder, **options):
    return " | ".join(verify_run(folder, **options).problems)


def test_a_run_holds_by_every_account(run):
    before = contents(run)
    found = verify_run(run)
    assert found.holds, found.problems
    stated = RunRecord.read(run).epsilon
    assert found.epsilons["pld"] == pytest.approx(stated, rel=1e-9)
    assert found.epsilons["fft"] == pytest.approx(stated, rel=2e-3)
    assert found.epsilons["rdp"] > stated
    assert contents(run) == before


def test_a_run_with_correlated_noise_holds_too(tmp_path):
    line = train_line(
        tmp_path / "run", method="dpsgd", bands=4, learning_rate=0.5, network="mlp", hidden=20
    )
    assert call(*line).code == 0
    found = verify_run(tmp_path / "run")
    assert found.holds, found.problems
    record = RunRecord.read(tmp_path / "run")
    assert found.epsilons["fft"] == pytest.approx(record.epsilon, rel=2e-3)
    assert record.plan["bands"] == 4
    assert "correlated over up to 4 steps" in record.guarantee["sentence"]


FILES = ("record.json", "model.safetensors", "options.json", "ledger.jsonl", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_and_its_file_named(run, name):
    path = run / name
    content = bytearray(path.read_bytes())
    for place in range(3, len(content) - 1, max(1, len(content) // 7)):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        found = problems_of(run)
        assert found, f"byte {place} of {name} was changed"
        if name != "manifest.json":  # a changed manifest disagrees with what it names
            assert name in found or name.split(".")[0] in found


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(run, name):
    (run / name).unlink()
    assert not verify_run(run).holds


def test_the_model_of_another_run_is_found_although_the_manifest_was_renewed(run, made):
    shutil.copy(made / "other" / "model.safetensors", run / "model.safetensors")
    assert "model.safetensors: is not the file" in problems_of(run)
    write_manifest(run)
    assert problems_of(run) == "model: is not the one that the record was written for"


def edit_record(run, change):
    path = run / "record.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    write_manifest(run)  # as whoever edits it on purpose would


def test_a_smaller_epsilon_in_the_record_is_found_although_the_manifest_was_renewed(run):
    def claim_less(record):
        record["guarantee"]["epsilon"] *= 0.99

    edit_record(run, claim_less)
    assert "epsilon: 0.98" in problems_of(run)


def test_fewer_steps_in_the_record_are_found(run):
    def claim_fewer(record):
        record["guarantee"]["steps"] -= 1

    edit_record(run, claim_fewer)
    assert "charges: 15 charged, 14 stated" in problems_of(run)


def test_another_plan_in_the_record_is_found(run):
    def claim_more_noise(record):
        record["plan"]["noise_multiplier"] *= 2

    edit_record(run, claim_more_noise)
    assert "plans: the ledgers have others than the record" in problems_of(run)


def words(guarantee, **changes):
    """The same statement with other fields, and the sentence that they make."""
    return Guarantee.from_dict({**guarantee, **changes}).to_dict()


# By name, what is made of a statement, and what is said of it.
OTHER_WORDS = {
    "sentence": (
        lambda told: {**told, "sentence": "(0.01, 1e-05)-" + told["sentence"].partition("-")[2]},
        "its sentence is not the one that its numbers make",
    ),
    "an epsilon in words": (
        lambda told: {**told, "epsilon": "0.01"},
        "epsilon must be",
    ),
    "no privacy, and a sentence that claims it": (
        lambda told: {**told, "epsilon": "inf"},
        "its sentence is not the one that its numbers make",
    ),
    "noise source": (
        lambda told: words(told, noise_source="a hardware generator"),
        "noise_source is 'a hardware generator', from the ledgers \"the system's",
    ),
    "seeded": (
        lambda told: words(told, noise_source=PLAN.bits("noise").description),
        "noise_source is 'reproducible",
    ),
    "relation": (
        lambda told: words(told, relation="replace-one"),
        "another relation than the statement",
    ),
    "unit": (lambda told: words(told, unit="hospital"), "unit is 'hospital'"),
    "sampling": (lambda told: words(told, sampling="all examples"), "sampling is 'all examples'"),
    "noise": (lambda told: words(told, noise_multiplier=9.0), "noise_multiplier is 9,"),
    "tuned": (lambda told: words(told, tuned=[]), "tuned is ()"),
    "public": (lambda told: words(told, public=[]), "public is ()"),
    "accountant": (lambda told: words(told, accountant="rdp"), "epsilon: 0.9"),
    "a field more": (lambda told: {**told, "approved": "yes"}, "not a privacy guarantee"),
}
PLAN = PrivacyPlan(examples=10, batch_size=5, steps=1, noise="seeded", seed=1)


@pytest.mark.parametrize("name", OTHER_WORDS)
def test_a_statement_that_does_not_follow_from_the_ledgers_is_found(run, name):
    change, said = OTHER_WORDS[name]
    edit_record(run, lambda record: record.update(guarantee=change(record["guarantee"])))
    assert said in problems_of(run)


def test_words_of_another_version_are_verified_with_that_version(run):
    def write_otherwise(record):
        record["guarantee"]["sentence"] += " So it was said once."
        record["version"] = "0.0.9"

    edit_record(run, write_otherwise)
    assert "it was written by version 0.0.9: verify it with that one" in problems_of(run)


def test_a_claim_of_a_run_that_charged_nothing_is_found(run):
    (run / "ledger.jsonl").unlink()
    edit_record(run, lambda record: None)
    assert "charges: a guarantee is stated, and there is no ledger" in problems_of(run)

    def claim_in_words(record):
        record["guarantee"]["epsilon"] = "inf"

    edit_record(run, claim_in_words)
    assert problems_of(run) == "statement: its sentence is not the one that its numbers make"


def test_a_run_on_a_table_holds_and_its_schema_and_releases_are_its_own(table_run):
    assert verify_run(table_run).problems == []
    path = table_run / "record.json"
    written = path.read_text()
    schema = json.loads(written)["table"]["encoder"]["schema"]
    assert "120" in json.dumps(schema)
    path.write_text(written.replace("120", "121", 1))
    assert "record.json: is not the file that the manifest describes" in problems_of(table_run)
    path.write_text(written)

    def claim_more_noise(record):
        record["releases"][0]["noise_multiplier"] *= 2

    edit_record(table_run, claim_more_noise)
    assert "'mean' has another noise or number of steps than its ledger" in problems_of(table_run)


def lines_of(run):
    return (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)


TAMPERED = {
    "dropped": lambda lines: lines[:3] + lines[4:],
    "repeated": lambda lines: lines[:4] + lines[3:],
    "moved": lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]],
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_ledger_lines_that_are_not_in_order_are_found(run, tamper):
    lines = lines_of(run)
    assert len(lines) > 6
    (run / "ledger.jsonl").write_bytes(b"".join(tamper(lines)))
    found = problems_of(run)
    assert "does not follow from the lines before it" in found
    assert "ledger.jsonl" in found


def test_lines_taken_off_the_end_are_found_although_the_manifest_was_renewed(run):
    (run / "ledger.jsonl").write_bytes(b"".join(lines_of(run)[:-1]))
    assert "ends with another line than when the run was finished" in problems_of(run)
    write_manifest(run)
    assert "charges: 14 charged, 15 stated" in problems_of(run)


def test_a_ledger_that_was_charged_again_is_found(run):
    Ledger.open(run / "ledger.jsonl").charge(1)
    assert "ledger.jsonl: is not the file" in problems_of(run)


def test_an_audit_that_found_more_than_is_claimed_is_told(run):
    record = RunRecord.read(run)
    found = {"attack": "a", "bound": "b", "delta": 1e-5, "trials": 1, "seconds": 1.0, "details": {}}
    for measured, problem in ((0.5, ""), (2.0, "audit.json: the claim is violated")):
        result = AuditResult(claimed_epsilon=1.0, lower_bound=measured, confidence=0.999, **found)
        write_audit(run, record, result)
        assert problems_of(run).startswith(problem)
        assert verify_run(run).holds == (problem == "")
    (run / "audit.json").write_text("{}")
    assert "audit.json" in problems_of(run)


def kinship(run, copy):
    (found,) = (check for check in verify_run(run, other=copy).checks if str(copy) in check.name)
    return found.holds, found.detail


def charge(folder, steps):
    ledger = Ledger.open(folder / "ledger.jsonl")
    ledger.charge(steps)
    ledger.close()


def test_a_run_that_was_copied_and_resumed_twice_is_found(made, run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    assert kinship(run, copy) == (True, "the same run, at the same point")
    charge(run, 2)
    assert kinship(run, copy) == (True, "an earlier copy of this run")
    assert kinship(copy, run) == (True, "the same run, which went on there")
    charge(copy, 2)
    for folders in ((run, copy), (copy, run)):
        holds, detail = kinship(*folders)
        assert not holds
        assert detail.startswith("one run was resumed twice")
    assert kinship(run, made / "other")[0]
    assert "another run" in kinship(run, made / "other")[1]


def test_folders_that_cannot_be_compared_are_not_said_to_hold(made, run, tmp_path):
    with pytest.raises(DpvdError, match="there is no ledger in"):
        verify_run(run, other=tmp_path / "nowhere")
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    ledger = copy / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[10:])
    assert kinship(run, copy)[0] is False
    done = call("verify", made / "one", made / "other")
    assert done.code == 0, done


def test_a_folder_from_before_manifests_is_not_verified(run):
    (run / "manifest.json").unlink()
    assert "manifest" in problems_of(run)


def test_a_signature_is_of_the_run_and_by_the_key(run, made, tmp_path):
    public = create_key(tmp_path / "officer.key")
    assert (tmp_path / "officer.key").stat().st_mode & 0o777 == 0o600
    assert "cannot be read" in problems_of(run, key=public)  # nobody has signed yet
    sign_run(run, tmp_path / "officer.key")
    assert verify_run(run, key=public).holds
    stranger = create_key(tmp_path / "stranger.key")
    assert "not a signature of this run's manifest by this key" in problems_of(run, key=stranger)
    shutil.copy(made / "other" / "manifest.json", run / "manifest.json")
    assert "not a signature of this run's manifest" in problems_of(run, key=public)


def test_keys_and_folders_that_are_none_are_refused(run, tmp_path):
    (tmp_path / "text").write_text("no key")
    with pytest.raises(DpvdError, match="not an Ed25519 private key"):
        sign_run(run, tmp_path / "text")
    assert "not an Ed25519 public key" in problems_of(run, key=tmp_path / "text")
    with pytest.raises(DpvdError, match="there is no run folder"):
        verify_run(tmp_path / "nowhere")
    create_key(tmp_path / "key")
    with pytest.raises(DpvdError, match="exists already"):
        create_key(tmp_path / "key")


def test_the_commands_say_it_and_their_exit_codes_do(run, tmp_path):
    good = call("verify", run)
    assert good.code == 0, good
    assert good.out.splitlines()[-1] == "verified"
    told = call("sign", "--new-key", tmp_path / "key")
    assert told.code == 0, told
    assert call("sign", run, "--key", tmp_path / "key").code == 0
    signed = call("verify", run, "--key", tmp_path / "key.pub", "--json")
    assert signed.code == 0
    assert signed.json["verified"]
    assert set(signed.json["epsilon"]) == {"pld", "rdp", "fft"}
    (run / "options.json").write_text("{}")
    bad = call("verify", run)
    assert bad.code == 1
    assert "options.json" in bad.out.splitlines()[-1]
    assert_refused(call("sign", run, "--key", tmp_path / "key"), "does not hold", "options.json")
    assert_refused(call("sign", run), "name the run and the key")
    assert_refused(call("sign", run, "--new-key", tmp_path / "more"), "give it alone")
