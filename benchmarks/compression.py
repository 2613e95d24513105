"""How far sparse variational dropout compresses the LeNets on MNIST, without privacy (Molchanov et al., 2017).

    python -m benchmarks.compression lenet-300-100 --seed 0
    python -m benchmarks.compression lenet-5 --seed 0
    python -m benchmarks.compression lenet-300-100 --seed 0 --random-labels

A dense network is trained for a short time, made variational, and trained on with the KL term, whose weight is raised
from 0 to 1. Now and then, and at the end, weights with log α of at least 3 are pruned and the units they leave without
use removed, so that the remaining epochs cost less. Compression is weights at first / weights left, without biases.

Of the 60,000 training images 55,000 are trained on; the error on the other 5,000 is shown after every epoch, and by it
the protocols below were chosen, with ``--tune``, which leaves the test images alone. Otherwise they are read once, at
the end.

With ``--log`` every epoch is written to a file, and a run that was stopped goes on from its last epoch.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor, nn

import dpvd.nn as dn
from dpvd.data import load_mnist

HELD_OUT = 5_000


@dataclass(frozen=True)
class Protocol:
    """How a network is trained: Adam, both learning rates falling linearly to 0 over the sparse epochs.

    Attributes:
        dense_epochs: how long the ordinary network is trained first.
        sparse_epochs: how long the variational one is.
        rising_epochs: how long the weight of the KL term rises, linearly, from 0 to 1.
        shrink_after: the numbers of sparse epochs after which the network is pruned and shrunk.
        batch_size: examples in a step.
        learning_rate, noise_learning_rate: at the start, of means and biases, and of log σ².
        log_sigma2: log σ² at the start, and of what is left after shrinking.
    """

    dense_epochs: int
    sparse_epochs: int
    rising_epochs: float
    shrink_after: tuple[int, ...]
    batch_size: int = 100
    learning_rate: float = 1e-3
    noise_learning_rate: float = 5e-2
    log_sigma2: float = -8.0


@dataclass(frozen=True)
class Images:
    """Images [n, 1, 28, 28] with values from 0 to 1, and their labels."""

    x: Tensor
    y: Tensor


@dataclass
class Run:
    """A run between two epochs: all that going on from here takes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    randomness: Tensor
    weights: int
    history: list[dict[str, Any]] = field(default_factory=list)


