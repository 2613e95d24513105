"""The repair of what private training cannot take, where one is known."""

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpvd.errors import DpvdError

__all__ = ["Repair", "fix"]

log = logging.getLogger("dpvd")

# Wu and He (arXiv:1803.08494v3) find 32 groups best. A group needs several channels: batch norm is
# also used on flat features, where a group of one channel would be normalised to zero.
MOST_GROUPS, FEWEST_CHANNELS = 32, 8


@dataclass(frozen=True)
class Repair:
    """What :func:`fix` changed: the name of each module, and what became of it."""

    changes: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return (
            "; ".join(f"{name or 'model'}: {change}" for name, change in self.changes)
            or "nothing to repair"
        )


def fix(model: nn.Module) -> nn.Module:
    """Return a copy of the model with group norm for batch norm, and no running statistics; the
    model is untouched.

    Guarantees: affine weights, ``requires_grad``, device, dtype and mode are kept; a module used in
    several places stays one module. The copy carries the account of what was done as ``repair``,
    also logged at level INFO.

    Edge cases: the number of groups is the largest divisor of the channels, of at most 32, that
    leaves at least 8 channels in each group; else 1. Running means and variances of batch norm are
    dropped, so the copy computes something else than the model: train it again. Batch norm in eval
    mode is replaced too, since training would switch it on. What has no known repair is left:
    ``check`` the result.

    Raises:
        DpvdError: a batch norm whose number of channels is not known yet.

    >>> print(fix(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))).repair)
    1: BatchNorm2d became GroupNorm of 8 groups
    """
    for name, module in model.named_modules():
        if (
            isinstance(module, _BatchNorm) and module.num_features == 0
        ):  # lazy: not known before the first call
            raise DpvdError(
                f"{type(module).__name__} at {name!r} does not know its channels yet: call the"
                " model first"
            )
    copied = copy.deepcopy(model)
    named = list(copied.named_modules())
    replacements: dict[nn.Module, nn.Module] = {
        module: _group_norm(module) for _, module in named if isinstance(module, _BatchNorm)
    }
    changes = tuple(_changes(named, replacements))
    for parent in list(copied.modules()):
        for (
            name,
            child,
        ) in parent._modules.items():  # named_children() would skip the repeats of a child
            if child in replacements:
                parent._modules[name] = replacements[child]
    result = replacements.get(copied, copied)
    repair = Repair(changes)
    result.repair = repair  # type: ignore[assignment]
    log.info("%s", repair)
    return result


def _changes(
    named: list[tuple[str, nn.Module]], replacements: dict[nn.Module, nn.Module]
) -> Iterator[tuple[str, str]]:
    """Say what happens to each module; switch running statistics off on the way."""
    for name, module in named:
        kind = type(module).__name__
        if module in replacements:
            yield name, f"{kind} became GroupNorm of {replacements[module].num_groups} groups"
        elif isinstance(module, _InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            yield name, f"{kind} keeps no running statistics"


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    fitting = (
        g
        for g in range(1, MOST_GROUPS + 1)
        if channels % g == 0 and channels // g >= FEWEST_CHANNELS
    )
    group_norm = nn.GroupNorm(max(fitting, default=1), channels, norm.eps, affine=False)
    if norm.affine:
        group_norm.affine = True
        group_norm.weight, group_norm.bias = norm.weight, norm.bias
    return group_norm.train(norm.training)
