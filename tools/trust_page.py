"""Write the table of all faults into docs/trust.md: what is broken, where, and who notices.

python -m tools.trust_page
"""

from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.runner import ROOT

__all__ = ["BEGIN", "END", "PAGE", "page", "table"]

PAGE = ROOT / "docs" / "trust.md"
BEGIN = "<!-- written by python -m tools.trust_page -->\n"
END = "<!-- end of what is written by python -m tools.trust_page -->\n"


def table(faults: list[Fault]) -> str:
    """The number of the faults, and one row for each, in Markdown."""
    rows = "".join(f"| {fault.name} | `{fault.file}` | `{_test(fault)}` |\n" for fault in faults)
    head = "| fault | file | test that catches it |\n|---|---|---|\n"
    return f"\n{len(faults)} faults.\n\n{head}{rows}\n"


def page(text: str, faults: list[Fault]) -> str:
    """The text of the page with the table of these faults in its place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has lost one of the marks between which the table stands")
    return before + begin + table(faults) + end + after


def _test(fault: Fault) -> str:
    """The name of the test, without the case that is run."""
    return fault.caught_by.partition("[")[0]


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page(text, FAULTS), encoding="utf-8")


if __name__ == "__main__":
    main()
