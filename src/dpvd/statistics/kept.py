"""Releases that outlive their process: each is kept in the line of the ledger that pays for it."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError
from dpvd.files import make_folder
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Ledger

__all__ = ["KeptReleases", "kept_names"]

_NUMBERS = "<f8"  # double precision, whatever the machine


@dataclass(frozen=True)
class KeptReleases:
    """A `Keeper` with one ledger for each release, in a folder.

    Guarantees:
        A noisy sum is used only after its ledger holds charge and sum, in one line that is on disk.
        A process that dies before has shown the sum to nobody; one that goes on after has the sum
        and does not draw noise again. Nobody but the owner can read the ledgers.

    Args:
        folder: where the ledgers are.
        name_of: the name of a plan's ledger, as in ``ledger-NAME.jsonl``.
        resume: take what an interrupted process kept; otherwise its ledgers are refused.
        paid: called with each plan that is paid for, now or before, and the release's own name.
    """

    folder: Path
    name_of: Callable[[PrivacyPlan], str]
    resume: bool
    paid: Callable[[PrivacyPlan, str], None]

    def recall(self, plan: PrivacyPlan) -> Tensor | None:
        """The noisy sum that an interrupted process released under this plan.

        Raises:
            DpvdError: if the ledger is of another plan or damaged, or holds a charge without sum.
        """
        path = self._path(plan)
        if not self.resume or not path.exists():
            return None
        ledger = Ledger.reopen(path, plan.to_dict())
        if not ledger.charged:
            return None
        if ledger.charged != 1 or ledger.kept is None:
            raise DpvdError(
                f"the ledger {path} has a charge without its noisy result: it cannot be had again"
                " for nothing; start a new run in another folder, and count both"
            )
        total = _unpacked(ledger.kept, path)
        self.paid(plan, ledger.kept["name"])
        return total

    def keep(self, plan: PrivacyPlan, total: Tensor) -> None:
        """Charge the plan and keep the sum.

        Raises:
            DpvdError: if the ledger cannot be written, or has a charge already.
        """
        make_folder(self.folder)
        path = self._path(plan)
        open_ledger = Ledger.reopen if self.resume else Ledger.create
        ledger = open_ledger(path, plan.to_dict())
        if ledger.charged:
            raise DpvdError(f"the ledger {path} has been charged already: a release is made once")
        path.chmod(0o600)  # before there is anything to read in it
        name = uuid4().hex
        ledger.charge(1, kept=_packed(total, name))
        ledger.close()
        self.paid(plan, name)

    def _path(self, plan: PrivacyPlan) -> Path:
        return self.folder / f"ledger-{self.name_of(plan)}.jsonl"


def kept_names(folder: Path) -> dict[str, str]:
    """The names of the releases in a folder, by the fingerprints of their plans."""
    names = {}
    for path in sorted(folder.glob("ledger-*.jsonl")):
        if not Ledger.has_begun(path):
            continue
        ledger = Ledger.open(path)
        name = (ledger.kept or {}).get("name")
        if isinstance(name, str):
            names[ledger.fingerprint] = name
    return names


def _packed(total: Tensor, name: str) -> dict[str, Any]:
    numbers = total.detach().cpu().numpy().astype(_NUMBERS)
    text = base64.b64encode(numbers.tobytes()).decode("ascii")
    return {"name": name, "numbers": text, "shape": list(total.shape)}


def _unpacked(kept: Mapping[str, Any], path: Path) -> Tensor:
    try:
        if not isinstance(kept["name"], str):
            raise TypeError("the name of a release is a text")
        numbers = np.frombuffer(base64.b64decode(kept["numbers"], validate=True), dtype=_NUMBERS)
        return torch.from_numpy(numbers.astype(np.float64).reshape(kept["shape"]))
    except (KeyError, TypeError, ValueError) as error:
        raise DpvdError(
            f"the noisy result in the ledger {path} is damaged: restore it from a copy, or start a"
            " new run and count both"
        ) from error