class Log:
    """A file that says what happened in every epoch, and beside it, while the run lasts, a checkpoint.

    Edge cases: without a path nothing is kept.

    Attributes:
        about: what the file says before the epochs: network, seed, protocol.
    """

    def __init__(self, path: Path | None, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    def last(self) -> Run | None:
        """The run as it was kept last, if it was stopped."""
        if self.path is None or not self._checkpoint.exists():
            return None
        run: Run = torch.load(self._checkpoint, weights_only=False)  # our own file
        return run

    def keep(self, run: Run) -> None:
        if self.path is not None:
            torch.save(run, self._checkpoint)
            self._write(run, None)

    def finish(self, run: Run, result: dict[str, Any]) -> None:
        if self.path is not None:
            self._write(run, result)
            self._checkpoint.unlink()

    @property
    def _checkpoint(self) -> Path:
        assert self.path is not None
        return self.path.with_suffix(".checkpoint")

    def _write(self, run: Run, result: dict[str, Any] | None) -> None:
        assert self.path is not None
        fields = {**self.about, "result": result}
        head = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
        epochs = ",\n  ".join(json.dumps(record) for record in run.history)  # a line for each
        self.path.write_text("{" + ",\n ".join([*head, f'"history": [\n  {epochs}\n ]']) + "}\n")


def lenet_300_100() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def lenet_5() -> nn.Sequential:
    """LeNet-5 as Caffe has it; ReLU after pooling is ReLU before it, at a quarter of the cost."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], Protocol]] = {
    "lenet-300-100": (lenet_300_100, Protocol(1, 20, 1.0, tuple(range(1, 16)), learning_rate=2e-3)),
    "lenet-5": (lenet_5, Protocol(1, 16, 0.5, tuple(range(1, 13)))),
}


def images(random_labels: bool, seed: int) -> tuple[Images, Images, Images]:
    """What to train on, what is held out, and what to test on."""
    mnist = load_mnist()
    labels = [mnist.train_y, mnist.test_y]
    if random_labels:
        generator = torch.Generator().manual_seed(seed)
        labels = [torch.randint(mnist.classes, y.shape, generator=generator) for y in labels]
    x, (y, test_y) = _scaled(mnist.train_x), labels
    held_out = Images(x[-HELD_OUT:], y[-HELD_OUT:])
    return Images(x[:-HELD_OUT], y[:-HELD_OUT]), held_out, Images(_scaled(mnist.test_x), test_y)


def _scaled(x: Tensor) -> Tensor:
    # The layout is what makes convolutions fast.
    return x.float().div(255).unsqueeze(1).contiguous(memory_format=torch.channels_last)


def train_dense(make: Callable[[], nn.Sequential], protocol: Protocol, data: Images, seed: int) -> Run:
    """Train the ordinary network, and make it variational."""
    torch.manual_seed(seed)  # torch's layers take their first weights from the global generator
    model: nn.Module = make().to(memory_format=torch.channels_last)
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), protocol.learning_rate, fused=True)
    for _ in range(protocol.dense_epochs):
        for rows in torch.randperm(len(data.x), generator=generator).split(protocol.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
    model = dn.variational(model, log_sigma2=protocol.log_sigma2)
    return Run(model, optimizer_for(model), generator.get_state(), weights)


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """Adam with two groups of parameters: means and biases; log σ²."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        groups[name.endswith("log_sigma2")].append(parameter)
    return torch.optim.Adam([{"params": group} for group in groups], fused=True)


def train_sparse(run: Run, protocol: Protocol, data: Images) -> dict[str, Any]:
    """One epoch of the variational network, and what is to be said of it."""
    generator = torch.Generator()
    generator.set_state(run.randomness)
    batches = torch.randperm(len(data.x), generator=generator).split(protocol.batch_size)
    total, started = torch.zeros(()), time.process_time()
    run.model.train()
    for number, rows in enumerate(batches):
        epochs = len(run.history) + number / len(batches)
        rates = (protocol.learning_rate, protocol.noise_learning_rate)
        for group, rate in zip(run.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - epochs / protocol.sparse_epochs)
        kl_weight = min(1.0, epochs / protocol.rising_epochs)
        with dn.noise_from(generator):
            loss = nn.functional.cross_entropy(run.model(data.x[rows]), data.y[rows])
        run.optimizer.zero_grad()
        (loss + kl_weight * dn.kl(run.model) / len(data.x)).backward()
        run.optimizer.step()
        total += loss.detach() / len(batches)
    run.randomness = generator.get_state()
    cpu = round(time.process_time() - started, 1)
    return {"kl_weight": round(kl_weight, 3), "loss": round(total.item(), 5), "cpu": cpu}


def pruned(run: Run, held_out: Images) -> dict[str, Any]:
    """What there would be to say if the model were pruned now."""
    model = copy.deepcopy(run.model)
    dn.prune(model)
    left = non_zero(model)
    return {
        "compression": round(run.weights / max(sum(left), 1), 1),
        "non_zero": left,
        "error": round(error(model, held_out), 4),
        "units": [layer.before for layer in dn.compress(model)[1].layers],
    }


def shrink(run: Run, protocol: Protocol) -> None:
    """Prune, take what has no use out, and go on with what is left; what is pruned stays so."""
    dn.prune(run.model)
    smaller, _ = dn.compress(run.model)
    smaller.to(memory_format=torch.channels_last)
    run.model = dn.variational(smaller, log_sigma2=protocol.log_sigma2)
    dn.prune(run.model)  # marks the zeros
    run.optimizer = optimizer_for(run.model)


def non_zero(model: nn.Module) -> list[int]:
    """How many weights of each layer pruning now would leave."""
    return [layer.weights - layer.pruned for layer in dn.sparsity(model).layers]


@torch.no_grad()
def error(model: nn.Module, data: Images) -> float:
    """The fraction of wrong predictions, by the means."""
    model.eval()
    batches = zip(data.x.split(1000), data.y.split(1000), strict=True)
    return sum(int((model(x).argmax(1) != y).sum()) for x, y in batches) / len(data.y)


def results(run: Run, data: Images) -> dict[str, Any]:
    """The figures of a finished run; the model is pruned."""
    before = error(run.model, data)
    dn.prune(run.model)
    smaller, report = dn.compress(run.model)
    left = non_zero(run.model)
    return {
        "error_before": before,
        "error_after": error(run.model, data),
        "error_shrunk": error(smaller, data),
        "compression": run.weights / sum(left) if sum(left) else float("inf"),
        "non_zero": left,
        "layers": [layer.after for layer in report.layers],
        "sparse_bytes": dn.sparse_state(smaller).bytes,
    }


def summary(result: dict[str, Any]) -> str:
    layers = ", ".join(f"{count:,}" for count in result["non_zero"])
    sizes = ", ".join(f"{inputs}→{outputs}" for inputs, outputs in result["layers"])
    return (
        f"shrunk to {sizes}: error {result['error_shrunk']:.2%}, {result['sparse_bytes']:,} bytes as a sparse state\n"
        f"error before pruning {result['error_before']:.2%}, after pruning {result['error_after']:.2%}, "
        f"compression {result['compression']:.1f}x, non-zero weights per layer {layers}"
    )


def train(
    make: Callable[[], nn.Sequential], protocol: Protocol, data: Images, held_out: Images, seed: int, log: Log
) -> Run:
    """Run the protocol, or what is left of it after a stop."""
    with Progress() as progress:
        task = progress.add_task(f"seed {seed}", total=protocol.sparse_epochs)
        run = log.last() or train_dense(make, protocol, data, seed)
        while len(run.history) < protocol.sparse_epochs:
            if len(run.history) in protocol.shrink_after:
                shrink(run, protocol)
            epoch = train_sparse(run, protocol, data)
            run.history.append({"epoch": len(run.history) + 1, **epoch, **pruned(run, held_out)})
            progress.update(task, completed=len(run.history))
            progress.console.print(describe(run.history[-1]))
            log.keep(run)
    return run


def describe(epoch: dict[str, Any]) -> str:
    sizes = ", ".join(f"{inputs}→{outputs}" for inputs, outputs in epoch["units"])
    return (
        f"epoch {epoch['epoch']}: loss {epoch['loss']:.4f}, if pruned now: held-out error {epoch['error']:.2%}, "
        f"compression {epoch['compression']:.1f}x; layers {sizes}, {epoch['cpu']:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random-labels", action="store_true", help="replace all labels by random ones")
    parser.add_argument("--tune", action="store_true", help="measure on held-out images, not on the test images")
    parser.add_argument("--log", type=Path, help="write every epoch here, and go on from here after a stop")
    options = parser.parse_args()
    make, protocol = NETWORKS[options.network]
    data, held_out, test = images(options.random_labels, options.seed)
    about = {name: getattr(options, name) for name in ("network", "seed", "random_labels", "tune")}
    log = Log(options.log, {**about, "protocol": asdict(protocol)})
    run = train(make, protocol, data, held_out, options.seed, log)
    result = results(run, held_out if options.tune else test)
    log.finish(run, result)
    print(summary(result))


if __name__ == "__main__":
    main()
