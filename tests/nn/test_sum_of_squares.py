"""Sums of squares: the values and gradients of the plain formula."""

import pytest
import torch

from dpvd.nn.sum_of_squares import row_squares, sum_of_squares, with_sum_of_squares
from tests.nn.cases import normal


@pytest.mark.parametrize("dim", [1, -1])
def test_a_sum_of_squares_has_the_gradient_of_the_formula(
    dim: int, generator: torch.Generator
) -> None:
    x = normal((5, 3, 4), generator).requires_grad_()
    found, expected = sum_of_squares(x, dim), (x * x).sum(dim, keepdim=True)
    assert torch.equal(found, expected)
    weights = normal(tuple(expected.shape), generator)
    gradients = [torch.autograd.grad((y * weights).sum(), x) for y in (found, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)
    assert torch.equal(
        torch.func.vmap(lambda row: sum_of_squares(row, -1))(x), sum_of_squares(x, -1)
    )


@pytest.mark.parametrize("used", ["both", "itself", "squares"])
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4)])
def test_gradients_of_both_reach_the_tensor(
    used: str, shape: tuple[int, ...], generator: torch.Generator
) -> None:
    x, weights = normal(shape, generator).requires_grad_(), normal(shape, generator)
    once, beside = with_sum_of_squares(x, -1)
    assert torch.equal(once, x)
    values = {"itself": (once * weights).sum(), "squares": (beside * weights).sum()}
    formulas = {
        "itself": (x * weights).sum(),
        "squares": ((x * x).sum(-1, keepdim=True) * weights).sum(),
    }
    names = list(values) if used == "both" else [used]
    gradients = [
        torch.autograd.grad(sum(terms[name] for name in names), x) for terms in (values, formulas)
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["as it is", "transposed", "scaled", "large"])
def test_rows_in_every_form_are_precise(
    kind: torch.dtype, form: str, generator: torch.Generator
) -> None:
    rows = normal((6, 100_000 if form == "large" else 300), generator).to(kind)
    scale = normal((rows.shape[1],), generator).to(kind) if form == "scaled" else None
    if form == "transposed":
        rows = rows.T.contiguous().T
    found = row_squares(rows, scale)
    exact = (rows.double() * (1 if scale is None else scale.double())).square().sum(1)
    torch.testing.assert_close(found.double(), exact, rtol=8 * torch.finfo(kind).eps, atol=0)
    assert found.dtype == kind
