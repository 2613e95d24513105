"""Run a command and print the most memory that it held at once.

    python examples/peak_memory.py --limit 1.5 dpvd train visits.csv ...

The exit code is that of the command, or 3 if it held more than the limit. Linux and macOS only.
"""

import argparse
import resource
import subprocess
import sys


def peak_gigabytes() -> float:
    """The most memory that a finished child of this process held, in units of 10⁹ bytes."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, required=True, help="in GB")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    code = subprocess.run(chosen.command, check=False).returncode
    peak = peak_gigabytes()
    print(f"peak memory {peak:.2f} GB of at most {chosen.limit:g} GB", flush=True)
    if code == 0 and peak > chosen.limit:
        return 3
    return code


if __name__ == "__main__":
    sys.exit(main())
