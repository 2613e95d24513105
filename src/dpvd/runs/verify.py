"""Whether the folder of a finished run is what it says: files, ledgers, statement, model, ε."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_accounting import ComposedDpEvent

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Ledger, Relation, epsilon, second_opinion
from dpvd.runs.manifest import Manifest, checksum, ledgers_in, read_manifest
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import MODEL, RECORD
from dpvd.runs.signature import check_signature

__all__ = ["Check", "Verification", "verify_run"]

_ROUNDING = 1e-6  # relative difference in ε that is one of arithmetic
_ESTIMATE = 2e-3  # within which the second opinion, which is no bound, is right


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of what was looked at.
        holds: whether it is as it must be.
        detail: what was found.
    """

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True)
class Verification:
    """All that was looked at in a run.

    Attributes:
        checks: in order; what rests on something that does not hold is left out.
        epsilons: ε from the ledgers by each means; empty for a run without privacy.
    """

    checks: tuple[Check, ...]
    epsilons: dict[str, float]

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """What does not hold, one line each."""
        return [f"{check.name}: {check.detail}" for check in self.checks if not check.holds]

    @property
    def verdict(self) -> str:
        """``verified``, or ``not verified`` and why."""
        return "verified" if self.holds else "not verified: " + "; ".join(self.problems)


