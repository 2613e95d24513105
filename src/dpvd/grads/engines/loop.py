"""The oracle: one backward pass for each example. Slow, short, and what the others must equal."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from dpvd.grads.batch import Batch, LossFn, batch_size, copied, per_example_losses, rows
from dpvd.grads.clipping import ROUNDING_UNITS, Clipping, ClippingMode, Grouping, Jacobian
from dpvd.grads.factored import Materialised
from dpvd.grads.per_example import ClippedGradients, Directions
from dpvd.nn import NoiseTape

__all__ = ["loop", "projected_in_joint_pass", "true_norms"]

CHUNK = 1 << 20  # entries squared at a time, and worth a backward pass of their own

Gradients = Iterable[tuple[str, Tensor]]
"""The gradient of each parameter, with its name."""


def loop(
    model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping
) -> ClippedGradients:
    """Clipped gradients by the definition."""
    count = batch_size(batch)
    jacobian = grouping.jacobian()
    gradients = {name: p.new_zeros(count, *p.shape) for name, p in grouping.parameters.items()}
    losses = []
    norms = []
    factors = []
    for i, (loss, found) in enumerate(_examples(model, loss_fn, batch, grouping, jacobian)):
        for name, gradient in found:
            gradients[name][i] = gradient
        own = ((name, values[i]) for name, values in gradients.items())
        own_norms = _norms(loss, own, grouping)
        losses.append(loss)
        norms.append(own_norms)
        factors.append([_factor(norm, clipping, loss.dtype) for norm in own_norms])
    excluded = sum(math.inf in row for row in norms)
    return ClippedGradients(
        {name: Materialised(values) for name, values in gradients.items()},
        losses[0].new_tensor(factors),
        losses[0].new_tensor(norms),
        torch.stack(losses),
        excluded,
        clipping,
        grouping,
        jacobian,
    )


def true_norms(model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping) -> Tensor:
    """[B, G]: the norms of the examples' gradients, with a part of one in memory at a time."""
    norms = []
    jacobian = grouping.jacobian()
    for loss, gradients in _examples(model, loss_fn, batch, grouping, jacobian):
        own = _norms(loss, gradients, grouping)
        norms.append(own)
    return loss.new_tensor(norms)


def projected_in_joint_pass(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Batch,
    i: int,
    grouping: Grouping,
    directions: Directions,
) -> tuple[Tensor, Tensor]:
    """One example's gradient of each parameter, from a pass over all examples.

    Returns: its norms [P], and its projections [P, K].
    """
    losses = per_example_losses(model, loss_fn, batch)
    loss = losses[i]
    jacobian = grouping.jacobian()
    norms = []
    projections = []
    for name, gradient in _gradients(loss, grouping.parameters, jacobian):
        norms.append(float(gradient.double().norm()))
        projections.append(directions.of(name, gradient))
    return losses.new_tensor(norms), torch.stack(projections)


def _examples(
    model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping, jacobian: Jacobian
) -> Iterator[tuple[Tensor, Gradients]]:
    """Loss and gradients of each example, with the noise it had in a pass over the batch."""
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        per_example_losses(model, loss_fn, copied(batch))
    for i in range(batch_size(batch)):
        only = slice(i, i + 1)
        with tape.replaying(only):
            loss = per_example_losses(model, loss_fn, rows(batch, only))
        gradients = _gradients(loss.sum(), grouping.parameters, jacobian)
        yield loss.detach().squeeze(0), gradients


def _gradients(
    loss: Tensor, parameters: dict[str, nn.Parameter], jacobian: Jacobian
) -> Iterator[tuple[str, Tensor]]:
    """The gradient of each parameter, of a large model a few at a time: all are a second model."""
    chunks = _chunks(parameters)
    for position, names in enumerate(chunks, start=1):
        wanted = [parameters[name] for name in names]
        more = position < len(chunks)
        found = torch.autograd.grad(loss, wanted, retain_graph=more, materialize_grads=True)
        for name, gradient in zip(names, found, strict=True):
            yield name, jacobian.divide(name, gradient)


def _chunks(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Group parameters into chunks of at most a quarter of all entries; one alone may have more."""
    sizes = {name: parameter.numel() for name, parameter in parameters.items()}
    largest = max(sizes.values())
    quarter = sum(sizes.values()) // 4
    most = max(CHUNK, largest, quarter)
    chunks: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not chunks or size > room:
            chunks.append([])
            room = most
        chunks[-1].append(name)
        room -= size
    return chunks


def _norms(loss: Tensor, gradients: Gradients, grouping: Grouping) -> list[float]:
    """The norm of each clipping group; ∞ for all of them if anything is not finite."""
    squares = [0.0] * grouping.count
    for name, gradient in gradients:
        group = grouping.group_of[name]
        chunks = torch.split(gradient.flatten(), CHUNK)
        squares[group] += sum(float(chunk.double().square().sum()) for chunk in chunks)
    finite = math.isfinite(loss) and all(map(math.isfinite, squares))
    return [math.sqrt(square) if finite else math.inf for square in squares]


def _factor(norm: float, clipping: Clipping, dtype: torch.dtype) -> float:
    margin = ROUNDING_UNITS * torch.finfo(dtype).eps
    bound = clipping.clip_norm * (1 - margin)
    if norm == math.inf:
        return 0.0
    if clipping.mode is ClippingMode.NONE:
        return 1.0
    if clipping.mode is ClippingMode.AUTOMATIC:
        return bound / (norm + clipping.stability)
    if norm > 0:
        return min(1.0, bound / norm)
    return 1.0
