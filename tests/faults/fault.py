"""What a fault is, and how it is put into a copy of the package."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fault"]


@dataclass(frozen=True)
class Fault:
    """A mistake in the package.

    Attributes:
        name: the mistake in words.
        file: where it is made, inside the package.
        changes: the text to be replaced, which must occur exactly once, and what takes its place.
        caught_by: node id of a test that must fail then.
    """

    name: str
    file: str
    changes: dict[str, str]
    caught_by: str

    def put_into(self, package: Path) -> None:
        """Make the mistake in this copy of the package."""
        path = package / self.file
        text = path.read_text()
        for before, after in self.changes.items():
            count = text.count(before)
            assert count == 1, (
                f"fault {self.name!r} looks for this text in {self.file} and found it {count} times instead of once; "
                f"the code has changed and the fault has to follow it:\n{before}"
            )
            text = text.replace(before, after)
        path.write_text(text)
