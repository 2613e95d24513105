"""The same model without privacy: what a table's private model is compared with."""

import torch
from torch import Tensor
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
) -> TableModel:
    """Learn a table by exact moments and many exact steps: nothing is private here.

    Args:
        x: [n, features] encoded rows.
        y: [n] classes, int64 from 0, or numbers within the range.
        classes: number of classes; None for regression.
        target_range: bounds of the target, regression.
    """
    model = TableModel(x.shape[1], classes, whitened=True, target_range=target_range)
    blocks = list(zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True))
    with torch.no_grad():
        total = torch.stack([model.of_unit_length(rows).double().sum(0) for rows, _ in blocks])
        model.mean.copy_(total.sum(0) / len(x))
        second = torch.zeros(len(model.mean), len(model.mean), dtype=torch.float64)
        for rows, _ in blocks:
            part = model.centred(rows).double()
            second += part.T @ part / len(x)
        model.transform.copy_(_inverse_root(second))
        if classes is None:
            _least_squares(model, blocks)
    if classes is not None:
        _maximum_likelihood(model, blocks)
    return model.eval()


def _inverse_root(second: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(second)
    kept = values.clamp_min(_LEAST_VALUE * values[-1].item())
    root: Tensor = (vectors * kept.rsqrt()) @ vectors.T
    return root


def _least_squares(model: TableModel, blocks: list[tuple[Tensor, Tensor]]) -> None:
    low, high = model.target_range.tolist()
    size = model.head.in_features
    second = torch.zeros(size, size, dtype=torch.float64)
    cross = torch.zeros(size, 1, dtype=torch.float64)
    square = 0.0
    count = 0
    for rows, targets in blocks:
        inputs = model.inputs(rows).double()
        scaled = (2 * (targets.double() - low) / (high - low) - 1)[:, None]
        second += inputs.T @ inputs
        cross += inputs.T @ scaled
        square += scaled.square().sum().item()
        count += len(rows)
    ridge = _DECAY * count * torch.eye(size, dtype=torch.float64)
    weights = torch.linalg.solve(second + ridge, cross)
    model.head.weight.copy_(weights.T)
    left = square - 2 * (weights * cross).sum() + (weights * (second @ weights)).sum()
    model.residual.fill_(max(left.item() / count, 1e-9))


def _maximum_likelihood(model: TableModel, blocks: list[tuple[Tensor, Tensor]]) -> None:
    count = sum(len(rows) for rows, _ in blocks)
    optimizer = torch.optim.LBFGS(
        [model.head.weight], max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> float:
        optimizer.zero_grad()
        whole = 0.0
        for rows, targets in blocks:
            with torch.no_grad():
                inputs = model.inputs(rows)
            logits = model.outcome(model.head(inputs))
            part = F.cross_entropy(logits, targets, reduction="sum") / count
            part.backward()  # type: ignore[no-untyped-call]
            whole += part.item()
        penalty = _DECAY * model.head.weight.square().sum()
        penalty.backward()  # type: ignore[no-untyped-call]
        return whole + penalty.item()

    optimizer.step(loss)  # type: ignore[no-untyped-call]
