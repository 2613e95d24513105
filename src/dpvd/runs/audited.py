"""The audit of a run's plan, kept beside the run."""

import json
from pathlib import Path
from typing import Any

from dpvd.audit import AuditResult
from dpvd.errors import DpvdError
from dpvd.files import write_atomically
from dpvd.privacy import fingerprint
from dpvd.runs.record import RunRecord
from dpvd.runs.run_dir import AUDIT

__all__ = ["read_audit", "write_audit"]

_LARGEST = 1 << 16  # bytes; a longer file is none of ours


def write_audit(folder: Path, record: RunRecord, result: AuditResult) -> Path:
    """Keep what an audit of the run's plan found; an earlier one is replaced.

    The manifest, which is of the day on which the run ended, does not hold it.

    Raises:
        DpvdError: if it cannot be written.
    """
    values = {"audit": result.to_dict(), "plan": fingerprint(record.plan)}
    path = folder / AUDIT
    write_atomically(path, f"{json.dumps(values, indent=1, allow_nan=False)}\n".encode())
    return path


def read_audit(folder: Path, record: RunRecord) -> AuditResult | None:
    """Return what the last audit of the run's plan found; None if there was none.

    Raises:
        DpvdError: if the file is damaged, or of another plan.
    """
    path = folder / AUDIT
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DpvdError(f"{path} cannot be read: {error.strerror}") from None
    try:
        values: Any = json.loads(content) if len(content) <= _LARGEST else None
        plan = values["plan"]
        result = AuditResult.from_dict(values["audit"])
    except (DpvdError, KeyError, TypeError, ValueError, RecursionError):
        raise DpvdError(f"{path} is damaged: delete it, or write it anew with dpvd audit") from None
    if plan != fingerprint(record.plan):
        raise DpvdError(
            f"{path} is of another plan than the run's: delete it, or write it anew with dpvd audit"
        )
    return result
