"""Fetch a file from the first mirror that has it intact."""

import http.client
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from dpvd.errors import DpvdError
from dpvd.files import HANDED_OUT, write_atomically

__all__ = ["download"]


def download(
    name: str,
    mirrors: Sequence[str],
    target: Path,
    check: Callable[[bytes], object],
    timeout: float,
) -> None:
    """Fetch ``name`` from the first mirror whose answer passes ``check`` into ``target``.

    Guarantees:
        ``target`` either does not exist or holds a complete, checked file.

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
                # To the end: a read of a given size would not notice a lost rest.
                content = answer.read()
            check(content)
        except (OSError, http.client.HTTPException, DpvdError) as error:
            reasons.append(f"{mirror}: {error or type(error).__name__}")
        else:
            write_atomically(target, content, mode=HANDED_OUT)
            return
    raise DpvdError(
        f"{name} could not be downloaded ({'; '.join(reasons) or 'no mirror is configured'})"
    )
