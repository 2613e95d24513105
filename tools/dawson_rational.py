"""Derive the Dawson function's rational approximation: python tools/dawson_rational.py prints it,
rounded to float32.

D(x) ≈ x P(z) / Q(z) with z = x² and deg Q = deg P + 1, so that it tends to 1/(2x), as it has to. It
is the best one in the largest relative error over all x, by Lawson's algorithm: least squares of P
- Q D/x whose weights are multiplied by the errors they leave, and divided by the last Q. The
  constants are in src/dpvd/native, in dawson.c and reference.py;
tests/native/test_dawson.py holds the error of the result.

References:
    Lawson (1961), "Contributions to the theory of linear least maximum approximation", chapter 3.
    Cody, Paciorek and Thacher (1970), "Chebyshev approximations for Dawson's integral", Math. Comp.
    24.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import dawsn

Array = npt.NDArray[np.float64]

_DEGREE, _CENTRE, _POINTS, _ROUNDS = 7, 2.0, 3000, 300
_LEAST_SHARE = 1e-3  # of the largest error, in the weights: none may vanish for good
_COMMON = 2.0**-40  # factor of P and Q: their float32 values are then finite up to x = 2000


def best_rational(degree: int) -> tuple[Array, Array, float]:
    """Return P and Q, constants first and that of Q 1, and the largest relative error of x P/Q."""
    nodes = np.cos(np.pi * (np.arange(_POINTS) + 0.5) / _POINTS)
    z = (
        _CENTRE * (1 + nodes) / (1 - nodes)
    )  # all of 0 .. ∞, half of the points on each side of the centre
    target = dawsn(np.sqrt(z)) / np.sqrt(z)
    top, bottom = (
        _columns(z, degree) * (_CENTRE / (z + _CENTRE) / target)[:, None],
        _columns(z, degree + 1),
    )
    shares, divisor, best = (
        np.full(_POINTS, 1 / _POINTS),
        np.ones(_POINTS),
        (np.empty(0), np.empty(0), np.inf),
    )
    for _ in range(_ROUNDS):
        scale = (np.sqrt(shares) / divisor)[:, None]
        columns = np.concatenate([top, -bottom[:, 1:]], axis=1)
        found = np.linalg.lstsq(columns * scale, bottom[:, 0] * scale[:, 0], rcond=None)[0]
        p, q = found[: degree + 1], np.append(1.0, found[degree + 1 :])
        divisor = bottom @ q
        errors = np.abs(top @ p / divisor - 1)
        if errors.max() < best[2]:
            best = (
                p / _CENTRE ** np.arange(degree + 1),
                q / _CENTRE ** np.arange(degree + 2),
                float(errors.max()),
            )
        shares = shares * (errors + _LEAST_SHARE * errors.max())
        shares /= shares.sum()
    return best


def _columns(z: Array, degree: int) -> Array:
    """Powers z^k, each times what keeps it between 0 and 1 for all z."""
    share = z / (z + _CENTRE)
    return np.stack([share**k * (1 - share) ** (degree - k) for k in range(degree + 1)], axis=1)


def main() -> None:
    """Print the largest error before rounding, and the coefficients from the highest power down."""
    p, q, error = best_rational(_DEGREE)
    print(f"largest relative error: {error:.1e}")
    for name, coefficients in (("P", p), ("Q", q)):
        rounded = [np.float32(coefficient * _COMMON) for coefficient in coefficients[::-1]]
        print(name, *(f"    {value!s:<16} {float(value).hex()}" for value in rounded), sep="\n")


if __name__ == "__main__":
    main()
