"""The same model without privacy: what a table's private model is compared with."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.tabular.model import TableModel

__all__ = ["fit_ordinary"]

_BLOCK = 8192
_LEAST_VALUE = 1e-6  # of an eigenvalue, over the largest
_DECAY = 1e-5
_ITERATIONS = 200


def fit_ordinary(
    x: Tensor,
    y: Tensor,
    *,
    classes: int | None,
    target_range: tuple[float, float] = (-1.0, 1.0),
    hidden: int = 0,
) -> TableModel:
    """Learn a table by exact moments and many exact steps: nothing is private here.

    Args:
        x: [n, features] encoded rows.
        y: [n] classes, int64 from 0, or numbers within the range.
        classes: number of classes; None for regression.
        target_range: bounds of the target, regression.
        hidden: number of hidden units of a network; 0 for a linear model.
    """
    model = TableModel(
        x.shape[1], classes, whitened=True, target_range=target_range, hidden=hidden, points=True
    )
    blocks = list(zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True))
    with torch.no_grad():
        total = torch.stack([model.of_unit_length(rows).double().sum(0) for rows, _ in blocks])
        model.mean.copy_(total.sum(0) / len(x))
        second = torch.zeros(len(model.mean), len(model.mean), dtype=torch.float64)
        for rows, _ in blocks:
            part = model.centred(rows).double()
            second += part.T @ part / len(x)
        model.transform.copy_(_inverse_root(second))
        if hidden:
            model.hidden_transform.copy_(_inverse_root(second[model.seen][:, model.seen]))
    if classes is not None:
        _descend(model, blocks, _cross_entropy)
    elif hidden:
        error = _descend(model, blocks, _squared_error)
        model.residual.fill_(max(error, 1e-9))
    else:
        _least_squares(model, blocks)
    return model.eval()


def _inverse_root(second: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(second)
    kept = values.clamp_min(_LEAST_VALUE * values[-1].item())
    root: Tensor = (vectors * kept.rsqrt()) @ vectors.T
    return root


@torch.no_grad()
def _least_squares(model: TableModel, blocks: list[tuple[Tensor, Tensor]]) -> None:
    assert isinstance(model.head, nn.Linear)  # a network has no closed form
    size = model.head.in_features
    second = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, 1, dtype=torch.float64)
    square = 0.0
    count = 0
    for rows, targets in blocks:
        inputs = model.inputs(rows).double()
        scaled = _scaled(model, targets)[:, None]
        second += inputs.T @ inputs
        cross += inputs.T @ scaled
        square += scaled.square().sum().item()
        count += len(rows)
    ridge = _DECAY * count * torch.eye(size, dtype=torch.float64)
    weights = torch.linalg.solve(second + ridge, cross)
    model.head.weight.copy_(weights.T)
    left = square - 2 * (weights * cross).sum() + (weights * (second @ weights)).sum()
    model.residual.fill_(max(left.item() / count, 1e-9))


def _scaled(model: TableModel, targets: Tensor) -> Tensor:
    """Numbers within [-1, 1]."""
    low, high = model.target_range.tolist()
    share: Tensor = (targets.double() - low) / (high - low)
    return 2 * share - 1


def _cross_entropy(model: TableModel, outcome: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outcome, targets, reduction="sum")


def _squared_error(model: TableModel, outcome: Tensor, targets: Tensor) -> Tensor:
    return (outcome - _scaled(model, targets)).square().sum()


def _descend(
    model: TableModel,
    blocks: list[tuple[Tensor, Tensor]],
    loss_of: Callable[[TableModel, Tensor, Tensor], Tensor],
) -> float:
    """Minimise the mean loss; return its value."""
    count = sum(len(rows) for rows, _ in blocks)
    parameters = list(model.head.parameters())
    optimizer = torch.optim.LBFGS(parameters, max_iter=_ITERATIONS, line_search_fn="strong_wolfe")
    last = 0.0

    def loss() -> float:
        nonlocal last
        optimizer.zero_grad()
        last = 0.0
        for rows, targets in blocks:
            with torch.no_grad():
                inputs = model.inputs(rows)
            outcome = model.outcome(model.head(inputs))
            part = loss_of(model, outcome, targets) / count
            part.backward()  # type: ignore[no-untyped-call]
            last += part.item()
        penalty = _DECAY * sum(weight.square().sum() for weight in parameters)
        assert isinstance(penalty, Tensor)
        penalty.backward()  # type: ignore[no-untyped-call]
        return last + penalty.item()

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return last
