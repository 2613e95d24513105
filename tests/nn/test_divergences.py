"""The KL to the log-uniform prior against published values and independent numerical
integration.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import dawsn

from dpvd.nn.kl_term.divergences import exact_kl, kingma_kl, molchanov_kl

# log α → KL, computed to 7 decimals with independent code.
GOLDEN = {
    -8: 4.6350136,
    -4: 2.6257549,
    -2: 1.5441546,
    -1: 0.9145313,
    0: 0.4266856,
    1: 0.1731939,
    2: 0.0661685,
    3: 0.0246883,
    5: 0.0033652,
    8: 0.0001677,
}
EXPECTED_LIMIT = (0.5772156649015329 + np.log(2)) / 2  # KL + ½ log α as α → 0


def doubles(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slopes(kl: object, log_alpha: torch.Tensor) -> torch.Tensor:
    log_alpha = log_alpha.clone().requires_grad_()
    kl(log_alpha).sum().backward()
    return log_alpha.grad


def test_exact_golden_values() -> None:
    values = exact_kl(doubles(list(GOLDEN)))
    torch.testing.assert_close(values, doubles(list(GOLDEN.values())), rtol=0, atol=1e-7)


def test_exact_value_against_adaptive_quadrature() -> None:
    for log_alpha in np.linspace(-9.3, 23.1, 60):
        x = np.exp(-log_alpha / 2) / np.sqrt(2)
        expected = 2 * quad(dawsn, 0, x, epsabs=1e-13, epsrel=1e-12, limit=500)[0]
        assert exact_kl(doubles(log_alpha)).item() == pytest.approx(expected, abs=1e-9)


def test_exact_is_the_expected_log_of_the_noisy_weight() -> None:
    """KL(α) - KL(1) from its definition, -½ log α + E log|1 + √α ε| + const, without any Dawson
    function.
    """

    def by_definition(alpha: float) -> float:
        std = np.sqrt(alpha)

        def integrand(w: float) -> float:
            return (
                np.log(abs(w)) * np.exp(-((w - 1) ** 2) / (2 * alpha)) / (std * np.sqrt(2 * np.pi))
            )

        pieces = [1 - 12 * std, min(0.0, 1 - 11 * std), max(0.0, 1 - 11 * std), 1.0, 1 + 12 * std]
        parts = [
            quad(integrand, a, b, epsabs=1e-11, limit=500)[0] for a, b in itertools.pairwise(pieces)
        ]
        return -0.5 * np.log(alpha) + sum(parts)

    for alpha in (0.05, 0.3, 2.0, 10.0):
        difference = exact_kl(doubles(np.log(alpha))) - exact_kl(doubles(0.0))
        assert difference.item() == pytest.approx(
            by_definition(alpha) - by_definition(1.0), abs=1e-7
        )


def test_exact_slope_is_minus_x_times_dawson_of_x() -> None:
    log_alpha = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    x = np.exp(-log_alpha.numpy() / 2) / np.sqrt(2)
    error = (slopes(exact_kl, log_alpha) + torch.from_numpy(x * dawsn(x))).abs().max().item()
    assert error < 1e-9


def test_exact_passes_gradcheck_across_the_ends_of_its_table() -> None:
    points = doubles([-30.0, -24.003, -23.997, -10.1, -0.3, 0.2, 7.7, 30.0]).requires_grad_()
    assert torch.autograd.gradcheck(exact_kl, points, atol=1e-7)


def test_exact_limits() -> None:
    infinity = float("inf")
    values = exact_kl(doubles([-infinity, -1000.0, -24.0, infinity, float("nan")]))
    assert values[0] == infinity
    assert values[1].item() == pytest.approx(500 + EXPECTED_LIMIT, abs=1e-9)
    assert values[2].item() == pytest.approx(12 + EXPECTED_LIMIT, abs=1e-9)
    assert values[3] == 0
    assert values[4].isnan()
    assert slopes(exact_kl, doubles([-infinity, infinity])).tolist() == pytest.approx(
        [-0.5, 0.0], abs=1e-10
    )


@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (70_000,)])
def test_exact_keeps_shape_and_dtype(shape: tuple[int, ...], generator: torch.Generator) -> None:
    single = 4 * torch.randn(shape, generator=generator)
    value = exact_kl(single)
    assert value.shape == shape
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact_kl(single.double()), rtol=2e-6, atol=2e-6)


def test_exact_works_under_function_transforms() -> None:
    points = doubles([-1.0, 2.0])
    gradient = torch.func.vmap(torch.func.grad(lambda point: exact_kl(point)))(points)
    torch.testing.assert_close(gradient, slopes(exact_kl, points))


@pytest.mark.parametrize(
    ("approximation", "highest", "bound", "is_tight_at"),
    [(molchanov_kl, 20.0, 0.0094, 0.009), (kingma_kl, 0.0, 0.0203, 0.019)],
)
def test_approximations_are_as_good_as_stated_and_no_better(
    approximation: object, highest: float, bound: float, is_tight_at: float
) -> None:
    log_alpha = torch.linspace(-20, highest, 4001, dtype=torch.float64)
    error = (approximation(log_alpha) - exact_kl(log_alpha)).abs().max().item()
    assert is_tight_at < error <= bound


def test_molchanov_slope_is_within_its_bound() -> None:
    log_alpha = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    error = (slopes(molchanov_kl, log_alpha) - slopes(exact_kl, log_alpha)).abs().max().item()
    assert 0.01 < error <= 0.014


def test_molchanov_vanishes_for_large_alpha() -> None:
    assert molchanov_kl(doubles([40.0, float("inf")])).tolist() == pytest.approx(
        [0.0, 0.0], abs=1e-15
    )


def test_kingma_is_projected_to_alpha_at_most_one() -> None:
    above = doubles([0.5, 3.0])
    assert kingma_kl(above).tolist() == [kingma_kl(doubles(0.0)).item()] * 2
    assert slopes(kingma_kl, above).tolist() == [0.0, 0.0]
