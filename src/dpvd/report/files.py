"""Writing files so that nobody ever reads half of one."""

import os
import tempfile
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(
            temporary, 0o644
        )  # a temporary file is readable by its owner alone; a report is there to be read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
