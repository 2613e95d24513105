"""What in a model private training cannot take, and the repair where one is known."""

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.ao.quantization import FakeQuantizeBase, ObserverBase
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from dpvd.errors import DpvdError

__all__ = ["Problem", "Repair", "find_problems", "fix", "refuse_problems"]

log = logging.getLogger("dpvd")


@dataclass(frozen=True)
class Problem:
    """One reason why a model cannot be trained privately.

    Attributes:
        module: name of the module in the model; "" is the model itself.
        kind: class of the module.
        reason: what it does, and why that breaks the guarantee.
        replacement: what to do instead.
    """

    module: str
    kind: str
    reason: str
    replacement: str

    def __str__(self) -> str:
        where = self.kind
        if self.module:
            where += f" at {self.module!r}"
        return f"{where} {self.reason}. {self.replacement}"


def find_problems(model: nn.Module) -> list[Problem]:
    """Everything in a model, in its present mode, that private training cannot take.

    The model is neither run nor changed.
    """
    # An observer inside fake quantisation runs only if that lets it.
    quantising = [module for module in model.modules() if isinstance(module, FakeQuantizeBase)]
    governed = {id(observer) for module in quantising for observer in module.children()}
    found = [
        Problem(name, type(module).__name__, *complaint)
        for name, module in model.named_modules()
        for detector in _DETECTORS
        if id(module) not in governed and (complaint := detector(module)) is not None
    ]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        found.append(
            Problem(
                "",
                type(model).__name__,
                "has no trainable parameter",
                "Set requires_grad on those to be trained",
            )
        )
    return found


def refuse_problems(model: nn.Module) -> None:
    """Raise with the first problem of a model, if there is one."""
    problems = find_problems(model)
    if problems:
        more = (
            f" ({len(problems) - 1} more: dpvd.check(model) lists all)" if len(problems) > 1 else ""
        )
        raise DpvdError(f"{problems[0]}{more}")


# What a module does and what to do instead, or None: one function for each kind of problem.

Complaint = tuple[str, str]


def _batch_statistics(module: nn.Module) -> Complaint | None:
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        return (
            (
                "normalises with statistics of the whole batch: an example then reaches beyond its"
                " own clipped gradient and the guarantee is void"
            ),
            (
                "Replace it by nn.GroupNorm (dpvd.fix does), or put it in eval mode with statistics"
                " from public data"
            ),
        )
    return None


def _running_statistics(module: nn.Module) -> Complaint | None:
    if isinstance(module, _InstanceNorm) and module.training and module.track_running_stats:
        return (
            "keeps running statistics: they are a release of the data without noise",
            "Set track_running_stats=False (dpvd.fix does)",
        )
    return None


def _observes(module: nn.Module) -> Complaint | None:
    reason = (
        "observes the range of what passes through it: that leaves with the model without noise"
    )
    if isinstance(module, FakeQuantizeBase) and bool(module.observer_enabled.any()):
        return (
            reason,
            (
                "Switch the observer off (module.disable_observer()) after setting ranges from"
                " public data, or quantise after training"
            ),
        )
    if isinstance(module, ObserverBase):
        return reason, "Put nn.Identity() in its place, and quantise after training"
    return None


def _rewrites_rows(module: nn.Module) -> Complaint | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return (
            (
                "rescales in place the rows that a batch looks up (max_norm): which rows changed"
                " shows, without noise, what the batch held"
            ),
            "Set max_norm=None and bound the embeddings where they are used",
        )
    return None


def _counts_in_batch(module: nn.Module) -> Complaint | None:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.scale_grad_by_freq:
        return (
            (
                "divides gradients by counts over the batch (scale_grad_by_freq): an example"
                " changes those of others"
            ),
            "Set scale_grad_by_freq=False",
        )
    return None


def _sparse_gradients(module: nn.Module) -> Complaint | None:
    if (
        isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.sparse
        and module.weight.requires_grad
    ):
        return (
            (
                "asks for sparse gradients: noise on the looked-up rows alone would show which"
                " they are"
            ),
            "Set sparse=False",
        )
    return None


def _overlapping(module: nn.Module) -> Complaint | None:
    own = module.parameters(recurse=False)
    trainable = [p for p in own if p.requires_grad and not is_lazy(p)]
    if any(_has_shared_entries(parameter) for parameter in trainable):
        return (
            (
                "trains a parameter whose entries share memory (expand): no noise can be added to"
                " them one by one"
            ),
            "Give it memory of its own: nn.Parameter(values.clone())",
        )
    return None


def _has_shared_entries(parameter: nn.Parameter) -> bool:
    """Whether steps along a dimension stay at one address."""
    for stride, size in zip(parameter.stride(), parameter.shape, strict=True):
        if stride == 0 and size > 1:
            return True
    return False


def _lazy(module: nn.Module) -> Complaint | None:
    if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
        return (
            "has parameters without a shape yet: what is to be clipped is not known",
            "Call the model once on an input of the right shape (zeros will do) before training",
        )
    return None


def _coarse_numbers(module: nn.Module) -> Complaint | None:
    trainable = (p for p in module.parameters(recurse=False) if p.requires_grad)
    dtypes = sorted(
        {str(p.dtype) for p in trainable if p.dtype not in (torch.float32, torch.float64)}
    )
    if dtypes:
        return (
            (
                f"trains parameters of type {', '.join(dtypes)}: the norms, sums and noise of the"
                " guarantee need float32 or float64"
            ),
            (
                "Use model.float(), with torch.autocast in the loss, around the forward pass, if it"
                " has to be faster"
            ),
        )
    return None


_DETECTORS: tuple[Callable[[nn.Module], Complaint | None], ...] = (
    _batch_statistics,
    _running_statistics,
    _observes,
    _rewrites_rows,
    _counts_in_batch,
    _sparse_gradients,
    _lazy,
    _overlapping,
    _coarse_numbers,
)


# Repair

# Wu and He (arXiv:1803.08494v3) find 32 groups best. A group needs several channels: batch norm is
# also used on flat features, where a group of one channel would be normalised to zero.
MOST_GROUPS = 32
FEWEST_CHANNELS = 8


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
    """Return a copy of the model with group norm for batch norm, and no running statistics.

    The model itself is untouched.

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
        is_lazy_norm = isinstance(module, _BatchNorm) and module.num_features == 0
        if is_lazy_norm:  # not known before the first call
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
        # named_children() would skip the repeats of a child.
        for name, child in parent._modules.items():
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
    groups = 1
    for candidate in range(1, MOST_GROUPS + 1):
        is_divisor = channels % candidate == 0
        if is_divisor and channels // candidate >= FEWEST_CHANNELS:
            groups = candidate
    group_norm = nn.GroupNorm(groups, channels, norm.eps, affine=False)
    if norm.affine:
        group_norm.affine = True
        group_norm.weight = norm.weight
        group_norm.bias = norm.bias
    return group_norm.train(norm.training)
