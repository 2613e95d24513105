"""Whether the folder of a finished run is what it says: files, ledgers, statement, model, ε."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dp_accounting import ComposedDpEvent

from dpvd import __version__
from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, Ledger, epsilon, second_opinion
from dpvd.runs.audited import read_audit
from dpvd.runs.manifest import Manifest, checksum, ledgers_in, read_manifest
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import AUDIT, MODEL, RECORD
from dpvd.runs.signature import check_signature
from dpvd.training import Taken, joint_statement

__all__ = ["Check", "Verification", "verify_run"]

_ROUNDING = 1e-6  # relative difference in ε that is one of arithmetic
_ESTIMATE = 2e-3  # within which the second opinion, which is no bound, is right
# What a statement says that only the process which trained knew, and no ledger holds.
_SEEN_ONLY = ("epsilon", "delta", "accountant", "seen", "not_covered")


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


def verify_run(
    folder: Path | str, key: Path | str | None = None, other: Path | str | None = None
) -> Verification:
    """Check a finished run, and compute its ε anew from its ledgers.

    Guarantees: nothing in the folder is run or changed. It finds a changed byte in record, model,
    options or ledgers; a model of another run; a statement for other steps than the ledgers hold,
    with an ε below what they cost, or with other words than follow from them; a ledger with lines
    dropped, repeated, moved or taken off its end; an audit that called the claim violated, while
    its file is there. Whoever can write all files can make them agree again: that is what a
    signature is for.

    Edge cases: what the program saw, and gaps beyond those of the plan, are in no ledger; they are
    the record's word. A source of random bits of one's own is in none either: a run with one does
    not hold.

    Args:
        folder: of the run.
        key: file with the public key that must have signed the run; None asks for no signature.
        other: a folder that may be a copy of the run, to see whether both went on; only its ledgers
            are read.

    Raises:
        DpvdError: if there is no such folder, the key cannot be read, or the other folder has no
            ledger.
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
    if record is not None:
        looked += _audit(place, record)
    if other is not None:
        looked += _copies(place, Path(other))
    ledgers = _ledgers(place, looked)
    if record is not None and ledgers is not None:
        looked += _charges(record, ledgers)
        if all(check.holds for check in looked):
            try:
                looked += _statement(record, ledgers, epsilons)
            except (ArithmeticError, MemoryError, ValueError) as error:
                # A stranger's plan may have numbers that no accountant was made for.
                detail = f"these plans cannot be accounted for ({type(error).__name__})"
                looked.append(Check("epsilon", False, detail))
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


def _audit(folder: Path, record: RunRecord) -> Iterator[Check]:
    """The audit that was kept beside the run, if there was one."""
    try:
        found = read_audit(folder, record)
    except DpvdError as error:
        yield Check(AUDIT, False, str(error))
        return
    if found is not None:
        detail = f"{found.verdict} (at least {found.lower_bound:.4g} measured)"
        yield Check(AUDIT, found.is_consistent, detail)


def _ledgers(folder: Path, looked: list[Check]) -> list[Taken] | None:
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


def _copies(folder: Path, other: Path) -> list[Check]:
    """Whether the ledgers of both folders are one run that went on in two ways."""
    if not ledgers_in(other):
        raise DpvdError(f"there is no ledger in {other}: name the folder of another run, or a copy")
    checks = []
    for path in ledgers_in(folder):
        beside = other / path.name
        if not beside.exists():
            continue
        try:
            holds, detail = _kinship(Ledger.open(path), Ledger.open(beside))
        except DpvdError as error:
            holds, detail = False, str(error)
        checks.append(Check(f"{path.name} in {other}", holds, detail))
    return checks or [Check(f"ledgers in {other}", True, "of another run: none is named as here")]


def _kinship(here: Ledger, there: Ledger) -> tuple[bool, str]:
    """Whether two ledgers may stand beside each other, and what they are of each other.

    Their starts are numbers that nobody draws twice: with the first in common they are one run. One
    that went on alone has passed the last line of the other.
    """
    if here.head is None or there.head is None:
        return False, "a ledger of an early version, without a chain, cannot be compared"
    if here.starts[:1] != there.starts[:1]:
        return True, "another run, or a copy made before the first charge: both count"
    if here.head == there.head:
        return True, "the same run, at the same point"
    if here.has_passed(there.head):
        return True, "an earlier copy of this run"
    if there.has_passed(here.head):
        return True, "the same run, which went on there"
    return False, (
        "one run was resumed twice, here and there: what both released is more than either states"
    )


