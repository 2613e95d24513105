"""Runs that draw from the account of their data: reserve before, settle after."""

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpvd.errors import DpvdError
from dpvd.files import LARGEST_NOTE, read_within, write_atomically
from dpvd.privacy import Cost, DataAccount, Guarantee, count_steps, round_up
from dpvd.runs.charged import charged_in
from dpvd.runs.options import RunOptions
from dpvd.runs.run_dir import ACCOUNT

__all__ = ["DRAWN", "Draw", "drawing", "file_parts", "known_starts", "settle_finished"]

DRAWN = "drawn from the account of the data"
"""Begins what a statement has seen of the account that its run drew from."""

_BLOCK = 2**20  # bytes that are read at once


@dataclass(frozen=True)
class Draw:
    """What a run has reserved.

    Attributes:
        account: that it draws from.
        run: its number there.
        folder: of the run.
        failure: what releases of categories may fail with.
    """

    account: DataAccount
    run: str
    folder: Path
    failure: float

    def settle(self) -> None:
        """Put what the run's ledgers say in the place of its reservation."""
        self.account.settle(self.run, _charged(self.folder, self.failure))

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """The run's guarantee, which says where it drew from."""
        account = self.account
        words = (
            f"{DRAWN}, whose limit for all runs together is"
            f" ({account.epsilon:g}, {account.delta:g}); {round_up(account.spent)} of it drawn when"
            " this run was reserved, this run included"
        )
        return replace(guarantee, seen=(*(guarantee.seen or ()), words))


@contextmanager
def drawing(
    options: RunOptions, folder: Path, cost: Cost, data: Iterable[bytes]
) -> Iterator[Draw | None]:
    """Reserve what a run will cost at most, before anything is done with the data.

    Guarantees:
        The reservation counts in full until the run is finished, whatever ends it. It is given
        back only by a process that saw the run end before anything was charged to its ledgers.

    Args:
        options: of the run; nothing happens if they name no account.
        folder: of the run; it exists.
        cost: what the run will cost at most.
        data: what the account's checksum is of.

    Raises:
        DpvdError: if the limit would be passed, or the account is of other data.
    """
    if options.account is None:
        yield None
        return
    account = DataAccount.open(options.account)
    run, starts = known_starts(folder)
    start = secrets.token_hex(16)
    # In the folder first: a start that the account knows and the folder does not is a copy's.
    _note(folder, run, [*starts, start])
    account.reserve(
        folder.resolve().name,
        cost,
        relation=options.relation,
        data=account.checksum(data),
        run=run,
        start=start,
        starts=starts,
    )
    draw = Draw(account, run, folder, cost.failure)
    try:
        yield draw
    except BaseException:
        if not charged_in(folder).steps:
            account.settle(run, Cost())
        raise
    draw.settle()


def settle_finished(options: RunOptions, folder: Path) -> None:
    """Settle a run that was finished, and killed before it could do so itself."""
    if options.account is None or not (folder / ACCOUNT).exists():
        return
    run, _ = known_starts(folder)
    account = DataAccount.open(options.account)
    for drawn in account.drawn:
        if drawn.run == run and not drawn.settled:
            account.settle(run, _charged(folder, drawn.cost.failure))


def file_parts(path: Path) -> Iterator[bytes]:
    """The bytes of a file, in pieces."""
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise DpvdError(f"{path} cannot be read: {error.strerror}") from None


def _charged(folder: Path, failure: float) -> Cost:
    """What the ledgers of a run say."""
    steps: Counter[Any] = Counter()
    for plan, taken in charged_in(folder).plans:
        steps += count_steps(plan.event(taken))
    return Cost(steps, failure)


def known_starts(folder: Path) -> tuple[str, list[str]]:
    """The run's number in its account, which is drawn if it has none, and its starts so far.

    Raises:
        DpvdError: if the file that holds them is damaged.
    """
    path = folder / ACCOUNT
    if not path.exists():
        return secrets.token_hex(16), []
    try:
        values = json.loads(read_within(path, LARGEST_NOTE))
        return str(values["run"]), [str(start) for start in values["starts"]]
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DpvdError(
            f"{path} cannot be read ({error}): restore it from a copy, or start a new run"
        ) from error


def _note(folder: Path, run: str, starts: list[str]) -> None:
    text = json.dumps({"run": run, "starts": starts}, indent=1)
    write_atomically(folder / ACCOUNT, f"{text}\n".encode())
