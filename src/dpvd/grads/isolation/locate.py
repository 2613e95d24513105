"""In which module examples reach each other: looked for once a check has failed, not before."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.grads.batch import Batch, batch_size
from dpvd.grads.factored.layout import split_batch
from dpvd.grads.isolation.compare import within
from dpvd.grads.isolation.runs import Runner, Subject
from dpvd.grads.isolation.snapshot import Snapshot
from dpvd.grads.isolation.watch import modules_of
from dpvd.tree import leaves_of

__all__ = ["SOMEWHERE", "Scene", "locate"]

SOMEWHERE = "something in the model or the loss"
IN_THE_LOSS = "the loss"
ROUNDING = 16  # units by which runs of equal shapes may differ
RESHAPED = 1e-4  # what products of other sizes may round, relative to the largest entry
WHOLE = -1  # in the place of a dimension: the tensor as it is


@dataclass(frozen=True)
class Scene:
    """A run that is to be compared with another one.

    Attributes:
        batch: what it is made on.
        rows: positions of the examples that ought to notice nothing.
        after: the state it begins with; None for that of the trial.
        quietly: whether every example gets the same draws.
    """

    batch: Batch
    rows: Tensor
    after: Snapshot | None = None
    quietly: bool = True


def locate(runner: Runner, one: Scene, other: Scene) -> str:
    """What makes some examples of one run differ from the same ones of another.

    It is the first module that returns something else for what it was given before. If all modules
    that do were given something else, too, it happened between them, in the loss.

    Returns: words for the module, for the loss, or for both if it cannot be told.
    """
    try:
        expected, calls = _observed(runner, one)
        found, others = _observed(runner, other)
    except Exception:  # what failed is said anyway; here is only asked where
        return SOMEWHERE
    is_reshaped = batch_size(one.batch) != batch_size(other.batch) or not all(
        a.shape == b.shape for a, b in zip(one.batch.tensors, other.batch.tensors, strict=True)
    )
    is_clear = not _same([{WHOLE: found}], [{WHOLE: expected}], is_reshaped)
    for call, before in zip_longest(others, calls):
        if call is None or before is None or call.name != before.name:
            return SOMEWHERE
        given = _same(call.given, before.given, is_reshaped)
        returned = _same(call.returned, before.returned, is_reshaped)
        if given and returned is False:
            return call.name
        is_clear = is_clear and given is not None and returned is not None
    return IN_THE_LOSS if is_clear else SOMEWHERE


Views = dict[int, Tensor]
"""What a tensor holds of some examples, for each dimension in which the batch may be, and WHOLE if
it may be in none.
"""


@dataclass(frozen=True)
class _Call:
    """A call of a module, in the order in which calls end: those inside it come first."""

    name: str
    given: list[Views]
    returned: list[Views]


def _observed(runner: Runner, scene: Scene) -> tuple[Tensor, list[_Call]]:
    """A run: the losses of the scene's rows, and the calls of modules."""
    with _noted_calls(runner.subject, scene) as calls:
        run = runner.run(scene.batch, quietly=scene.quietly, norms=False, after=scene.after)
    return run.losses[scene.rows.to(run.losses.device)], calls


@contextmanager
def _noted_calls(subject: Subject, scene: Scene) -> Iterator[list[_Call]]:
    """Note what goes into every module, and what comes out, as long as the block lasts."""
    calls: list[_Call] = []
    waiting: list[list[Views]] = []  # what went into the calls that have not returned

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        waiting.append(_views((args, kwargs), scene))

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given = waiting.pop()
        calls.append(_Call(name, given, _views(output, scene)))

    with ExitStack() as stack:
        for module, name in _names(subject).items():
            entered = module.register_forward_pre_hook(before, with_kwargs=True)
            left = module.register_forward_hook(partial(after, name), with_kwargs=True)
            stack.callback(entered.remove)
            stack.callback(left.remove)
        yield calls


def _names(subject: Subject) -> dict[nn.Module, str]:
    """Words for each module of the model, and of those that the loss holds."""
    found: dict[nn.Module, str] = {}
    for root, top in (("", subject.model), *modules_of(subject.loss_fn)):
        for name, module in top.named_modules(prefix=root):
            words = f"module {name!r}" if name else "the model itself"
            found.setdefault(module, f"{words} ({type(module).__name__})")
    return found


def _views(values: Any, scene: Scene) -> list[Views]:
    """Copies: what comes later may write over them."""
    count = batch_size(scene.batch)
    return [
        _views_of(value.detach(), count, scene.rows)
        for _, value in leaves_of(values)
        if isinstance(value, Tensor)
    ]


def _views_of(tensor: Tensor, count: int, rows: Tensor) -> Views:
    found = {}
    chosen = rows.to(tensor.device)
    for dim, size in enumerate(tensor.shape):
        if size and size % count == 0:
            found[dim] = split_batch(tensor, dim, count).index_select(dim, chosen)
    if 0 not in found:
        found[WHOLE] = tensor.clone()
    return found


def _same(ours: list[Views], truth: list[Views], is_reshaped: bool) -> bool | None:
    """Whether all tensors are the same for these rows; None if that cannot be told."""
    if len(ours) != len(truth):
        return None
    answers = [_same_views(a, b, is_reshaped) for a, b in zip(ours, truth, strict=True)]
    if False in answers:
        return False
    return None if None in answers else True


def _same_views(ours: Views, truth: Views, is_reshaped: bool) -> bool | None:
    """In one dimension is enough: along another, the rows of other examples are compared, too."""
    dims = [dim for dim in ours if dim in truth and ours[dim].dim() == truth[dim].dim()]
    if not dims:
        return None
    return any(_agree(ours[dim], truth[dim], is_reshaped) for dim in dims)


def _agree(ours: Tensor, truth: Tensor, is_reshaped: bool) -> bool:
    """Up to rounding, and for sequences of other lengths where both have entries."""
    eps = torch.finfo(truth.dtype).eps if truth.is_floating_point() else 0.0
    relative = max(RESHAPED, ROUNDING * eps) if is_reshaped else ROUNDING * eps
    least = [min(sizes) for sizes in zip(ours.shape, truth.shape, strict=True)]
    for at_end in (False, True):
        mine = _wide(_corner(ours, least, at_end))
        theirs = _wide(_corner(truth, least, at_end))
        finite = theirs[torch.isfinite(theirs)].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        if within(mine, theirs, relative * scale):
            return True
    return False


def _corner(tensor: Tensor, sizes: list[int], at_end: bool) -> Tensor:
    """This much of each dimension, from its beginning or its end."""
    for dim, size in enumerate(sizes):
        first = tensor.shape[dim] - size if at_end else 0
        tensor = tensor.narrow(dim, first, size)
    return tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() else tensor.double()
