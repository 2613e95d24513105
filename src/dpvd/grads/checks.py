"""The proof by example that a model's gradients are treated rightly, and that its examples do not interact."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.grads.batches import Batch, LossFn, batch_size, rows
from dpvd.grads.clipped import ClippedGradients
from dpvd.grads.clipping import Clipping, ClippingMode
from dpvd.grads.groups import Grouping
from dpvd.grads.loop import true_norms
from dpvd.nn import noise_from, sampling

__all__ = ["Disagreement", "verify"]

log = logging.getLogger("dpvd")

Engine = Callable[[nn.Module, LossFn, Batch, Clipping, Grouping], ClippedGradients]

VERIFIED_ROWS = 3


class Disagreement(Exception):
    """An engine's norms differ from the oracle's on the first rows of a batch."""


def verify(engine: Engine, model: nn.Module, loss_fn: LossFn, batch: Batch, grouping: Grouping) -> None:
    """Compare an engine with the oracle on the first rows of a batch.

    This catches what no list of module types can: a custom module that mixes examples, a batch that is not the
    first dimension, a weight that is used behind the engine's back.

    Raises:
        DpvdError: if the loss of an example depends on the other examples in the batch.
        Disagreement: if the engine's norms are not the oracle's.
    """
    few = rows(batch, slice(0, min(VERIFIED_ROWS, batch_size(batch))))
    with _ordinary_dropout_off(model), torch.random.fork_rng(devices=[]):
        if not _reproducible(model, loss_fn, few):
            log.warning("the model draws random numbers of its own: its gradients cannot be checked against the oracle")
            return
        with _same_noise(grouping):
            ours = engine(model, loss_fn, few, Clipping(ClippingMode.NONE), grouping).norms
        with _same_noise(grouping):
            truth = true_norms(model, loss_fn, few, grouping)
        alone = torch.cat([_losses(model, loss_fn, rows(few, slice(i, i + 1))) for i in range(batch_size(few))])
        joint = _losses(model, loss_fn, few)
    if not _agree(joint, alone):
        raise DpvdError(
            "the loss of an example changes when other examples join its batch: something in the model or the loss "
            "mixes examples, so that clipping cannot bound what one of them contributes. Remove the mixing "
            "(statistics, attention or softmax over the batch dimension)"
        )
    if not _agree(ours, truth):
        raise Disagreement("per-example norms differ from those of the oracle")


def _same_noise(grouping: Grouping) -> AbstractContextManager[None]:
    """A stream of noise that begins anew each time, and is not the caller's: checking must not move that one, or a
    resumed run would differ from an unbroken one."""
    return noise_from(torch.Generator(next(iter(grouping.parameters.values())).device).manual_seed(0))


def _losses(model: nn.Module, loss_fn: LossFn, batch: Batch) -> Tensor:
    with torch.no_grad(), sampling(False):
        return loss_fn(model, *batch).detach()


def _reproducible(model: nn.Module, loss_fn: LossFn, batch: Batch) -> bool:
    return torch.equal(_losses(model, loss_fn, batch).nan_to_num(), _losses(model, loss_fn, batch).nan_to_num())


def _agree(ours: Tensor, truth: Tensor) -> bool:
    tolerance = torch.finfo(truth.dtype).eps ** 0.5 * 10  # 3e-3 in float32, 1e-7 in float64
    finite = torch.isfinite(truth)
    same_places = torch.equal(finite, torch.isfinite(ours))
    scale = truth[finite].abs().max() if finite.any() else truth.new_tensor(1.0)
    return same_places and bool(((ours - truth)[finite].abs() <= tolerance * (scale + 1e-6)).all())


@contextmanager
def _ordinary_dropout_off(model: nn.Module) -> Iterator[None]:
    """torch's own dropout draws from a stream that cannot be replayed row by row; it never couples examples."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    inside = {m: m.dropout for m in model.modules() if isinstance(m, nn.RNNBase | nn.MultiheadAttention)}
    for layer in layers:
        layer.training = False
    for module in inside:
        module.dropout = 0.0
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
        for module, rate in inside.items():
            module.dropout = rate
