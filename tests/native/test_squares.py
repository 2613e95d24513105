"""Sums of squares of rows: as precise as float32 can say, the same by both implementations, not a
value too many.
"""

import numpy as np
import pytest

from dpvd.errors import DpvdError
from dpvd.native import implementation_in_use, row_squares

FOURS = np.ones((4, 4), np.float32)
SHAPES = [(0, 5), (3, 0), (1, 1), (4, 15), (4, 16), (5, 17), (600, 784), (3, 100_003)]


def matrix(shape: tuple[int, int]) -> np.ndarray:
    """Entries of very different sizes."""
    random = np.random.default_rng(shape)
    return (random.normal(size=shape) * 10.0 ** random.uniform(-6, 6, shape)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_sums_are_the_nearest_float32(
    implementation: str, shape: tuple[int, int], threads: int, scaled: bool
) -> None:
    x, scale = matrix(shape), matrix((1, shape[1]))[0] if scaled else None
    expected = (
        ((x if scale is None else x * scale).astype(np.longdouble) ** 2).sum(1).astype(np.float32)
    )
    np.testing.assert_array_equal(row_squares(x, scale, threads=threads), expected)


def test_long_rows_of_equal_entries_lose_nothing(implementation: str) -> None:
    """A running sum in float32 would stop growing at 2^24."""
    assert row_squares(np.ones((2, 20_000_000), np.float32)).tolist() == [20_000_000.0] * 2


def test_neither_vanishing_nor_overflowing_squares_disturb_others(implementation: str) -> None:
    x = np.array(
        [[1e-30, 0, 0], [1e-22, 1e-22, 0], [3e19, 0, 0], [np.nan, 1, 0], [np.inf, 0, 1]], np.float32
    )
    found = row_squares(x)
    assert found[0] == 0
    assert found[1] == pytest.approx(2e-44, rel=0.1)  # each square alone is rounded as well
    assert found[2] == np.inf
    assert np.isnan(found[3])
    assert found[4] == np.inf


@pytest.mark.skipif(
    not implementation_in_use().compiled, reason="the compiled kernels were not built"
)
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_and_pure_results_are_equal_bit_for_bit(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for native in ("1", "0"):
        monkeypatch.setenv("DPVD_NATIVE", native)
        results += [
            row_squares(matrix(shape), scale).tobytes()
            for scale in (None, matrix((1, shape[1]))[0])
        ]
    assert results[:2] == results[2:]


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (np.zeros((2, 2)), None),
        (np.zeros(4, np.float32), None),
        (FOURS[:, ::2], None),
        (FOURS.T[1:], None),
        (FOURS, np.ones(4)),
        (FOURS, np.ones(3, np.float32)),
        (FOURS, np.ones(8, np.float32)[::2]),
    ],
    ids=[
        "type",
        "dimensions",
        "strided",
        "transposed",
        "type of scale",
        "short scale",
        "strided scale",
    ],
)
def test_unsuitable_arrays_are_refused(
    implementation: str, x: np.ndarray, scale: np.ndarray | None
) -> None:
    with pytest.raises(DpvdError, match="contiguous, two-dimensional"):
        row_squares(x, scale)


@pytest.mark.skipif(
    not implementation_in_use().compiled, reason="the compiled kernels were not built"
)
@pytest.mark.parametrize(
    ("size", "rows", "columns", "reason"),
    [
        (10, 3, None, "cannot be"),
        (4, 0, None, "cannot be"),
        (4, 8, None, "cannot be"),
        (8, 2, 3, "does not fit"),
    ],
)
def test_the_kernel_itself_refuses_what_does_not_fit(
    size: int, rows: int, columns: int | None, reason: str
) -> None:
    from dpvd.native import _kernels

    scale = None if columns is None else np.zeros(columns, np.float32)
    with pytest.raises(ValueError, match=reason):
        _kernels.row_squares(np.zeros(size, np.float32), scale, np.zeros(rows, np.float32), 1)
