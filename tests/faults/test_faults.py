"""Every deliberate fault turns a test red, and the package without a fault turns none.

Other tests show that the code is right. These show that those tests would say so if it were not.
"""

import shutil
from pathlib import Path

import pytest

from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.runner import AVAILABLE, CAUGHT, PASSED, ROOT, run_tests

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="processes cannot be forked here")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package as it is. Compiled files stay behind: they could hide a
    change.
    """
    shutil.copytree(
        ROOT / "src" / "dpvd", tmp_path / "dpvd", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_is_caught(fault: Fault, copy: Path) -> None:
    fault.put_into(copy / "dpvd")
    outcome = run_tests(copy, fault.caught_by)
    assert outcome.code == CAUGHT, (
        f"fault {fault.name!r} in {fault.file} was not caught by {fault.caught_by} "
        f"(exit code {outcome.code}):\n{outcome.output}"
    )


def test_without_a_fault_the_same_tests_pass(copy: Path) -> None:
    outcome = run_tests(copy, *dict.fromkeys(fault.caught_by for fault in FAULTS))
    assert outcome.code == PASSED, f"exit code {outcome.code}:\n{outcome.output}"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("import torch\n", "import torch, nowhere_to_be_found\n", "cannot be imported"),
        ("rows = draw_rows(", "rows = no_such_name(", "broke off instead of failing"),
    ],
)
def test_a_broken_package_does_not_count_as_caught(
    before: str, after: str, message: str, copy: Path
) -> None:
    Fault("not a fault but a crash", "batches.py", {before: after}, "").put_into(copy / "dpvd")
    outcome = run_tests(copy, "tests/test_plan.py::test_batches_keep_examples_together")
    assert outcome.code not in (CAUGHT, PASSED)
    assert message in outcome.output


@pytest.mark.parametrize("text", ["this is nowhere in the file", "import"])
def test_a_fault_that_no_longer_fits_the_code_is_reported(text: str, copy: Path) -> None:
    with pytest.raises(AssertionError, match="instead of once"):
        Fault("out of date", "plan.py", {text: ""}, "").put_into(copy / "dpvd")
