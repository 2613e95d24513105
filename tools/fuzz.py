"""Damaged and hostile files for every reader: one exception type may come out, and nothing else.

Valid files are written, changed and read in this process: bytes flipped, cut, repeated; values in
JSON and in headers replaced by what no program writes, with checksums and chains made anew so that
the damage gets past them. A reader returns, or raises ``DpvdError``; anything else is printed with
the seed that makes it again. Memory is limited while it runs.

    python -m tools.fuzz --inputs 1000000
"""

import argparse
import copy
import io
import json
import math
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save

from dpvd import Clipping, PrivacyPlan
from dpvd.cli.show import show
from dpvd.data import Schema, load_arrays, load_table, open_table, read_array, read_schema
from dpvd.data.idx import parse_idx
from dpvd.errors import DpvdError
from dpvd.privacy import Cost, DataAccount, Ledger
from dpvd.privacy.chain import chained, new_chain
from dpvd.privacy.ledger import fingerprint
from dpvd.runs import (
    RunOptions,
    RunRecord,
    TableChoice,
    TrainedRun,
    TrainedTable,
    create_key,
    execute_table,
    prepare_table,
    sign_run,
    verify_run,
)
from dpvd.runs.draw import known_starts
from dpvd.runs.manifest import read_manifest
from dpvd.runs.model_file import load_model
from dpvd.runs.run_dir import MANIFEST, SIGNATURE, reopen_run_dir
from dpvd.runs.signature import check_signature
from dpvd.training.checkpoint import FORMAT, Checkpoint

