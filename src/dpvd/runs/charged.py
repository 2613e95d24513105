"""What lies in the folder of a run: what was charged, and files that nothing was charged for."""

from dataclasses import dataclass
from pathlib import Path

from dp_accounting import ComposedDpEvent

from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Ledger, epsilon
from dpvd.runs.run_dir import ACCOUNT, CHECKSUM_KEY, CONTENTS, OPTIONS

__all__ = ["Charged", "charged_in", "discard_uncharged"]


@dataclass(frozen=True)
class Charged:
    """What the ledgers of a folder say together.

    Attributes:
        steps: noisy steps and releases that are paid for.
        plans: each with how many of its steps are.
    """

    steps: int
    plans: tuple[tuple[PrivacyPlan, int], ...]

    def epsilon(self, delta: float, accountant: AccountantName | str = AccountantName.PLD) -> float:
        """ε of all of it at this δ, whatever was done with the results."""
        if not self.steps:
            return 0.0
        event = ComposedDpEvent([plan.event(taken) for plan, taken in self.plans])
        relation = self.plans[0][0].relation
        return epsilon(event, delta, accountant=AccountantName.parse(accountant), relation=relation)


def charged_in(folder: Path) -> Charged:
    """Read all ledgers of a run.

    Raises:
        DpvdError: if one is damaged.
    """
    plans = []
    for path in sorted(folder.glob("ledger*.jsonl")):
        if not Ledger.has_begun(path):
            continue
        ledger = Ledger.open(path)
        if ledger.charged:
            plans.append((PrivacyPlan.from_dict(ledger.plan), ledger.charged))
    return Charged(sum(taken for _, taken in plans), tuple(plans))


def discard_uncharged(folder: Path) -> None:
    """Remove what a run wrote before it was refused, unless something was charged."""
    if charged_in(folder).steps:
        return
    for path in folder.glob("ledger*.jsonl"):
        path.unlink()
    for name in (OPTIONS, CHECKSUM_KEY, CONTENTS, ACCOUNT):
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
