"""What several processes must have in common to train one model."""

import hashlib
from importlib import import_module

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpvd.errors import DpvdError
from dpvd.plan import PrivacyPlan
from dpvd.privacy import Ledger
from dpvd.ranks import Ranks
from dpvd.training.checks import BatchOrigin

__all__ = ["check_ranks", "check_same_weights", "refuse_sharded", "share_weights"]

_SAME_WEIGHTS = (
    "start all processes from the same weights, by a seed or with dpvd.share_weights(model, group),"
    " and change them in none of them alone"
)


def check_ranks(
    ranks: Ranks,
    model: nn.Module,
    plan: PrivacyPlan,
    *,
    batches: BatchOrigin,
    ledger: Ledger | None,
) -> None:
    """Raise, before the first step, unless the processes of a group can train one model.

    Raises:
        DpvdError: on every process, if they disagree; on one, if it has what it must not have.
    """
    if not ranks.are_several:
        return
    with ranks.together():
        if isinstance(model, DistributedDataParallel):
            raise DpvdError(
                "DistributedDataParallel averages gradients before anything can be clipped: give"
                " the module inside it, model.module; the step adds up what the processes have"
            )
        if batches is BatchOrigin.DECLARED:
            raise DpvdError(
                "several processes take the plan's own draws only: take batches from"
                " plan.batches(..., group=group)"
            )
        if ledger is not None and not ranks.is_first:
            raise DpvdError(
                f"rank {ranks.rank} has a ledger of its own: the first process charges for all;"
                " give ledger=None to the others"
            )
        if plan.private and plan.clipping.is_adaptive:
            raise DpvdError(
                "adaptive clipping works in one process: take another clipping for several"
            )
        if plan.bands > 1:
            raise DpvdError(
                "correlated noise is kept in one process: take bands=1, or train in one process"
            )
    program = import_module("dpvd")  # an import at the top would be a circle
    layout = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.named_parameters()]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    ranks.check_same(
        {
            "the versions of dpvd and torch": f"{program.__version__} {torch.__version__}",
            "the plan": plan.fingerprint,
            "the names and shapes of the parameters": repr(layout),
            "which parameters are trained": repr(trained),
        },
        "give every process the same plan and the same model",
    )
    check_same_weights(ranks, model)


def refuse_sharded(model: nn.Module) -> None:
    """Raise if parameters are split over processes, as ``fully_shard`` does it.

    Each process would clip by the norm of what it holds of a gradient, which is not the norm of
    the whole: the bound on one example would be void.

    Raises:
        DpvdError: naming a parameter.
    """
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh"):  # a DTensor; importing its class takes time
            raise DpvdError(
                f"parameter {name} is split over processes (fully_shard): the norm of an example's"
                " gradient needs all of it. Give every process the whole model, and group= to the"
                " step"
            )


def check_same_weights(ranks: Ranks, model: nn.Module) -> None:
    """Raise, on every process, unless all have the same weights to the last bit."""
    if ranks.are_several:
        ranks.check_same({"the weights": _digest_of(model)}, _SAME_WEIGHTS)


def share_weights(model: nn.Module, group: "torch.distributed.ProcessGroup") -> None:
    """Give the parameters and buffers of the group's first process to all of it."""
    ranks = Ranks(group)
    for tensor in model.state_dict().values():
        ranks.take_from_first(tensor)


def _digest_of(model: nn.Module) -> str:
    """SHA-256 of every bit of the parameters and buffers, with their names and shapes, in order."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()
