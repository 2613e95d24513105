"""Opacus' own tests of per-example gradients, with our engines in the place of its hooks.

A pytest plugin, loaded in Opacus' environment by ``benchmarks.opacus_tests``. The tests compute
reference gradients one example at a time and compare them with what a function of Opacus returns;
here that function asks our engines.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.grad_sample import embedding_norm_sample
from opacus.utils import per_sample_gradients_utils as opacus_utils
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dpvd.grads import ClippedGradients, Clipping, Engine, GradientClipper, Isolation, clipped_grad

# What stands for each of its ways: the engine that suits, each gradient alone, two at a time.
WAYS: dict[str, dict[str, Any]] = {
    "hooks": {},
    "functorch": {"isolation": Isolation.VMAP},
    "ew": {"micro_batch": 2},
}
UNCLIPPED = Clipping("none")

asked: Counter[str] = Counter()  # batches by the engine that took them

Loss = Callable[..., Tensor]


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported: they take the functions by name."""
    opacus_utils.compute_opacus_grad_sample = our_grad_samples
    embedding_norm_sample.compute_embedding_norm_sample = our_embedding_norms


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = ", ".join(f"{engine} {count}" for engine, count in sorted(asked.items()))
    terminalreporter.write_line(f"batches by engine: {counts}")


def our_grad_samples(
    x: Any,
    module: nn.Module,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    grad_sample_mode: str = "hooks",
) -> dict[str, Tensor]:
    """The gradient of each example's loss, [B, *shape], by the parameter's name."""
    torch.manual_seed(0)
    model = opacus_utils.clone_module(module)
    batch, loss_fn = _as_ours(x, batch_first, loss_reduction)
    clipper = GradientClipper(
        model,
        loss_fn,
        clipping=UNCLIPPED,
        **WAYS[grad_sample_mode],
    )
    found: dict[str, list[Tensor]] = {name: [] for name in clipper.current_grouping().parameters}
    for part in clipper(batch):
        for name, samples in _materialised(part).items():
            found[name].append(samples)
    for engine, count in clipper._engines._used.items():
        asked[str(engine)] += count
    return {name: torch.cat(parts) for name, parts in found.items()}


def our_embedding_norms(
    layer: nn.Embedding, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """The norms of an embedding's per-example gradients, given those of its outputs."""

    def loss_fn(model: nn.Module, ids: Tensor, arriving: Tensor) -> Tensor:
        return (model(ids) * arriving).flatten(1).sum(1)

    batch = (activations[0], backprops)
    found = clipped_grad(layer, loss_fn, batch, clipping=UNCLIPPED, engine=Engine.FACTORED)
    asked[str(Engine.FACTORED)] += 1
    return {layer.weight: found.norms[:, 0]}


def _materialised(part: ClippedGradients) -> dict[str, Tensor]:
    """Each example's gradient: the weighted sum with a weight of one for it and zero for others."""
    count = len(part.losses)
    parameters = part.grouping.parameters
    found = {name: p.new_zeros(count, *p.shape) for name, p in parameters.items()}
    for i in range(count):
        part.factors.zero_()
        part.factors[i] = 1.0
        part.add_to({name: samples[i] for name, samples in found.items()})
    return found


def _as_ours(x: Any, batch_first: bool, reduction: str) -> tuple[Any, Loss]:
    """A batch with the examples along the first dimension, and the loss of each.

    The loss is theirs: the absolute outputs of an example, added up or averaged over itself.
    """
    if isinstance(x, PackedSequence):
        return _packed(x, reduction)
    if isinstance(x, tuple):
        return _bags(x, reduction)

    def loss_fn(model: nn.Module, inputs: Tensor) -> Tensor:
        out = model(inputs if batch_first else inputs.transpose(0, 1))
        rows = out if batch_first else out.transpose(0, 1)
        return _reduced(rows, reduction)

    return (x if batch_first else x.transpose(0, 1)), loss_fn


def _reduced(rows: Tensor, reduction: str) -> Tensor:
    absolute = rows.abs().flatten(1)
    return absolute.sum(1) if reduction == "sum" else absolute.mean(1)


def _packed(x: PackedSequence, reduction: str) -> tuple[Any, Loss]:
    """Padded sequences and their lengths, packed inside the loss.

    In the order in which the tests take the sequences: that of the packed data.
    """
    sequences = opacus_utils.unpack_packedsequences(x)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)

    def loss_fn(model: nn.Module, inputs: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(model(packed), batch_first=True)  # zeros where it is padded
        sums = out.abs().flatten(1).sum(1)
        return sums if reduction == "sum" else sums / (lengths * out.shape[2])

    return (padded, lengths), loss_fn


def _bags(x: tuple[Tensor, Tensor], reduction: str) -> tuple[Any, Loss]:
    """Bags of different sizes as padded rows and their lengths, flattened inside the loss."""
    values, offsets = x
    bags = torch.tensor_split(values, offsets[1:])
    lengths = torch.tensor([len(bag) for bag in bags])
    padded = nn.utils.rnn.pad_sequence(list(bags), batch_first=True)

    def loss_fn(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
        is_there = torch.arange(rows.shape[1]) < lengths[:, None]
        counts = is_there.sum(1)  # not the lengths: trials may give some that are too long
        starts = counts.cumsum(0) - counts
        return _reduced(model(rows[is_there], starts), reduction)

    return (padded, lengths), loss_fn
