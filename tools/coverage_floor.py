"""Fail when the privacy-critical packages are covered less than they must be.

Reads coverage.py's JSON report; lines and branches count together, as in coverage's own percentage.
"""

import json
import sys
from pathlib import Path

FLOOR = 95.0
SOURCE = "src/dpvd/"  # copies that tests make and run elsewhere do not count
CRITICAL = ("privacy/", "grads/", "mechanisms/", "native/", "plan.py")


def main(report: str) -> int:
    files = json.loads(Path(report).read_text())["files"]
    short = False
    for part in CRITICAL:
        rows = [
            f["summary"]
            for name, f in files.items()
            if name.replace("\\", "/").startswith(SOURCE + part)
        ]
        total = sum(r["num_statements"] + r["num_branches"] for r in rows)
        covered = sum(r["covered_lines"] + r["covered_branches"] for r in rows)
        percent = 100.0 * covered / total if total else 0.0
        short |= percent < FLOOR
        print(f"coverage of {part:<12} {percent:6.2f} % (at least {FLOOR:g})")
    return int(short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
