"""Just enough Markdown to hold the documentation to what it says."""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "anchors", "blocks", "images", "links", "prose", "table_names"]

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^(\s*)```(\w*)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_NAME = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block of code and where its first line is, counted from 1."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path, language: str) -> list[Block]:
    """The fenced blocks of a page in this language, in order."""
    return [block for block in _split(page)[0] if block.language == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _split(page)[1]


def links(page: Path) -> list[str]:
    """Where the links of a page lead, web addresses left out."""
    return [target for target in _LINK.findall(prose(page)) if not re.match(r"[a-z]+:", target)]


def images(page: Path) -> list[tuple[str, str]]:
    """The description and the path of each picture on a page."""
    return _IMAGE.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {
        re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }


def table_names(page: Path, after: str) -> set[str]:
    """What stands in backticks in the first column of the first table after this text."""
    text = prose(page)
    assert text.count(after) == 1, (
        f"{page.name} has {after!r} {text.count(after)} times instead of once"
    )
    lines = text.split(after)[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append(line.split("|")[1])
    return set(_NAME.findall(" ".join(rows)))


def _split(page: Path) -> tuple[list[Block], str]:
    found, outside, inside, fence, start = [], [], [], None, 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if fence is None and match:
            fence, start, inside = match, number + 1, []
        elif fence is not None and line.strip() == "```":
            indent = len(fence[1])
            text = "\n".join(part[indent:] for part in inside) + "\n"
            found.append(Block(page, start, fence[2], text))
            fence = None
        elif fence is not None:
            inside.append(line)
        else:
            outside.append(line)
    assert fence is None, f"{page.name}: the block that begins at line {start} never ends"
    return found, "\n".join(outside)
