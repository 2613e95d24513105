"""Derive the polynomials of the noise transforms: python tools/noise_polynomials.py prints them.

Those for float32 (layers' noise: normals.c, reference.py) are best approximations in the largest
error, by Lawson's algorithm: least squares whose weights are multiplied by the errors they leave,
until all errors are equally large. Those for float64 (privacy noise: release.c) go through the
function at Chebyshev's points, in 200-bit arithmetic: next to the best, and good enough with the
coefficients that the best ones would need. tests/native hold the errors of the results.

References:
    Lawson (1961), "Contributions to the theory of linear least maximum approximation", chapter 3.
    Trefethen (2013), "Approximation theory and approximation practice", chapter 16: interpolation
        is near-best.
"""

from collections.abc import Callable

import mpmath
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

Exact = Callable[[mpmath.mpf], mpmath.mpf]

_POINTS, _ROUNDS = 4000, 200
_PLACES = 1000
_QUARTER_SQUARED = (np.pi / 4) ** 2


def best_polynomial(
    f: Function, weight: Function, low: float, high: float, degree: int
) -> tuple[Array, float]:
    """Return the coefficients, constant first, that make the largest weight · |p - f| on [low,
    high] least, and it.
    """
    nodes = np.cos(
        np.pi * (np.arange(_POINTS) + 0.5) / _POINTS
    )  # dense at the ends, where errors are largest
    x = (high + low) / 2 + (high - low) / 2 * nodes
    columns = np.vander(x / high, degree + 1, increasing=True)
    target, fixed, shares = f(x), weight(x), np.full(_POINTS, 1 / _POINTS)
    for _ in range(_ROUNDS):
        scale = fixed * np.sqrt(shares)
        coefficients = np.linalg.lstsq(columns * scale[:, None], target * scale, rcond=None)[0]
        errors = np.abs(columns @ coefficients - target) * fixed
        shares = shares * errors / (shares @ errors)
    return coefficients / high ** np.arange(degree + 1), float(errors.max())


def interpolating_polynomial(f: Exact, high: mpmath.mpf, count: int) -> list[float]:
    """Return the coefficients of the polynomial through f on [0, high], constant first, rounded to
    float64.
    """
    nodes = [
        high / 2 * (1 + mpmath.cospi(mpmath.mpf(2 * i + 1) / (2 * count))) for i in range(count)
    ]
    powers = mpmath.matrix([[node**power for power in range(count)] for node in nodes])
    values = mpmath.matrix([f(node) for node in nodes])
    return [float(coefficient) for coefficient in mpmath.lu_solve(powers, values)]


def largest_error(coefficients: list[float], f: Exact, weight: Exact, high: mpmath.mpf) -> float:
    """weight · |p - f|, the largest on a fine grid of (0, high], with the rounded coefficients."""
    places = [high * step / _PLACES for step in range(1, _PLACES + 1)]
    errors = [weight(x) * abs(mpmath.polyval(coefficients[::-1], x) - f(x)) for x in places]
    return float(max(errors))


def print_single() -> None:
    """Print name, largest error before rounding, and coefficients from the highest power down, for
    float32.
    """
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
        print(
            f"{name}: {error:.1e}",
            *(f"    {value!r:<26} {value.hex()}" for value in rounded),
            sep="\n",
        )


def print_double() -> None:
    """Print name, largest error, as a power of 2, and coefficients from the highest power down, for
    float64.
    """
    mpmath.mp.prec = 200
    sqrt = mpmath.sqrt
    eighth_turn = (mpmath.pi / 4) ** 2
    edge = ((sqrt(2) - 1) / (sqrt(2) + 1)) ** 2  # s² at m = √2
    cases: dict[str, tuple[Exact, Exact, mpmath.mpf, int]] = {
        "2 atanh s = 2 s + s³ p(s²), relative": (
            lambda z: (2 * mpmath.atanh(sqrt(z)) / sqrt(z) - 2) / z,
            lambda z: z / 2,
            edge,
            7,
        ),
        "sin x = x + x³ p(x²), relative to x": (
            lambda z: (mpmath.sin(sqrt(z)) / sqrt(z) - 1) / z,
            lambda z: z,
            eighth_turn,
            6,
        ),
        "cos x = 1 - x²/2 + x⁴ p(x²), relative": (
            lambda z: (mpmath.cos(sqrt(z)) - 1 + z / 2) / z**2,
            lambda z: z**2 / mpmath.cos(sqrt(z)),
            eighth_turn,
            6,
        ),
    }
    for name, (f, weight, high, count) in cases.items():
        coefficients = interpolating_polynomial(f, high, count)
        error = largest_error(coefficients, f, weight, high)
        print(
            f"{name}: 2^{np.log2(error):.1f}", *(f"    {c!r}" for c in coefficients[::-1]), sep="\n"
        )


if __name__ == "__main__":
    print_single()
    print_double()
