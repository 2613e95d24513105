"""The training steps that are compared: ordinary ones in plain PyTorch, and ours."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.by_hand import by_hand, is_written_out
from benchmarks.plain import LEARNING_RATE, plain, plain_channels_last
from benchmarks.workloads import Step, Workload
from dpvd.grads import Clipping
from dpvd.nn import kl, variational
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep, cross_entropy

__all__ = ["SYSTEMS", "applies"]

BATCHES_PER_EPOCH = 100
STEPS = 10**6  # more than any benchmark takes: a plan ends
KL_WEIGHT = 0.01  # that of ``dpvd train`` after its warm-up


def dpsgd(work: Workload) -> Step:
    """Private SGD on the ordinary network."""
    model = work.network()
    return _private(work, model)


def dpvd(work: Workload) -> Step:
    """Algorithm 1: noise on the weights that follows the privacy noise, and a prior."""
    plain_model = work.network()
    model = variational(plain_model, rates="layer", learned=False)
    return _private(work, model, KL_WEIGHT)


def sparse(work: Workload) -> Step:
    """Sparse variational dropout with learned scales in an ordinary loop, without privacy."""
    model, (x, y) = variational(work.network()), work.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    examples = BATCHES_PER_EPOCH * work.batch

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + kl(model) / examples
        loss.backward()
        optimizer.step()

    return step


def sparse_private(work: Workload) -> Step:
    """The same, privately."""
    model = variational(work.network())
    return _private(work, model, kl_weight=1.0)


SYSTEMS: dict[str, Callable[[Workload], Step]] = {
    "plain": plain,
    "plain-channels-last": plain_channels_last,
    "by-hand": by_hand,
    "dpsgd": dpsgd,
    "dpvd": dpvd,
    "sparse": sparse,
    "sparse-private": sparse_private,
}


def applies(system: str, work: Workload) -> bool:
    """Whether a system can take a workload: channels_last needs images, by-hand one network."""
    if work.from_library and system not in ("plain", "plain-channels-last", "dpsgd"):
        return False
    if system == "by-hand":
        return is_written_out(work)
    return system != "plain-channels-last" or len(work.shape) == 3


def _private(work: Workload, model: nn.Module, kl_weight: float | None = None) -> Step:
    """A private step with noise from the system's cryptographic source, the plan's default."""
    plan = PrivacyPlan(
        examples=BATCHES_PER_EPOCH * work.batch,
        batch_size=work.batch,
        steps=STEPS,
        noise_multiplier=1.0,
        clipping=Clipping("flat", clip_norm=1.0),
    )
    step = PrivateStep(
        model,
        cross_entropy,
        plan,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        kl_weight=None if kl_weight is None else lambda _: kl_weight,
        batches="declared",  # one batch, again and again
    )
    batch = work.data()
    return lambda: step(batch)