def verify_run(folder: Path | str, key: Path | str | None = None) -> Verification:
    """Check a finished run, and compute its ε anew from its ledgers.

    Guarantees: nothing in the folder is run or changed. It finds a changed byte in record, model,
    options or ledgers; a model of another run; a statement for other steps than the ledgers hold,
    or with an ε below what they cost; a ledger with lines dropped, repeated, moved or taken off its
    end. Whoever can write all files can make them agree again: that is what a signature is for.

    Args:
        folder: of the run.
        key: file with the public key that must have signed the run; None asks for no signature.

    Raises:
        DpvdError: if there is no such folder, or the key cannot be read.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DpvdError(f"there is no run folder {place}")
    looked: list[Check] = []
    epsilons: dict[str, float] = {}
    if key is not None:
        looked.append(_tried("signature", lambda: check_signature(place, Path(key))))
    looked += _files(place)
    record = _record(place, looked)
    ledgers = _ledgers(place, looked)
    if record is not None and ledgers is not None:
        looked += _statement(record, ledgers)
        if all(check.holds for check in looked):
            looked += _epsilon(record, ledgers, epsilons)
    return Verification(tuple(looked), epsilons)


def _tried(name: str, look: Callable[[], str]) -> Check:
    """What a look says, or why it fails."""
    try:
        return Check(name, True, look())
    except DpvdError as error:
        return Check(name, False, str(error))


def _files(folder: Path) -> Iterator[Check]:
    """The manifest, and every file that it names."""
    try:
        manifest = read_manifest(folder)
    except DpvdError as error:
        yield Check("manifest", False, str(error))
        return
    yield Check("manifest", True, f"{len(manifest.files)} files")
    for name in sorted({RECORD, MODEL} - set(manifest.files)):
        yield Check(name, False, "is not in the manifest")
    for name, digest in manifest.files.items():
        yield _file(folder, name, digest)
    for path in ledgers_in(folder):
        if path.name not in manifest.files:
            yield Check(path.name, False, "is not in the manifest: it was added later")
    yield from _heads(folder, manifest)


def _file(folder: Path, name: str, digest: str) -> Check:
    if Path(name).name != name:
        return Check(name, False, "is not a file of this folder")
    try:
        found = checksum(folder / name)
    except DpvdError as error:
        return Check(name, False, str(error))
    if found != digest:
        return Check(name, False, "is not the file that the manifest describes: its bytes differ")
    return Check(name, True, "unchanged")


def _heads(folder: Path, manifest: Manifest) -> Iterator[Check]:
    """Whether the ledgers end where they ended when the run did."""
    for name, head in manifest.heads.items():
        path = folder / Path(name).name
        try:
            found = Ledger.open(path).head
        except DpvdError:
            continue  # told where the ledgers are read
        if found != head:
            yield Check(name, False, "ends with another line than when the run was finished")


def _record(folder: Path, looked: list[Check]) -> RunRecord | None:
    """The record, whose model must be the one in the folder."""
    try:
        record = RunRecord.read(folder)
    except DpvdError as error:
        looked.append(Check("record", False, str(error)))
        return None
    stated = record.model.get("checksum")
    if stated is None:
        looked.append(Check("model", False, "the record does not say which model it is of"))
        return record
    try:
        found = checksum(folder / MODEL)
    except DpvdError as error:
        looked.append(Check("model", False, str(error)))
        return record
    same = found == stated
    detail = "is the record's" if same else "is not the one that the record was written for"
    looked.append(Check("model", same, detail))
    return record


def _ledgers(folder: Path, looked: list[Check]) -> list[tuple[PrivacyPlan, int]] | None:
    """Each plan and how many of its steps were charged."""
    found = []
    for path in ledgers_in(folder):
        try:
            ledger = Ledger.open(path)
            if ledger.charged:
                found.append((PrivacyPlan.from_dict(ledger.plan), ledger.charged))
        except DpvdError as error:
            looked.append(Check(path.name, False, str(error)))
            return None
        chained = "chained" if ledger.head else "of an early version, without a chain"
        detail = f"{ledger.charged} steps, {chained}, begun {len(ledger.starts)} times"
        looked.append(Check(path.name, True, detail))
    return found


def _statement(record: RunRecord, ledgers: list[tuple[PrivacyPlan, int]]) -> Iterator[Check]:
    """Whether record and ledgers tell of the same plans and steps."""
    if not ledgers and not record.is_private:
        yield Check("charges", True, "none, and no privacy is claimed")
        return
    if not ledgers:
        yield Check("charges", False, "a guarantee is stated, and there is no ledger")
        return
    stated = [entry["plan"] for entry in record.releases] or [record.plan]
    charged = [plan.to_dict() for plan, _ in ledgers]
    same = sorted(map(_canonical, stated)) == sorted(map(_canonical, charged))
    detail = "the ledgers' are the record's" if same else "the ledgers have others than the record"
    yield Check("plans", same, detail)
    steps = sum(taken for _, taken in ledgers)
    enough = steps == record.guarantee["steps"]
    detail = f"{steps} charged, {record.guarantee['steps']} stated"
    yield Check("charges", enough, detail)


def _epsilon(
    record: RunRecord, ledgers: list[tuple[PrivacyPlan, int]], epsilons: dict[str, float]
) -> Iterator[Check]:
    """ε of the ledgers by several means, none of which may be above what is stated."""
    if not ledgers:
        return
    event = ComposedDpEvent([plan.event(taken) for plan, taken in ledgers])
    relation = Relation.parse(record.guarantee["relation"])
    if any(plan.relation is not relation for plan, _ in ledgers):
        yield Check("epsilon", False, "the ledgers are under another relation than the statement")
        return
    delta = float(record.guarantee["delta"])
    stated = record.epsilon
    if stated is None:
        return  # nothing is claimed
    accountant = AccountantName.parse(record.guarantee["accountant"])
    for name in {accountant, AccountantName.PLD, AccountantName.RDP}:
        try:
            epsilons[str(name)] = epsilon(event, delta, accountant=name, relation=relation)
        except DpvdError:
            continue  # it has no theorem for this sampling and relation
    epsilons["fft"] = second_opinion(event, delta, relation)
    own = epsilons.get(str(accountant), math.inf)
    holds = own <= stated * (1 + _ROUNDING) and epsilons["fft"] <= stated * (1 + _ESTIMATE)
    values = ", ".join(f"{name} {value:.6g}" for name, value in sorted(epsilons.items()))
    yield Check("epsilon", holds, f"{stated:.6g} stated; from the ledgers: {values}")


def _canonical(plan: Mapping[str, Any]) -> str:
    return json.dumps(plan, sort_keys=True)