def _charges(record: RunRecord, ledgers: list[Taken]) -> Iterator[Check]:
    """Whether record and ledgers tell of the same plans and steps."""
    if not ledgers and not record.is_private:
        yield Check("charges", True, "none, and no privacy is claimed")
        return
    if not ledgers:
        yield Check("charges", False, "a guarantee is stated, and there is no ledger")
        return
    charged = [plan.to_dict() for plan, _ in ledgers]
    same = sorted(map(_canonical, _plans(record))) == sorted(map(_canonical, charged))
    detail = "the ledgers' are the record's" if same else "the ledgers have others than the record"
    yield Check("plans", same, detail)
    steps = sum(taken for _, taken in ledgers)
    enough = steps == record.guarantee["steps"]
    detail = f"{steps} charged, {record.guarantee['steps']} stated"
    yield Check("charges", enough, detail)
    if same:
        yield from _releases(record, ledgers)


def _plans(record: RunRecord) -> list[Any]:
    """The plans of a record, in the order in which its statement names them."""
    plans = [
        entry.get("plan") if isinstance(entry, Mapping) else None for entry in record.releases
    ] or [record.plan]
    # A model's account names the run that goes on last; a table's goes by what was made when.
    return plans if record.table else sorted(plans, key=lambda plan: plan == record.plan)


def _releases(record: RunRecord, ledgers: list[Taken]) -> Iterator[Check]:
    """Whether the record's list of releases says of each what its ledger says."""
    charged = Counter(
        _canonical([plan.to_dict(), plan.noise_multiplier, taken]) for plan, taken in ledgers
    )
    for entry in record.releases:
        told = _canonical([entry["plan"], entry.get("noise_multiplier"), entry.get("steps")])
        if not charged[told]:
            detail = f"{entry.get('name')!r} has another noise or number of steps than its ledger"
            yield Check("releases", False, detail)
        charged[told] -= 1


def _statement(
    record: RunRecord, ledgers: list[Taken], epsilons: dict[str, float]
) -> Iterator[Check]:
    """Whether the statement is the one that plans and ledgers make, in numbers and in words."""
    try:
        stated = Guarantee.from_dict(record.guarantee)
        made = _made(record, stated, ledgers) if ledgers else stated
    except DpvdError as error:
        yield Check("statement", False, str(error))
        return
    differing = _differences(stated, made)
    if not ledgers and stated.epsilon != math.inf:
        differing.append("it claims privacy, and there is no ledger")
    if record.guarantee["sentence"] != stated.sentence():
        differing.append("its sentence is not the one that its numbers make")
    if differing and record.version != __version__:
        differing.append(f"it was written by version {record.version}: verify it with that one")
    yield Check("statement", not differing, "; ".join(differing) or "follows from the ledgers")
    if ledgers and stated.epsilon != math.inf:
        yield _epsilon(stated, made, ledgers, epsilons)


def _made(record: RunRecord, stated: Guarantee, ledgers: list[Taken]) -> Guarantee:
    """The statement anew, from plans and what was charged under them; the record's δ is taken."""
    if any(plan.relation is not stated.relation for plan, _ in ledgers):
        raise DpvdError("the ledgers are under another relation than the statement")
    order = [_canonical(plan) for plan in _plans(record)]
    plans = sorted(ledgers, key=lambda taken: order.index(_canonical(taken[0].to_dict())))
    last, steps = plans[-1]
    own = last.guarantee(stated.delta, stated.accountant, steps)
    return joint_statement(own, plans) if len(plans) > 1 else own


def _differences(stated: Guarantee, made: Guarantee) -> list[str]:
    """What the statement says otherwise than the one that was made anew, in words."""
    differing = []
    anew = asdict(made)
    for name, value in asdict(stated).items():
        if name not in _SEEN_ONLY and value != anew[name]:
            differing.append(f"{name} is {_plain(value)}, from the ledgers {_plain(anew[name])}")
    missing = set(made.not_covered) - set(stated.not_covered)
    return differing + [f"it does not say that it leaves open {words}" for words in sorted(missing)]


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _epsilon(
    stated: Guarantee, made: Guarantee, ledgers: list[Taken], epsilons: dict[str, float]
) -> Check:
    """ε of the ledgers by several means, none of which may be above what is stated."""
    event = ComposedDpEvent([plan.event(taken) for plan, taken in ledgers])
    epsilons[str(stated.accountant)] = made.epsilon
    for name in {AccountantName.PLD, AccountantName.RDP} - {stated.accountant}:
        try:
            found = epsilon(event, stated.delta, accountant=name, relation=stated.relation)
        except DpvdError:
            continue  # it has no theorem for this sampling and relation
        epsilons[str(name)] = found
    epsilons["fft"] = second_opinion(event, stated.delta, stated.relation)
    most = stated.epsilon
    holds = made.epsilon <= most * (1 + _ROUNDING) and epsilons["fft"] <= most * (1 + _ESTIMATE)
    values = ", ".join(f"{name} {value:.6g}" for name, value in sorted(epsilons.items()))
    return Check("epsilon", holds, f"{most:.6g} stated; from the ledgers: {values}")


def _canonical(plain: object) -> str:
    return json.dumps(plain, sort_keys=True)
