"""What private training makes of a model: what it cannot take, and how the rest is treated."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from dpvd.errors import DpvdError
from dpvd.grads.batch import LossFn, as_batch, batch_size
from dpvd.grads.clipper import GradientClipper
from dpvd.grads.clipping import Clipping, ClippingMode, Unit
from dpvd.grads.engines import Engine
from dpvd.grads.factored import ModelLayout
from dpvd.grads.validate import Problem, find_problems

__all__ = ["Checkup", "ModuleReport", "check"]

BY_RULE = "rule"
FOLLOWED = "followed to the batch"
WAYS = {
    Engine.VMAP: "torch.func, the whole model",
    Engine.LOOP: "one backward pass for each example",
}


@dataclass(frozen=True)
class ModuleReport:
    """How the gradients of some modules are formed.

    Attributes:
        module: name of the module; a star stands for a number where several are alike.
        kind: its class.
        count: how many modules this is.
        engine: how per-example gradients of its parameters are formed.
        share: of the trainable parameters, between 0 and 1.
        megabytes: what is kept of a batch of this size for norms and sums.
    """

    module: str
    kind: str
    count: int
    engine: str
    share: float
    megabytes: float


class Checkup(list[Problem]):
    """The problems of a model, and with an example batch how each module is treated.

    Printed as one table.

    Attributes:
        modules: a report for each kind of module; empty without a batch, or with problems.
        reasons: why a faster engine was passed over.
    """

    def __init__(
        self,
        problems: list[Problem],
        modules: tuple[ModuleReport, ...] = (),
        reasons: tuple[str, ...] = (),
    ) -> None:
        super().__init__(problems)
        self.modules = modules
        self.reasons = reasons

    def __str__(self) -> str:
        if self:
            return "\n".join(map(str, self))
        if not self.modules:
            return "nothing to refuse"
        header = ("module", "class", "gradients by", "parameters", "memory")
        table = [header, *(_cells(report) for report in self.modules)]
        widths = [max(len(row[column]) for row in table) for column in range(len(header))]
        lines = []
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.reasons])


def _cells(report: ModuleReport) -> tuple[str, ...]:
    name = report.module or "(the model itself)"
    if report.count > 1:
        name += f" ({report.count})"
    share = f"{report.share:.1%}"
    return name, report.kind, report.engine, share, f"{report.megabytes:.1f} MB"


def check(model: nn.Module, example_batch: Any = None, loss_fn: LossFn | None = None) -> Checkup:
    """What private training cannot take of a model; with a batch, how it treats the rest.

    Guarantees: ``clipped_grad`` refuses every model for which this lists something, in these words.
    Without a batch the model is not run. With one, parameters, buffers and random streams are as
    before.

    Edge cases: that a custom module mixes examples, or keeps something of them, cannot be seen by
    looking at it; with a batch it is tried out, and refused by an error.

    Args:
        model: the model, in the mode in which it will be trained.
        example_batch: a batch as a step takes it, of two rows or more; made-up values will do.
        loss_fn: ``loss_fn(model, *example_batch)``. Without it the model is called with the first
            tensor, or with the dictionary as keywords, and all that it returns counts.

    Returns:
        The problems in the order of the modules, none if there are none. It prints as a table.

    Raises:
        DpvdError: if the model or the loss mixes examples.

    >>> for problem in check(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))):
    ...     print(problem.module, problem.kind)
    1 BatchNorm1d
    >>> import torch
    >>> print(check(nn.Sequential(nn.Linear(4, 2)), torch.zeros(3, 4)))
    module  class   gradients by  parameters  memory
    *       Linear  rule          100.0%      0.0 MB
    """
    problems = find_problems(model)
    if problems or example_batch is None:
        return Checkup(problems)
    clipper = GradientClipper(model, loss_fn or _all_outputs, clipping=Clipping(ClippingMode.NONE))
    grouping = clipper.current_grouping()
    count = 0
    sizes: Sizes = {}
    for found in clipper(example_batch, grouping=grouping):
        count += len(found.losses)
        sizes = sizes or _sizes(found.gradients)  # of the first slice: none is larger
        del found  # free its memory before the next one is made
    if count < 2:
        raise DpvdError("an example batch needs two rows or more: one shows nothing of the others")
    layout: ModelLayout = grouping.layout
    reports = []
    for unit in layout.units:
        names = [grouping.names[id(parameter)] for parameter in unit.parameters.values()]
        reports.append(_report(unit, names, clipper.engine))
    reasons = [f"not {engine}: {why}" for engine, why in clipper.passed_over.items()]
    return Checkup([], _folded(reports, grouping.parameters, sizes), tuple(reasons))


def _all_outputs(model: nn.Module, *batch: Any) -> Tensor:
    """A loss for a model of which nothing is known: all that it returns counts."""
    first, *_ = batch
    if isinstance(first, Mapping):
        return _total(model(**first), batch_size(as_batch(first)))
    return _total(model(first), len(first))


def _total(output: Any, count: int) -> Tensor:
    """[B]: the squares of everything that a model returned with one row for each example."""
    if isinstance(output, Mapping):
        output = list(output.values())
    values, _ = tree_flatten(output)
    total: Any = 0.0
    for value in values:
        if isinstance(value, Tensor) and value.requires_grad and len(value) == count:
            total = total + value.flatten(1).square().sum(1)
    if not isinstance(total, Tensor):
        raise DpvdError(
            "the model returned nothing with one row for each example: give check the loss,"
            " check(model, batch, loss_fn)"
        )
    return total


Sizes = dict[str, int]
"""By parameter, the bytes that are kept for its gradients."""


def _sizes(gradients: Mapping[str, Any]) -> Sizes:
    counted: set[int] = set()
    return {name: _bytes(gradient, counted) for name, gradient in gradients.items()}


def _bytes(value: Any, counted: set[int]) -> int:
    """Of all tensors in here, each memory once."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() in counted:
            return 0
        counted.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, list | tuple):
        return sum(_bytes(part, counted) for part in value)
    if isinstance(value, dict):
        return sum(_bytes(part, counted) for part in value.values())
    if is_dataclass(value):
        return sum(_bytes(getattr(value, part.name), counted) for part in fields(value))
    return 0


_Row = tuple[str, str, str, list[str]]


def _report(unit: Unit, names: list[str], engine: Engine) -> _Row:
    way = WAYS.get(engine, BY_RULE if unit.rule is not None else FOLLOWED)
    module = re.sub(r"(?<![^.])\d+(?![^.])", "*", unit.name)
    return module, type(unit.module).__name__, way, names


def _folded(
    rows: list[_Row], parameters: Mapping[str, nn.Parameter], sizes: Sizes
) -> tuple[ModuleReport, ...]:
    """One report for all modules whose names differ in numbers only."""
    total = sum(parameter.numel() for parameter in parameters.values())
    seen: set[str] = set()
    folded: dict[tuple[str, str, str], list[float]] = {}
    for module, kind, way, names in rows:
        own = [name for name in names if name not in seen]  # a tied one belongs to the first
        seen.update(own)
        entries = sum(parameters[name].numel() for name in own)
        size = sum(sizes.get(name, 0) for name in own)
        sums = folded.setdefault((module, kind, way), [0.0, 0.0, 0.0])
        for column, value in enumerate((1, entries / total, size / 1e6)):
            sums[column] += value
    return tuple(
        ModuleReport(module, kind, int(count), way, share, megabytes)
        for (module, kind, way), (count, share, megabytes) in folded.items()
    )
