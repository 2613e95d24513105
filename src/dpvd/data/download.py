"""Fetch a file from the first mirror that has it intact."""

import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from dpvd.errors import DpvdError

__all__ = ["download", "write_atomically"]


def download(
    name: str,
    mirrors: Sequence[str],
    target: Path,
    check: Callable[[bytes], object],
    timeout: float,
) -> None:
    """Fetch ``name`` from the first mirror whose answer passes ``check``, and store it as
    ``target``.

    Guarantees:
        ``target`` either does not exist or holds a complete, checked file: it is written beside its
        place and then renamed.

    Args:
        name: file name, appended to each mirror's address.
        mirrors: addresses that end with a slash, tried in this order.
        target: where to store it; missing folders are made.
        check: raises `DpvdError` for contents that are not wanted.
        timeout: seconds to wait for a mirror's next answer.

    Raises:
        DpvdError: if no mirror delivers, with every mirror's reason, or the file cannot be stored.
    """
    reasons = []
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(mirror + name, timeout=timeout) as answer:
                content = (
                    answer.read()
                )  # to the end: a read of a given size would not notice a lost one
            check(content)
        except (OSError, http.client.HTTPException, DpvdError) as error:
            reasons.append(f"{mirror}: {error or type(error).__name__}")
        else:
            write_atomically(target, content)
            return
    raise DpvdError(
        f"{name} could not be downloaded ({'; '.join(reasons) or 'no mirror is configured'})"
    )


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees a part of it.

    Raises:
        DpvdError: if the folder or the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise DpvdError(
            f"{target} cannot be written ({error.strerror}): choose another folder"
        ) from error
