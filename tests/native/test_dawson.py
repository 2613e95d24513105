"""The Dawson function, added in place: against SciPy, the same bits by both implementations, not a
value too many.
"""

import doctest

import numpy as np
import pytest
from scipy.special import dawsn

import dpvd.native.kernels
from dpvd.errors import DpvdError
from dpvd.native import add_dawson, implementation_in_use

GUARD = 32
EVERYWHERE = np.concatenate(
    [np.logspace(-36, 36, 200_001), np.linspace(0, 30, 200_001)[1:]]
).astype(np.float32)


def dawson(x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    add_dawson(out, x, 1.0, 1.0)
    return out


def test_the_relative_error_is_small_for_every_x(implementation: str) -> None:
    for x in (EVERYWHERE, -EVERYWHERE):
        assert np.abs(dawson(x) / dawsn(x.astype(np.float64)) - 1).max() < 1e-6


def test_double_precision_is_that_of_scipy(implementation: str) -> None:
    x = EVERYWHERE.astype(np.float64)
    np.testing.assert_array_equal(dawson(x), dawsn(x))


def test_limits_are_finite_and_nan_stays(implementation: str) -> None:
    values = dawson(np.array([0.0, -0.0, np.inf, -np.inf, 3e38, np.nan], np.float32))
    assert values[:4].tolist() == [0, 0, 0, 0]
    assert 0 < values[4] < 2e-39
    assert np.isnan(values[5])


@pytest.mark.skipif(
    not implementation_in_use().compiled, reason="the compiled kernels were not built"
)
def test_compiled_and_pure_results_are_equal_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for native in ("1", "0"):
        monkeypatch.setenv("DPVD_NATIVE", native)
        out = np.linspace(-2, 2, len(EVERYWHERE), dtype=np.float32)
        add_dawson(out, EVERYWHERE, 0.37, -1.9)
        results.append(out.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("count", [0, 1, 7, 1023, 1024, 1025, 70_001])
@pytest.mark.parametrize("threads", [1, 3])
def test_factors_sizes_and_threads_in_place_and_apart(
    implementation: str, count: int, threads: int
) -> None:
    """x may be the array that is added to; what lies around it stays as it was."""
    x = np.random.default_rng(count).normal(size=count).astype(np.float32)
    memory = np.full(count + 2 * GUARD, -77.0, np.float32)
    inner = memory[GUARD : GUARD + count]
    inner[:] = x
    add_dawson(inner, inner, 3.0, -0.5, threads=threads)
    apart = x.copy()
    add_dawson(apart, x, 3.0, -0.5)
    assert inner.tobytes() == apart.tobytes()
    np.testing.assert_allclose(
        inner, x - 0.5 * dawsn(3.0 * x.astype(np.float64)), rtol=1e-6, atol=2e-7
    )
    assert (memory[:GUARD] == -77.0).all()
    assert (memory[GUARD + count :] == -77.0).all()


@pytest.mark.parametrize(
    ("out", "x"),
    [
        (np.zeros(4, np.float16), np.zeros(4, np.float16)),
        (np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)),
        (np.zeros(8, np.float32)[::2], np.zeros(4, np.float32)),
        (np.zeros(4, np.float32), np.zeros(8, np.float32)[::2]),
        (np.zeros(4, np.float32), np.zeros(5, np.float32)),
        (np.zeros(4, np.float32), np.zeros(4, np.float64)),
        (np.frombuffer(bytes(16), np.float32), np.zeros(4, np.float32)),
    ],
    ids=["type", "dimensions", "strided", "strided x", "size", "unequal types", "read-only"],
)
def test_unsuitable_arrays_are_refused(implementation: str, out: np.ndarray, x: np.ndarray) -> None:
    with pytest.raises(DpvdError, match="contiguous, writeable"):
        add_dawson(out, x, 1.0, 1.0)


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(dpvd.native.kernels) == doctest.TestResults(failed=0, attempted=6)