MEMORY = 4 << 30  # bytes more than at the start
RECORD = Path(__file__).parents[1] / "tests/runs/old_runs/finished/record.json"
OPTIONS = RECORD.with_name("options.json")
CSV = "age,ward,days\n" + "".join(f"{20 + i},{'ns'[i % 2]},{i / 3:.2f}\n" for i in range(40))
SCHEMA = """[target]
name = "days"
bounds = [0, 20]
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
# What no program of ours writes.
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    10**400,
    -(2**63),
    2**64,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "inf",
    "\ud800",
    "\0",
    "../../etc/passwd",
    "x" * 5000,
    [],
    {},
    [[[[[[]]]]]],
    {"": {"": []}},
    [None] * 3,
    ["a", 1, None],
)
# For numbers of a plan: each is allowed somewhere.
NUMBERS = (0, 1, 2, 7, 10**6, 10**12, 10**30, 1e-300, 1e-9, 0.01, 1e9, 1e300, True)
SIZES = (0, 1, 2, 7, 39, 41, 10**30, 0.5)  # others make sampling that takes minutes to account
PIECES = (b"\0", b"\n", b'"', b"{", b"[" * 3000, b"1e999", b"9" * 5000, b"\xff\xfe", b",", b"nan")


@dataclass(frozen=True)
class Reader:
    """How a file is called, what a valid one holds, what changes it, and who reads it.

    ``share`` is how many inputs it gets for one of the others; ε of a whole folder takes a while.
    """

    name: str
    valid: bytes
    read: Callable[[Path], object]
    changes: tuple[Callable[[bytes, random.Random], bytes], ...]
    share: float = 1.0


# Changes: of bytes, and of what the bytes mean.


def change_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four small damages anywhere."""
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(damaged) + 1)
        end = min(len(damaged), at + rng.randint(0, 30))
        match rng.randrange(6):
            case 0:
                damaged[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del damaged[at:end]
            case 2:
                damaged[at:at] = damaged[at:end] * rng.randint(1, 50)
            case 3:
                damaged[at:at] = rng.choice(PIECES)
            case 4:
                del damaged[at:]
            case _:
                damaged[at:end] = rng.randbytes(end - at)
    return bytes(damaged)


def change_value(plain: Any, rng: random.Random) -> Any:
    """Plain data with one value replaced, removed or added, at any depth."""
    changed = copy.deepcopy(plain)
    node = changed
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return rng.choice(HOSTILE)
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        what = rng.randrange(8)
        if what == 0:
            del node[key]
        elif what == 1 and isinstance(node, dict):
            node[str(rng.choice(HOSTILE))[:50]] = rng.choice(HOSTILE)
        else:
            node[key] = rng.choice(HOSTILE)
        return changed


def change_json(content: bytes, rng: random.Random) -> bytes:
    return json.dumps(change_value(json.loads(content), rng)).encode()


def change_ledger(content: bytes, rng: random.Random) -> bytes:
    """A value replaced, and the chain made anew."""
    entries = [json.loads(line) for line in content.splitlines()]
    for entry in entries:
        entry.pop("hash", None)  # ledgers of the first version have none
    changed = change_value(entries, rng)
    chain = new_chain()
    lines = []
    for entry in changed if isinstance(changed, list) else []:
        try:
            lines.append(chained(entry, chain))
        except (DpvdError, TypeError, ValueError):
            lines.append(json.dumps(entry).encode() + b"\n")
    return b"".join(lines)


def change_tensors(content: bytes, rng: random.Random) -> bytes:
    """The header of a safetensors file changed, its length right."""
    size = int.from_bytes(content[:8], "little")
    header = change_json(content[8 : 8 + size], rng)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def change_facts(content: bytes, rng: random.Random) -> bytes:
    """The facts of a checkpoint changed, inside a header that is right."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    facts = header["__metadata__"]["facts"].encode()
    change = change_json if rng.random() < 0.7 else change_bytes
    header["__metadata__"]["facts"] = change(facts, rng).decode("utf-8", "replace")
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def change_members(content: bytes, rng: random.Random) -> bytes:
    """An array inside an archive damaged, its checksums right."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        hit = rng.choice(old.namelist())
        for name in old.namelist():
            member = old.read(name)
            if name == hit:
                member = change_bytes(member[:128], rng) + member[128:]
            new.writestr(name, member)
    return packed.getvalue()


def change_header(content: bytes, rng: random.Random) -> bytes:
    """Damage where sizes and types stand."""
    return change_bytes(content[:128], rng) + content[128:]


# Changes of a folder, which is packed into one file.


def pack(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def change_folder(content: bytes, rng: random.Random) -> bytes:
    """One file of a run damaged; mostly with checksums made anew, as whoever means harm would."""
    members = unpack(content)
    name = rng.choice(sorted(members))
    changes = [change_bytes]
    if name.endswith(".json"):
        changes.append(change_json)
    elif name.endswith(".jsonl"):
        changes.append(change_ledger)
    elif name.endswith(".safetensors"):
        changes.append(change_tensors)
    members[name] = rng.choice(changes)(members[name], rng)
    return pack(renewed(members) if rng.random() < 0.8 else members)


def change_plan(content: bytes, rng: random.Random) -> bytes:
    """A number of the plan replaced in record and ledger alike, so that they agree."""
    members = unpack(content)
    record = json.loads(members["record.json"])
    before = record["plan"]
    numbers = [name for name, value in before.items() if isinstance(value, int | float)]
    name = rng.choice(numbers)
    plan = {**before, name: rng.choice(SIZES if name in ("examples", "batch_size") else NUMBERS)}
    record["plan"] = plan
    for entry in record.get("releases", ()):
        if entry["plan"] == before:
            entry["plan"] = plan
    members["record.json"] = json.dumps(record).encode()
    for name, lines in members.items():
        if name.endswith(".jsonl"):
            members[name] = with_plan(lines, before, plan)
    return pack(renewed(members))


def with_plan(lines: bytes, before: Any, plan: Any) -> bytes:
    """A ledger that was begun with another plan."""
    entries = [json.loads(line) for line in lines.splitlines()]
    if entries[0]["plan"] == before:
        entries[0].update(plan=plan, fingerprint=fingerprint(plan))
    for entry in entries:
        entry.pop("hash", None)
    chain = new_chain()
    return b"".join(chained(entry, chain) for entry in entries)


def renewed(members: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a run with the checksums that they have now."""
    try:
        record = json.loads(members["record.json"])
        record["model"]["checksum"] = sha256(members["model.safetensors"]).hexdigest()
        members["record.json"] = json.dumps(record).encode()
    except (KeyError, TypeError, ValueError, RecursionError):
        pass  # it is the record that was damaged
    files = {name: sha256(held).hexdigest() for name, held in members.items() if name != MANIFEST}
    heads = {name: last_hash(held) for name, held in members.items() if name.endswith(".jsonl")}
    manifest = {"files": files, "format": 1, "heads": heads}
    return {**members, MANIFEST: json.dumps(manifest).encode()}


def last_hash(lines: bytes) -> str | None:
    try:
        found: str | None = json.loads(lines.splitlines()[-1])["hash"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return found


# Readers, each going as far into a file as the program does.


def read_all(path: Path) -> None:
    for _ in open_table(path).batches():
        pass


def read_rows(path: Path) -> None:
    load_table(path, _SCHEMA, test_fraction=0.5, seed=1)


def read_plan(path: Path) -> None:
    """A plan from JSON, as ledgers and records hold it."""
    PrivacyPlan.from_dict(json.loads(path.read_bytes()))


def read_record(path: Path) -> None:
    record = RunRecord.read(path.parent)
    _ = record.epsilon, record.is_private, record.reliability_bins(), record.confusion_matrix()
    record.alpha_histograms()
    record.series("epsilon")
    record.layer_name("0")


def read_ledger(path: Path) -> None:
    PrivacyPlan.from_dict(Ledger.open(path).plan)


def read_model(path: Path) -> None:
    load_model(lambda: torch.nn.Linear(3, 2), path, {})


def read_options(path: Path) -> None:
    reopen_run_dir(path.parent, json.loads(OPTIONS.read_bytes()))


def read_account(path: Path) -> None:
    """An account as ``dpvd account`` reads it."""
    account = DataAccount.open(path)
    _ = account.spent, account.drawn


def read_folder(path: Path) -> None:
    """A stranger's folder through ``verify``, ``show`` and ``predict``, each to its end."""
    place = path.with_suffix("")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in unpack(path.read_bytes()).items():
        (place / name).write_bytes(content)
    verify_run(place).verdict.encode("utf-8", "replace")
    looks = (show_folder, predict_table if path.stem == "table" else predict_images)
    problems = []
    for look in looks:
        try:
            look(place)
        except DpvdError as problem:
            problems.append(problem)
    for problem in problems:
        raise problem


def show_folder(place: Path) -> None:
    with redirect_stdout(io.StringIO()):
        show(place)


def predict_images(place: Path) -> None:
    trained = TrainedRun(place)
    trained.predict_dist(torch.zeros(2, trained.network.features), samples=2)


def predict_table(place: Path) -> None:
    for _ in TrainedTable(place).predictions(open_table(place.parent / "rows.csv"), samples=2):
        pass


_SCHEMA: Schema


def readers(place: Path) -> list[Reader]:
    """All of them, with valid files."""
    global _SCHEMA
    (place / "schema.toml").write_text(SCHEMA)
    _SCHEMA = read_schema(place / "schema.toml")
    arrays = io.BytesIO()
    np.savez(arrays, x=np.arange(40, dtype=np.float32).reshape(10, 4), y=np.arange(10) % 2)
    columns = io.BytesIO()
    pl.read_csv(io.StringIO(CSV)).write_parquet(columns)
    model = torch.nn.Linear(3, 2)
    plan = PrivacyPlan(
        examples=100, batch_size=10, steps=5, noise_multiplier=1.0, clipping=Clipping("flat", 1.0)
    )
    ledger = Ledger.create(place / "ledger.jsonl", plan.to_dict())
    ledger.charge(2)
    ledger.charge(1, kept={"numbers": "AAAA", "shape": [1]})
    ledger.close()
    facts = {"fingerprint": plan.fingerprint, "history": [{"epoch": 1.0}], "step": {"taken": 3}}
    checkpoint = save(model.state_dict(), {"format": FORMAT, "facts": json.dumps(facts)})
    manifest = {"files": {"record.json": "ab" * 32}, "format": 1, "heads": {"ledger.jsonl": None}}
    account = DataAccount.create(place / "account", epsilon=4.0, delta=1e-5)
    account.settle(account.reserve("a run", Cost.of(plan.event())), Cost.of(plan.event(2)))
    account.reserve("another", Cost.of(plan.event()))
    public = create_key(place / "officer")
    (place / "signed").mkdir()
    (place / "signed" / MANIFEST).write_text(json.dumps(manifest))
    signature = sign_run(place / "signed", place / "officer").read_bytes()
    starts = json.dumps({"run": "ab" * 16, "starts": ["cd" * 16, "ef" * 16]}).encode()
    numbers, arrow = io.BytesIO(), io.BytesIO()
    np.save(numbers, np.arange(40, dtype=np.float32).reshape(10, 4))
    pl.read_csv(io.StringIO(CSV)).write_ipc(arrow)
    (place / "rows.csv").write_text(CSV)
    as_json = (change_bytes, change_json)
    as_lines = (change_bytes, change_ledger)
    as_tensors = (change_bytes, change_tensors)
    as_folder = (change_folder, change_folder, change_folder, change_plan)
    return [
        Reader("table.csv", CSV.encode(), read_rows, (change_bytes,)),
        Reader("table.parquet", columns.getvalue(), read_all, (change_bytes,)),
        Reader("arrays.npz", arrays.getvalue(), load_arrays, (change_bytes, change_members)),
        Reader("schema.toml", SCHEMA.encode(), read_schema, (change_bytes,)),
        Reader("plan.json", json.dumps(plan.to_dict()).encode(), read_plan, (change_json,)),
        Reader("record.json", RECORD.read_bytes(), read_record, as_json),
        Reader(
            "ledger.jsonl",
            (place / "ledger.jsonl").read_bytes(),
            read_ledger,
            as_lines,
        ),
        Reader("model.safetensors", save(model.state_dict()), read_model, as_tensors),
        Reader("checkpoint.safetensors", checkpoint, Checkpoint.load, (*as_tensors, change_facts)),
        Reader(
            "manifest.json",
            json.dumps(manifest).encode(),
            lambda path: read_manifest(path.parent),
            as_json,
        ),
        Reader("account", (place / "account").read_bytes(), read_account, as_lines, share=0.05),
        Reader("account.json", starts, lambda path: known_starts(path.parent), as_json),
        Reader("options.json", OPTIONS.read_bytes(), read_options, as_json),
        Reader(
            "signed/officer.key",
            (place / "officer").read_bytes(),
            lambda path: sign_run(path.parent, path),
            (change_bytes,),
        ),
        Reader(
            "signed/officer.pub",
            public.read_bytes(),
            lambda path: check_signature(path.parent, path),
            (change_bytes,),
        ),
        Reader(
            f"signed/{SIGNATURE}",
            signature,
            lambda path: check_signature(path.parent, public),
            (change_bytes,),
        ),
        Reader("array.npy", numbers.getvalue(), read_array, (change_bytes, change_header)),
        Reader("table.arrow", arrow.getvalue(), read_all, (change_bytes, change_header)),
        Reader(
            "digits.idx",
            bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3, *range(18)]),
            lambda path: parse_idx(path.read_bytes(), "digits"),
            (change_bytes, change_header),
        ),
        Reader("images.zip", images_folder(), read_folder, as_folder, share=0.02),
        Reader("table.zip", table_folder(place), read_folder, as_folder, share=0.02),
    ]


def images_folder() -> bytes:
    """A finished run on DIGITS, as it is in the tests."""
    names = ("record.json", "model.safetensors", "options.json", "ledger.jsonl")
    return pack(renewed({name: (RECORD.parent / name).read_bytes() for name in names}))


def table_folder(place: Path) -> bytes:
    """A run on the table, carried out."""
    folder = place / "trained"
    (place / "rows.csv").write_text(CSV)
    choice = TableChoice(place / "rows.csv", schema=place / "schema.toml")
    execute_table(prepare_table(RunOptions(delta=1e-5, epsilon=8.0), choice), folder)
    names = [MANIFEST, *read_manifest(folder).files]
    return pack({name: (folder / name).read_bytes() for name in names})


def fuzz(reader: Reader, inputs: int, seed: int, place: Path) -> list[str]:
    """Read so many damaged files and return what came out that must not, each kind once."""
    path = place / reader.name
    found: dict[str, str] = {}
    for number in range(inputs):
        rng = random.Random(f"{reader.name} {seed} {number}")
        content = rng.choice(reader.changes)(reader.valid, rng)
        path.write_bytes(content)
        try:
            reader.read(path)
        except DpvdError:
            continue
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {where.filename}:{where.lineno}"
            found.setdefault(kind, f"{reader.name} {number} (seed {seed}): {kind}: {error!s:.200}")
    path.unlink(missing_ok=True)
    return list(found.values())


def limit_memory() -> None:
    """Let an allocation that a file asks for fail, not the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for all readers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of files")
    given = parser.parse_args()
    problems = 0
    done = 0
    begun = time.monotonic()
    limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        chosen = [each for each in readers(place) if not given.only or each.name in given.only]
        shares = sum(reader.share for reader in chosen)
        for reader in chosen:
            started = time.monotonic()
            inputs = math.ceil(given.inputs * reader.share / shares)
            found = fuzz(reader, inputs, given.seed, place)
            done += inputs
            problems += len(found)
            seconds = time.monotonic() - started
            print(f"{reader.name}: {inputs} in {seconds:.0f} s", flush=True)
            for line in found:
                print(f"  {line}", flush=True)
    print(f"{done} inputs in {time.monotonic() - begun:.0f} s, {problems} uncaught")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
