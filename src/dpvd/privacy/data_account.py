"""One budget for a data set: a file from which all that touches the data draws.

Lines as in a ledger, each chained to all before it (:mod:`dpvd.privacy.chain`). The first holds the
limit (ε, δ) and the relation. ``{"reserve": "5c1f...", "cost": ...}`` sets aside what a run will
cost at most, before it touches the data; ``{"settle": "5c1f...", "cost": ...}`` is what it came to.

Why a crash can over-count but never under-count: a reservation is on disk when
:meth:`DataAccount.reserve` returns, and counts in full until it is settled. A line without its
newline is a reservation that never returned, or a settlement that is made again: it is ignored.

Every change is made under a lock of the file, from what the file says at that moment. Processes
wait for each other.
"""

import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from dpvd.errors import DpvdError, in_unit_interval, phrase, positive
from dpvd.files import LARGEST_NOTE, make_folder, read_within
from dpvd.privacy.chain import (
    Chain,
    chained,
    check_hash,
    create_file,
    damaged,
    new_chain,
    read_entry,
    write_through,
)
from dpvd.privacy.cost import Cost, composed_cost
from dpvd.privacy.enums import Relation
from dpvd.privacy.guarantee import round_up

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["DataAccount", "Drawn"]

_VERSION = 1
_KEY_BYTES = 32
_LARGEST = 64 * 2**20  # bytes of an account; a longer file is none


class _OtherVersion(DpvdError):
    """An account that another release wrote."""


@dataclass(frozen=True)
class Drawn:
    """What one run has drawn from an account.

    Attributes:
        run: its number, which nobody else draws.
        who: it is, in words.
        cost: set aside, or come to.
        settled: whether the run has ended; what it cost is known then.
        data: keyed checksum of the data; None where data were not compared.
        at: when it was reserved first, in UTC.
        start: the number of its last start.
    """

    run: str
    who: str
    cost: Cost
    settled: bool
    data: str | None
    at: str
    start: str


@dataclass
class _Contents:
    """What the complete lines of an account say."""

    epsilon: float = math.inf
    delta: float = 0.0
    relation: Relation = Relation.ADD_OR_REMOVE
    drawn: dict[str, Drawn] = field(default_factory=dict)
    chain: Chain = field(default_factory=new_chain)
    size: int = 0

    @property
    def data(self) -> str | None:
        """The checksum that the account is bound to: that of the first run that had one."""
        return next((each.data for each in self.drawn.values() if each.data is not None), None)


