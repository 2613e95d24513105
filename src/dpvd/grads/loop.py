"""The oracle: one backward pass for each example. Slow, short, and the truth that other engines are
tested against.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dpvd.grads.batches import Batch, LossFn, batch_size, copied, per_example_losses, rows
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import ROUNDING_UNITS, Clipping, ClippingMode
from dpvd.grads.forms import Materialised
from dpvd.grads.groups import Grouping
from dpvd.nn import NoiseTape

__all__ = ["loop", "norms_in_company", "true_norms"]

PIECE = (
    1 << 20
)  # entries that are squared at a time, and that a backward pass of its own is made for


def loop(
    model: nn.Module, loss_fn: LossFn, batch: Batch, clipping: Clipping, grouping: Grouping
) -> ClippedGradients:
    """Clipped gradients by the definition."""
    count, jacobian = batch_size(batch), grouping.jacobians()
    gradients = {name: p.new_zeros(count, *p.shape) for name, p in grouping.parameters.items()}
    losses, norms, factors = [], [], []
    for i, (loss, found) in enumerate(_examples(model, loss_fn, batch, grouping, jacobian)):
        for name, gradient in found:
            gradients[name][i] = gradient
        losses.append(loss)
        norms.append(
            _norms(loss, ((name, values[i]) for name, values in gradients.items()), grouping)
        )
        factors.append([_factor(norm, clipping, loss.dtype) for norm in norms[-1]])
    non_finite = sum(math.inf in row for row in norms)
    return ClippedGradients(
        {name: Materialised(values) for name, values in gradients.items()},
        losses[0].new_tensor(factors),
        losses[0].new_tensor(norms),
        torch.stack(losses),
        non_finite,
        clipping,
        grouping,
        jacobian,
    )


def true_norms(model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping) -> Tensor:
    """[B, G]: the norms of the examples' gradients, of which only a part of one is held at a
    time.
    """
    examples = _examples(model, loss_fn, batch, grouping, grouping.jacobians())
    found = [(loss, _norms(loss, gradients, grouping)) for loss, gradients in examples]
    return found[0][0].new_tensor([norms for _, norms in found])


def norms_in_company(
    model: nn.Module, loss_fn: LossFn, batch: Batch, i: int, grouping: Grouping
) -> Tensor:
    """[G]: the norms of one example's gradient, that of its own loss in a pass over all
    examples.
    """
    losses = per_example_losses(model, loss_fn, batch)
    gradients = _gradients(losses[i], grouping.parameters, grouping.jacobians())
    return losses.new_tensor(_norms(losses[i].detach(), gradients, grouping))


def _examples(
    model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping, jacobian: dict[str, Tensor]
) -> Iterator[tuple[Tensor, Iterator[tuple[str, Tensor]]]]:
    """Loss and gradients of each example in turn, with the noise that it had in the whole batch's
    forward pass.
    """
    tape = NoiseTape()
    with tape.recording(), torch.no_grad():
        per_example_losses(model, loss_fn, copied(batch))
    for i in range(batch_size(batch)):
        with tape.replaying(slice(i, i + 1)):
            loss = per_example_losses(model, loss_fn, rows(batch, slice(i, i + 1)))
        yield loss.detach().squeeze(0), _gradients(loss.sum(), grouping.parameters, jacobian)


def _gradients(
    loss: Tensor, parameters: dict[str, nn.Parameter], jacobian: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The gradient of each parameter. Those of a large model are not held all at once: that would
    be a second model.
    """
    pieces = _pieces(parameters)
    for last, names in zip([False] * (len(pieces) - 1) + [True], pieces, strict=True):
        wanted = [parameters[name] for name in names]
        found = iter(
            torch.autograd.grad(loss, wanted, retain_graph=not last, materialize_grads=True)
        )
        for name in names:
            yield name, next(found) / jacobian[name] if name in jacobian else next(found)


def _pieces(parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """Names of parameters, each time so many as have a quarter of all entries, or one that has
    more.
    """
    sizes = {name: parameter.numel() for name, parameter in parameters.items()}
    most = max(PIECE, max(sizes.values()), sum(sizes.values()) // 4)
    pieces: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not pieces or size > room:
            pieces.append([])
            room = most
        pieces[-1].append(name)
        room -= size
    return pieces


def _norms(
    loss: Tensor, gradients: Iterator[tuple[str, Tensor]], grouping: Grouping
) -> list[float]:
    """The norm of each clipping group; ∞ for all of them if anything is not finite."""
    squares = [0.0] * grouping.count
    for name, gradient in gradients:
        pieces = torch.split(gradient.flatten(), PIECE)
        squares[grouping.group_of[name]] += sum(
            float(piece.double().square().sum()) for piece in pieces
        )
    finite = math.isfinite(loss) and all(map(math.isfinite, squares))
    return [math.sqrt(square) if finite else math.inf for square in squares]


def _factor(norm: float, clipping: Clipping, dtype: torch.dtype) -> float:
    bound = clipping.clip_norm * (1 - ROUNDING_UNITS * torch.finfo(dtype).eps)
    if norm == math.inf:
        return 0.0
    if clipping.mode is ClippingMode.NONE:
        return 1.0
    if clipping.mode is ClippingMode.AUTOMATIC:
        return bound / (norm + clipping.stability)
    return min(1.0, bound / norm) if norm > 0 else 1.0
