"""The package as its users see it."""

import subprocess
import sys

import pytest

import dpvd


def test_every_public_name_is_there():
    for name in dpvd.__all__:
        assert getattr(dpvd, name).__name__ == name
    assert set(dpvd.__all__) <= set(dir(dpvd))


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = dpvd.unheard_of


def test_accounting_does_not_load_torch():
    program = "import sys, dpvd.privacy; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