class DataAccount:
    """The account of a data set; make one with :meth:`create` or :meth:`open`.

    Guarantees: a reservation that would pass the limit is refused and changes nothing; one that is
    made is on disk before :meth:`reserve` returns. What was drawn is composed by privacy loss
    distributions, all runs together, under the one relation of the account. A changed, dropped,
    repeated or moved line is an error.
    """

    def __init__(self, path: Path, contents: _Contents) -> None:
        self._path = path
        self._contents = contents

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_OR_REMOVE,
    ) -> "DataAccount":
        """Start the account of a data set, and the key of its checksums beside it.

        Args:
            path: the file; ``path.key`` holds the key.
            epsilon: limit of ε for everything that is ever done to the data.
            delta: its δ.
            relation: which data sets are neighbours, for every run.

        Raises:
            DpvdError: if the file exists or cannot be written, or a number is out of range.
        """
        path = Path(path)
        positive(epsilon=epsilon)
        in_unit_interval(delta=delta)
        header = {
            "account": secrets.token_hex(16),
            "delta": float(delta),
            "epsilon": float(epsilon),
            "relation": str(Relation.parse(relation)),
            "version": _VERSION,
        }
        try:
            if path.exists():
                raise FileExistsError
            make_folder(path.parent)
            key = _key_path(path)
            if not key.exists():  # a crash between the two files leaves a key
                create_file(key, f"{secrets.token_hex(_KEY_BYTES)}\n".encode())
            create_file(path, chained(header, new_chain()))
        except FileExistsError:
            raise DpvdError(
                f"the account {path} exists already: its limit stays what it is; leave out"
                " --epsilon and --delta to show it"
            ) from None
        except OSError as problem:
            raise DpvdError(f"cannot write the account {path}: {problem.strerror}") from None
        return cls.open(path)

    @classmethod
    def open(cls, path: Path | str) -> "DataAccount":
        """Read an account.

        Raises:
            DpvdError: if the file is missing or damaged.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                return cls(path, _read(path, file))
        except OSError as problem:
            raise DpvdError(
                f"cannot read the account {path} ({problem.strerror}); dpvd account FILE --epsilon"
                " and --delta makes one"
            ) from None

    @property
    def path(self) -> Path:
        return self._path

    @property
    def epsilon(self) -> float:
        """The limit."""
        return self._contents.epsilon

    @property
    def delta(self) -> float:
        """δ of the limit, and of everything that is said about it."""
        return self._contents.delta

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        return self._contents.relation

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """Every run that drew, in order."""
        return tuple(self._contents.drawn.values())

    @property
    def spent(self) -> float:
        """ε at the account's δ of everything that was drawn, reservations in full."""
        return self.cost_of(each.cost for each in self.drawn)

    def cost_of(self, costs: Iterable[Cost]) -> float:
        """ε at the account's δ of these uses together."""
        return composed_cost(costs, self.delta, self.relation, most=self.epsilon)

    def checksum(self, parts: Iterable[bytes]) -> str:
        """Name data by a keyed checksum, which tells nothing to whoever lacks the key.

        Raises:
            DpvdError: if the key cannot be read.
        """
        digest = hmac.new(self._key(), digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.hexdigest()

    def _key(self) -> bytes:
        path = _key_path(self._path)
        try:
            key = bytes.fromhex(read_within(path, LARGEST_NOTE).decode("ascii").strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != _KEY_BYTES:
            raise DpvdError(
                f"the key {path} of the account cannot be read: without it nobody can tell whether"
                " data are the account's; restore it from a copy"
            )
        return key

    def reserve(
        self,
        who: str,
        cost: Cost,
        *,
        relation: Relation | str = Relation.ADD_OR_REMOVE,
        data: str | None = None,
        run: str | None = None,
        start: str | None = None,
        starts: Sequence[str] = (),
    ) -> str:
        """Set aside what a run will cost at most; on disk when this returns.

        A run that has an open reservation, and goes on after a crash, is not charged again.

        Args:
            who: the run, in words.
            cost: what it will cost at most.
            relation: the run's; must be the account's.
            data: from :meth:`checksum`; None if data are not to be compared.
            run: its number, if it may go on later; drawn if None.
            start: the number of this start; drawn if None.
            starts: numbers of earlier starts that the run knows of. One that does not know the last
                was copied, and went on elsewhere.

        Returns:
            The run's number.

        Raises:
            DpvdError: if the limit would be passed, or data or relation are others than the
                account's; nothing is changed then.
        """
        number = secrets.token_hex(16) if run is None else run
        with self._changing() as append:
            earlier = self._contents.drawn.get(number)
            self._check_fits(data, Relation.parse(relation), earlier, cost, starts)
            others = [each.cost for each in self.drawn if each.run != number]
            self._check_limit([*others, cost], others)
            append(
                {
                    "reserve": number,
                    "who": phrase(who, "who"),
                    "cost": cost.to_dict(),
                    "data": data,
                    "start": secrets.token_hex(16) if start is None else start,
                    "at": datetime.now(UTC).isoformat(timespec="seconds"),
                }
            )
        return number

    def settle(self, run: str, cost: Cost) -> None:
        """Put what a run came to in the place of its reservation.

        Args:
            run: from :meth:`reserve`.
            cost: of everything that was charged to the run, whether its results were used or not.

        Raises:
            DpvdError: if there is no such run, or the file cannot be written: it counts in full.
        """
        with self._changing() as append:
            if run not in self._contents.drawn:
                raise DpvdError(f"the account {self._path} has no run {run}")
            append({"settle": run, "cost": cost.to_dict()})

    def _check_fits(
        self,
        data: str | None,
        relation: Relation,
        earlier: Drawn | None,
        cost: Cost,
        starts: Sequence[str],
    ) -> None:
        """Raise unless a reservation is for these data and this relation, and not made twice."""
        if relation is not self.relation:
            raise DpvdError(
                f"the account {self._path} is under {self.relation}, the run under {relation}:"
                " costs under different relations do not add up"
            )
        bound = self._contents.data
        if data is not None and bound is not None and not hmac.compare_digest(data, bound):
            raise DpvdError(
                f"the account {self._path} is of other data: its first run read something else;"
                " make an account for this data, and if people are in both, add the two up"
            )
        if earlier is None:
            return
        if earlier.start not in starts:
            raise DpvdError(
                f"this run went on elsewhere, from a copy of its folder: the account {self._path}"
                " knows of a start that this folder does not; begin a new run"
            )
        if earlier.settled and earlier.cost != Cost():
            raise DpvdError(f"this run has ended: its account in {self._path} is settled")
        if not earlier.settled and earlier.cost != cost:
            raise DpvdError(f"this run has reserved another cost in {self._path}: begin a new run")

    def _check_limit(self, costs: Sequence[Cost], before: Sequence[Cost]) -> None:
        wanted = self.cost_of(costs)
        if wanted > self.epsilon:
            raise DpvdError(
                f"the account {self._path} has a limit of ({self.epsilon:g}, {self.delta:g}):"
                f" {round_up(self.cost_of(before))} of it is drawn, and with this run it would be"
                f" {round_up(wanted)}; take a smaller epsilon"
            )

    @contextmanager
    def _changing(self) -> Iterator[Any]:
        """Lock the file, read it anew, and yield what appends one line."""
        if fcntl is None:
            raise DpvdError("an account needs locks of files, which this system does not have")
        try:
            with self._path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(self._path)):
                    raise DpvdError(f"the account {self._path} was replaced meanwhile: try again")
                self._contents = _read(self._path, file)

                def append(entry: dict[str, Any]) -> None:
                    contents = self._contents
                    line = chained(entry, contents.chain.copy())
                    file.truncate(contents.size)  # a torn line of a crash
                    file.seek(contents.size)
                    write_through(file, line)
                    _take(self._path, 0, line[:-1], contents)

                yield append
        except OSError as problem:
            raise DpvdError(f"cannot write the account {self._path}: {problem.strerror}") from None


def _key_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def _name(path: Path) -> str:
    return f"the account {path}"


def _read(path: Path, file: BinaryIO) -> _Contents:
    """What the complete lines say, each checked against those before it."""
    content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise DpvdError(f"{path} is no account: it has more than {_LARGEST:,} bytes")
    *lines, _torn = content.split(b"\n")
    if not lines:
        raise DpvdError(f"{path} is no account: it has no complete line")
    contents = _Contents()
    for number, line in enumerate(lines, start=1):
        _take(path, number, line, contents)
    return contents


def _take(path: Path, number: int, line: bytes, contents: _Contents) -> None:
    """Read one more line into the contents."""
    entry = read_entry(_name(path), number, line)
    check_hash(_name(path), number, entry, contents.chain)
    try:
        if not contents.size:
            _check_version(path, entry)
            _take_header(entry, contents)
        elif "reserve" in entry:
            _take_reservation(entry, contents)
        else:
            run = entry["settle"]
            settled = replace(contents.drawn[run], cost=Cost.from_dict(entry["cost"]), settled=True)
            contents.drawn[run] = settled
    except _OtherVersion:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise damaged(_name(path), number) from None
    contents.chain.update(line + b"\n")
    contents.size += len(line) + 1


def _check_version(path: Path, entry: dict[str, Any]) -> None:
    if entry["version"] != _VERSION:
        raise _OtherVersion(
            f"{path} is an account of version {entry['version']!r}; this release reads {_VERSION}"
        )


def _take_header(entry: dict[str, Any], contents: _Contents) -> None:
    positive(epsilon=entry["epsilon"])
    in_unit_interval(delta=entry["delta"])
    contents.epsilon = float(entry["epsilon"])
    contents.delta = float(entry["delta"])
    contents.relation = Relation.parse(entry["relation"])


def _take_reservation(entry: dict[str, Any], contents: _Contents) -> None:
    run = str(entry["reserve"])
    earlier = contents.drawn.get(run)
    at = str(entry["at"]) if earlier is None else earlier.at
    data = None if entry["data"] is None else str(entry["data"])
    contents.drawn[run] = Drawn(
        run=run,
        who=str(entry["who"]),
        cost=Cost.from_dict(entry["cost"]),
        settled=False,
        data=data,
        at=at,
        start=str(entry["start"]),
    )
