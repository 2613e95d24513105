"""A page as a browser shows it: what it complains about, and how it looks.

Pages are opened from disk in headless Chromium, which is told to load nothing over the network.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["View", "open_page"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--v=0",
)


@dataclass(frozen=True)
class View:
    """What a browser made of a page: console messages, a PNG, and the document after scripts."""

    messages: list[str]
    screenshot: bytes
    document: str


def open_page(page: Path, *, width: int, height: int = 1600, dark: bool = False) -> View:
    """Open a local page at this size and colour scheme; skips the test without Chromium.

    Messages hold everything that the page wrote to the console: scripts' errors, what was refused
    and what was not found.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        command = [
            program,
            *_FLAGS,
            scheme,
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={shot}",
            "--dump-dom",
            page.resolve().as_uri(),
        ]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        messages = re.findall(r"CONSOLE[^\]]*\] (.*)", seen.stderr)
        return View(messages, shot.read_bytes(), seen.stdout)
