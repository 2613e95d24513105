"""One line for an existing loop: its loader and its step made private."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from dpvd.errors import DpvdError
from dpvd.grads import Clipping, LossFn
from dpvd.loader import PlannedLoader, as_dataset
from dpvd.losses import cross_entropy
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName
from dpvd.training.step import PrivateStep

__all__ = ["check_sampler", "make_private", "planned_like"]


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    epsilon: float,
    delta: float,
    epochs: float,
    clip_norm: float,
    loss_fn: LossFn | nn.Module = cross_entropy,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    kept_mb: float = 64.0,
    accountant: AccountantName | str = AccountantName.PLD,
) -> tuple[PlannedLoader, PrivateStep]:
    """The loader and the step of a private run, for people who have a loop.

        loader, step = make_private(model, optimizer, loader, epsilon=3, ...)
        for _ in range(epochs):
            for batch in loader:
                step(batch)
        print(step.guarantee(delta).sentence())

    Model and optimizer stay what they are. Anything else than this (another sampler, relation or
    unit of privacy, what was tuned) is for a :class:`dpvd.PrivacyPlan` of your own, with
    ``plan.loader`` and :class:`PrivateStep`.

    Guarantees: ``epochs`` passes over the loader spend at most (ε, δ), and no step goes beyond.

    Args:
        model: the network.
        optimizer: holds its trainable parameters.
        data: a DataLoader, of which data set, collate function, workers and batch size are taken
            and the order of examples is not; or a data set, with ``batch_size``.
        epsilon: ε that all epochs together may spend.
        delta: δ, below one over the number of examples.
        epochs: passes over the loader.
        clip_norm: the bound on each example's gradient.
        loss_fn: one value per example: ``loss_fn(model, *batch)``, or a criterion of torch with
            reduction="none".
        batch_size: the expected size of a batch; that of the loader if not given.
        micro_batch: at most this many examples go through the model at once.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept at once.
        accountant: by which the noise is chosen.

    Raises:
        DpvdError: as :class:`PrivateStep` and ``plan.loader``; and if the loader draws examples in
            a way of its own, by weights or for one of several processes.
    """
    source = data if isinstance(data, DataLoader) else None
    if source is not None:
        check_sampler(source)
        data = source.dataset
        batch_size = batch_size or source.batch_size
    if batch_size is None:
        raise DpvdError("a data set has no batch size: give batch_size, the expected one")
    plan = PrivacyPlan(
        examples=len(as_dataset(data)),
        batch_size=batch_size,
        epochs=epochs,
        clipping=Clipping("flat", clip_norm=clip_norm),
    ).calibrate(epsilon, delta, accountant)
    loader = plan.loader(data) if source is None else planned_like(source, plan)
    step = PrivateStep(model, loss_fn, plan, optimizer, micro_batch=micro_batch, kept_mb=kept_mb)
    return loader, step


def planned_like(source: DataLoader[Any], plan: PrivacyPlan, start: int = 0) -> PlannedLoader:
    """A loader of the plan's draws that reads as another one does.

    Args:
        source: of which data set, collate function and workers are taken, and the order is not.
        plan: what draws instead.
        start: how many steps have been taken already.

    Raises:
        DpvdError: if the source draws examples in a way of its own; or as ``plan.loader``.
    """
    check_sampler(source)
    return plan.loader(
        source.dataset,
        collate_fn=source.collate_fn,
        num_workers=source.num_workers,
        pin_memory=source.pin_memory,
        persistent_workers=source.persistent_workers,
        prefetch_factor=source.prefetch_factor,
        worker_init_fn=source.worker_init_fn,
        multiprocessing_context=source.multiprocessing_context,
        start=start,
    )


def check_sampler(loader: DataLoader[Any]) -> None:
    """Raise if the loader chooses examples in a way that Poisson sampling would not replace."""
    if isinstance(loader, PlannedLoader):
        raise DpvdError("this loader has a plan already: give the data set behind it")
    sampler = getattr(loader, "sampler", None)
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler):
        raise DpvdError(
            "a DistributedSampler shares the data among processes: train in one process, which"
            " reads all of them"
        )
    takes_all = type(sampler) is SequentialSampler
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        takes_all = len(sampler) == len(sampler.data_source)
    if not takes_all:
        raise DpvdError(
            f"the loader draws by {name}, but the account assumes that every example is drawn with"
            " the same probability: give a loader without a sampler, of a torch.utils.data.Subset"
            " if need be, and put weights of classes into the loss"
        )
    if loader.batch_size is None:
        raise DpvdError(
            "the loader has a batch sampler of its own, which the plan's would replace: give the"
            " data set and batch_size"
        )
