"""Stop the set-up early, with one clear line, on a Python that is too old."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (this file exists to run on old versions)
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    sys.exit("dpvd needs Python 3.11 or newer (this is " + found + "): make PYTHON=python3.11 ...")
