"""Sparse variational dropout without privacy: train a dense network, make it variational, train on
and shrink.
"""

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from examples.compression.lenets import Images, SparseTraining
from examples.compression.log import Log, Run
from rich.progress import Progress
from torch import nn

import dpvd.nn as dn


def train(
    make: Callable[[], nn.Sequential],
    protocol: SparseTraining,
    data: Images,
    held_out: Images | None,
    seed: int,
    log: Log,
) -> Run:
    """Run the protocol, or what is left of it after a stop.

    Every epoch shows the error on held-out images, if there are any.
    """
    with Progress() as progress:
        task = progress.add_task(f"seed {seed}", total=protocol.sparse_epochs)
        run = log.last() or train_dense(make, protocol, data, seed)
        while len(run.history) < protocol.sparse_epochs:
            epoch = train_sparse(run, protocol, data)
            run.history.append({"epoch": len(run.history) + 1, **epoch, **pruned(run, held_out)})
            progress.update(task, completed=len(run.history))
            progress.console.print(describe(run.history[-1]))
            log.keep(run)
    return run


def train_dense(
    make: Callable[[], nn.Sequential], protocol: SparseTraining, data: Images, seed: int
) -> Run:
    """Train the ordinary network, and make it variational."""
    torch.manual_seed(seed)  # torch's layers take their first weights from the global generator
    model: nn.Module = make().to(memory_format=torch.channels_last)
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), protocol.dense_learning_rate, fused=True)
    for _ in range(protocol.dense_epochs):
        for rows in torch.randperm(len(data.x), generator=generator).split(protocol.batch_size):
            x, y = data.some(rows, protocol.shift, generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    model = dn.variational(model, log_sigma2=protocol.log_sigma2)
    return Run(model, optimizer_for(model), generator.get_state(), weights)


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """Adam with two groups of parameters: means and biases; log σ²."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        groups[name.endswith("log_sigma2")].append(parameter)
    return torch.optim.Adam([{"params": group} for group in groups], fused=True)


def train_sparse(run: Run, protocol: SparseTraining, data: Images) -> dict[str, Any]:
    """One epoch of the variational network, shrunk on the way, and what is to be said of it."""
    generator = torch.Generator()
    generator.set_state(run.randomness)
    batches = torch.randperm(len(data.x), generator=generator).split(protocol.batch_size)
    part = round(len(batches) / protocol.shrinks_per_epoch)  # steps from one shrinking to the next
    total = torch.zeros(())
    started = time.process_time()
    run.model.train()
    for number, rows in enumerate(batches, start=1):
        epochs = len(run.history) + (number - 1) / len(batches)
        rates = (protocol.learning_rate, protocol.noise_learning_rate)
        for group, rate in zip(run.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - epochs / protocol.sparse_epochs)
        kl_weight = min(1.0, epochs / protocol.rising_epochs)
        x, y = data.some(rows, protocol.shift, generator)
        with dn.noise_from(generator):
            loss = nn.functional.cross_entropy(run.model(x), y)
        run.optimizer.zero_grad()
        (loss + kl_weight * dn.kl(run.model) / len(data.x)).backward()
        run.optimizer.step()
        total += loss.detach() / len(batches)
        if (len(run.history) * len(batches) + number) % part == 0:
            shrink(run, protocol)
            run.model.train()
    run.randomness = generator.get_state()
    cpu = round(time.process_time() - started, 1)
    return {"kl_weight": round(kl_weight, 3), "loss": round(total.item(), 5), "cpu": cpu}


def shrink(run: Run, protocol: SparseTraining) -> None:
    """Prune, take what has no use out, and go on with what is left, unless the time for that is
    over.

    What is pruned stays so. The noise of what is left starts anew: small, so that the KL term pulls
    the next weights to 0.
    """
    if len(run.history) >= protocol.shrinking_epochs or not run.shrinking:
        return
    dn.prune(run.model)
    smaller, _ = dn.compress(run.model)
    smaller.to(memory_format=torch.channels_last)
    run.model = dn.variational(smaller, log_sigma2=protocol.log_sigma2)
    dn.prune(run.model)  # marks the zeros
    run.optimizer = optimizer_for(run.model)
    run.shrinking = run.weights < protocol.enough * sum(non_zero(run.model))


def pruned(run: Run, held_out: Images | None) -> dict[str, Any]:
    """What there would be to say if the model were pruned now."""
    model = copy.deepcopy(run.model)
    dn.prune(model)
    left = non_zero(model)
    return {
        "compression": round(run.weights / max(sum(left), 1), 1),
        "non_zero": left,
        "error": None if held_out is None else round(error(model, held_out), 4),
        "units": [layer.before for layer in dn.compress(model)[1].layers],
    }


def non_zero(model: nn.Module) -> list[int]:
    """How many weights of each layer pruning now would leave."""
    return [layer.weights - layer.pruned for layer in dn.sparsity(model).layers]


@torch.no_grad()
def error(model: nn.Module, data: Images) -> float:
    """The fraction of wrong predictions, by the means."""
    model.eval()
    batches = zip(data.x.split(1000), data.y.split(1000), strict=True)
    return sum(int((model(x).argmax(1) != y).sum()) for x, y in batches) / len(data.y)


def describe(epoch: dict[str, Any]) -> str:
    sizes = ", ".join(f"{inputs}→{outputs}" for inputs, outputs in epoch["units"])
    error = "" if epoch["error"] is None else f"held-out error {epoch['error']:.2%}, "
    return (
        f"epoch {epoch['epoch']}: loss {epoch['loss']:.4f}, if pruned now: {error}"
        f"compression {epoch['compression']:.1f}x; layers {sizes}, {epoch['cpu']:.0f} s"
    )


def results(run: Run, data: Images) -> dict[str, Any]:
    """Prune the model and measure it. Compression is None if no weight is left."""
    before = error(run.model, data)
    dn.prune(run.model)
    smaller, report = dn.compress(run.model)
    left = non_zero(run.model)
    return {
        "error_before": before,
        "error_after": error(run.model, data),
        "error_shrunk": error(smaller, data),
        "compression": run.weights / sum(left) if sum(left) else None,
        "non_zero": left,
        "layers": [layer.after for layer in report.layers],
        "sparse_bytes": dn.sparse_state(smaller).bytes,
    }


def summary(result: dict[str, Any]) -> str:
    layers = ", ".join(f"{count:,}" for count in result["non_zero"])
    sizes = ", ".join(f"{inputs}→{outputs}" for inputs, outputs in result["layers"])
    compression = (
        "no weight left"
        if result["compression"] is None
        else f"compression {result['compression']:.1f}x"
    )
    return (
        f"shrunk to {sizes}: error {result['error_shrunk']:.2%}, {result['sparse_bytes']:,} bytes"
        f" as a sparse state\nerror before pruning {result['error_before']:.2%}, after pruning"
        f" {result['error_after']:.2%}, {compression}, non-zero weights per layer {layers}"
    )
