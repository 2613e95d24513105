"""Derive the polynomials of the noise transform: python tools/noise_polynomials.py prints them, rounded to float32.

Each is the best approximation in the largest error, by Lawson's algorithm: least squares whose weights are multiplied
by the errors they leave, until all errors are equally large. The constants are in src/dpvd/native, in normals.c and
pure.py; tests/native hold the errors of the result.

References:
    Lawson (1961), "Contributions to the theory of linear least maximum approximation", chapter 3.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

_POINTS, _ROUNDS = 4000, 200
_QUARTER_SQUARED = (np.pi / 4) ** 2


def best_polynomial(f: Function, weight: Function, low: float, high: float, degree: int) -> tuple[Array, float]:
    """Return the coefficients, constant first, that make the largest weight · |p - f| on [low, high] least, and it."""
    nodes = np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)  # dense at the ends, where errors are largest
    x = (high + low) / 2 + (high - low) / 2 * nodes
    columns = np.vander(x / high, degree + 1, increasing=True)
    target, fixed, shares = f(x), weight(x), np.full(_POINTS, 1 / _POINTS)
    for _ in range(_ROUNDS):
        scale = fixed * np.sqrt(shares)
        coefficients = np.linalg.lstsq(columns * scale[:, None], target * scale, rcond=None)[0]
        errors = np.abs(columns @ coefficients - target) * fixed
        shares = shares * errors / (shares @ errors)
    return coefficients / high ** np.arange(degree + 1), float(errors.max())


def main() -> None:
    """Print name, largest error before rounding, and coefficients from the highest power down."""
    cases: dict[str, tuple[Function, Function, float, float, int]] = {
        "ln(1 + t) = t + t² p(t), relative": (
            lambda t: (np.log1p(t) - t) / t**2,
            lambda t: np.abs(t**2 / np.log1p(t)),
            np.sqrt(0.5) - 1,
            np.sqrt(2) - 1,
            7,
        ),
        "sin x = x + x³ p(x²), relative to x": (
            lambda z: (np.sin(np.sqrt(z)) / np.sqrt(z) - 1) / z,
            lambda z: z,
            1e-4,
            _QUARTER_SQUARED,
            2,
        ),
        "cos x = 1 - x²/2 + x⁴ p(x²), absolute": (
            lambda z: (np.cos(np.sqrt(z)) - 1 + z / 2) / z**2,
            lambda z: z**2,
            1e-2,
            _QUARTER_SQUARED,
            2,
        ),
    }
    for name, case in cases.items():
        coefficients, error = best_polynomial(*case)
        rounded = [float(np.float32(coefficient)) for coefficient in coefficients[::-1]]
        print(f"{name}: {error:.1e}", *(f"    {value!r:<26} {value.hex()}" for value in rounded), sep="\n")


if __name__ == "__main__":
    main()
