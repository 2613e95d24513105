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
import random
import resource
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save

from dpvd import Clipping, PrivacyPlan
from dpvd.data import Schema, load_arrays, load_table, open_table, read_schema
from dpvd.errors import DpvdError
from dpvd.privacy import Ledger
from dpvd.privacy.chain import chained, new_chain
from dpvd.runs import RunRecord
from dpvd.runs.manifest import read_manifest
from dpvd.runs.model_file import load_model
from dpvd.training.checkpoint import FORMAT, Checkpoint

MEMORY = 4 << 30  # bytes more than at the start
RECORD = Path(__file__).parents[1] / "tests/runs/old_runs/finished/record.json"
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
PIECES = (b"\0", b"\n", b'"', b"{", b"[" * 3000, b"1e999", b"9" * 5000, b"\xff\xfe", b",", b"nan")


@dataclass(frozen=True)
class Reader:
    """How a file is called, what a valid one holds, what changes it, and who reads it."""

    name: str
    valid: bytes
    read: Callable[[Path], object]
    changes: tuple[Callable[[bytes, random.Random], bytes], ...]


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
        del entry["hash"]
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
    as_json = (change_bytes, change_json)
    as_tensors = (change_bytes, change_tensors)
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
            (change_bytes, change_ledger),
        ),
        Reader("model.safetensors", save(model.state_dict()), read_model, as_tensors),
        Reader("checkpoint.safetensors", checkpoint, Checkpoint.load, (*as_tensors, change_facts)),
        Reader(
            "manifest.json",
            json.dumps(manifest).encode(),
            lambda path: read_manifest(path.parent),
            as_json,
        ),
    ]


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
        for reader in chosen:
            started = time.monotonic()
            found = fuzz(reader, given.inputs // len(chosen), given.seed, place)
            done += given.inputs // len(chosen)
            problems += len(found)
            seconds = time.monotonic() - started
            print(f"{reader.name}: {given.inputs // len(chosen)} in {seconds:.0f} s", flush=True)
            for line in found:
                print(f"  {line}", flush=True)
    print(f"{done} inputs in {time.monotonic() - begun:.0f} s, {problems} uncaught")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
