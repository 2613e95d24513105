"""One process of a group: trains as its arguments say, and writes what came of it.

    torchrun --nproc-per-node 2 -m tests.distributed.worker OUT loop:sgd refused:untold

Each job is a function of this module and an argument, and has a folder of its own.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

import dpvd
from dpvd.grads import Clipping
from dpvd.privacy import Ledger
from dpvd.ranks import Ranks
from tests.docs.markdown import ROOT, blocks

EXAMPLES = 101  # so that the parts of two and three processes differ in size
FEATURES = 60
STEPS = 6


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator)
    y = torch.randint(0, 3, (EXAMPLES,), generator=generator)
    return x, y


def network() -> nn.Module:
    torch.manual_seed(3)
    # The first weight is a large chunk of noise of its own, the others are small ones.
    return nn.Sequential(nn.Linear(FEATURES, 300), nn.Tanh(), nn.Linear(300, 3))


def plan(**changes: Any) -> dpvd.PrivacyPlan:
    settings = {
        "examples": EXAMPLES,
        "batch_size": 20,
        "steps": STEPS,
        "clipping": Clipping("flat", clip_norm=0.5),
        "noise_multiplier": 0.8,
        "noise": "seeded",
        "seed": 7,
    }
    return dpvd.PrivacyPlan(**settings | changes)


def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def group() -> Any:
    """The group of the launcher; None where this process was started by itself."""
    if "RANK" not in os.environ:
        return None
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    return distributed.group.WORLD


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def optimizer_of(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.5)


def loop(out: Path, optimizer: str) -> None:
    """An own loop: weights, ε and sizes of the batches."""
    together = group()
    private = optimizer != "ordinary"
    planned = plan() if private else plan(noise_multiplier=0.0, clipping=Clipping("none"))
    model = network()
    moved_by = optimizer_of(model, optimizer)
    step = dpvd.PrivateStep(model, loss_fn, planned, moved_by, group=together)
    sizes = []
    for batch in planned.batches(data(), group=together):
        sizes.append(len(batch[0]))
        step(batch)
    epsilon = step.guarantee(1e-5).epsilon if private else 0.0
    save(out, model, {"sizes": sizes, "charged": step.charged, "epsilon": epsilon})


def save(out: Path, model: nn.Module, facts: dict[str, Any]) -> None:
    torch.save([p.detach() for p in model.parameters()], out / f"weights-{rank()}.pt")
    (out / f"facts-{rank()}.json").write_text(json.dumps(facts))


def tiny(out: Path, _: str) -> None:
    """Fewer examples than processes: some have none, and most batches are empty."""
    together = group()
    planned = plan(examples=3, batch_size=1, steps=12)
    model = network()
    step = dpvd.PrivateStep(model, loss_fn, planned, optimizer_of(model, "sgd"), group=together)
    sizes = []
    for batch in planned.batches(tuple(column[:3] for column in data()), group=together):
        sizes.append(len(batch[0]))
        step(batch)
    save(out, model, {"sizes": sizes, "charged": step.charged})


def fitted(out: Path, end: str) -> None:
    """`dpvd.fit` with a folder, which goes on where it has begun; see `_End`."""
    together = group()
    if (out / f"facts-{rank()}.json").exists():
        return  # it was another job that a restart is for
    model = network()
    folder = out / "run"
    resume = (folder / "ledger.jsonl").exists()
    ends = _End(end, out)

    try:
        result = dpvd.fit(
            model,
            data(),
            plan(steps=20),
            dpvd.Recipe(learning_rate=0.3, momentum=0.5),
            delta=1e-5,
            loss_fn=ends.loss_fn,
            evaluations=10,
            folder=folder,
            resume=resume,
            on_step=ends.on_step,
            group=together,
        )
    except KeyboardInterrupt:
        return
    guarantee = result.guarantee
    save(
        out,
        model,
        {"charged": guarantee.steps, "epsilon": guarantee.epsilon, "taken": result.steps},
    )


class _End:
    """Ends a training once: in the step after so many, in a process, at a place.

    Args:
        how: such as "13@last@step"; the rank is a number or "last". Places are "loss", "charged"
            (between charge and gather), "step" (behind it) and "stop", an ordinary end of all.
            Nothing ends for "never".
    """

    def __init__(self, how: str, out: Path) -> None:
        self._out = out
        self._after, self._place = -1, ""
        if how == "never" or (out / "ended").exists():
            return
        after, which, place = how.split("@")
        size = int(os.environ.get("WORLD_SIZE", "1"))
        chosen = size - 1 if which == "last" else int(which)
        if chosen == rank() or place == "stop":
            self._after, self._place = int(after), place
        if self._place == "charged":
            self._die_before_gather()
        self._taken = 0

    def loss_fn(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self._place == "loss" and self._taken == self._after:
            self._die()
        return loss_fn(model, x, y)

    def on_step(self, progress: Any) -> None:
        self._taken = progress.step
        if self._taken != self._after:
            return
        if self._place == "step":
            self._die()
        if self._place == "stop":
            (self._out / "ended").touch()
            raise KeyboardInterrupt

    def _die_before_gather(self) -> None:
        gather = Ranks.whole_of_parts

        def dying(ranks: Ranks, *arguments: Any) -> None:
            if self._taken == self._after:
                self._die()
            gather(ranks, *arguments)

        Ranks.whole_of_parts = dying  # type: ignore[method-assign]

    def _die(self) -> None:
        (self._out / "ended").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def noise_alone(out: Path, _: str) -> None:
    """Steps on gradients of zero with the system's noise: what is left of the noise."""
    together = group()
    planned = plan(noise="system", seed=None, steps=1, noise_multiplier=2.0)
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def no_loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0 * loss_fn(model, x, y)

    step = dpvd.PrivateStep(model, no_loss, planned, optimizer_of(model, "sgd"), group=together)
    for batch in planned.batches(data(), group=together):
        step(batch)
    moved = [new.detach() - old for new, old in zip(model.parameters(), before, strict=True)]
    torch.save(moved, out / f"moved-{rank()}.pt")


def draws(out: Path, _: str) -> None:
    """Which examples take part, over many steps, with the system's bits."""
    together = group()
    planned = plan(noise="system", seed=None, steps=400)
    positions = torch.arange(EXAMPLES)
    drawn = [batch[0].tolist() for batch in planned.batches((positions,), group=together)]
    (out / f"draws-{rank()}.json").write_text(json.dumps(drawn))


def refused(out: Path, what: str) -> None:
    """Something that must be refused; the words go into a file."""
    together = group()
    version = dpvd.__version__
    try:
        _do_wrong(what, together, out)
        (out / f"refused-{rank()}.txt").write_text("nothing was refused")
    except dpvd.DpvdError as problem:
        (out / f"refused-{rank()}.txt").write_text(str(problem))
    finally:
        dpvd.__version__ = version


def _do_wrong(what: str, together: Any, out: Path) -> None:
    model = network()
    planned = plan()
    given = data()
    drawn_for = together
    options: dict[str, Any] = {}
    if what == "untold":
        together = None
    elif what == "local draws":
        drawn_for = None
    elif what == "other weights" and rank() == 1:
        nn.init.zeros_(model[0].bias)
    elif what == "other order" and rank() == 1:
        permute(model[2].bias)
    elif what == "other version" and rank() == 1:
        dpvd.__version__ = "0.0.0"
    elif what == "other shapes" and rank() == 1:
        model[2] = nn.Linear(300, 4)
    elif what == "other trained" and rank() == 1:
        model[0].bias.requires_grad_(False)
    elif what == "other plan" and rank() == 1:
        planned = plan(noise_multiplier=0.1)
    elif what == "shuffled" and rank() == 1:
        order = torch.randperm(EXAMPLES)
        given = (given[0][order], given[1][order])
    elif what == "declared":
        options["batches"] = "declared"
    elif what == "parallel":
        model = nn.parallel.DistributedDataParallel(model)
    elif what == "fixed size":
        planned = plan(sampling="fixed-size", relation="replace-one")
    elif what == "adaptive":
        planned = plan(clipping=Clipping("adaptive", clip_norm=0.5))
    elif what == "bands":
        planned = plan(bands=2)
    elif what == "sharded":
        fully_shard(model)
    elif what == "ledgers":
        options["ledger"] = Ledger.create(out / f"ledger-{rank()}.jsonl", planned.to_dict())
    elif what == "ledger of another plan" and rank() == 0:
        other = plan(steps=STEPS + 1).to_dict()
        options["ledger"] = Ledger.create(out / "ledger.jsonl", other)
    held = [p for p in model.parameters() if p.requires_grad]
    moved_by = torch.optim.SGD(held[:1] if what == "half held" and rank() == 1 else held, lr=0.5)
    step = dpvd.PrivateStep(model, loss_fn, planned, moved_by, group=together, **options)
    if what == "other order":
        return  # after a step the numbers themselves would differ
    for batch in planned.batches(given, group=drawn_for):
        if what == "one raises" and rank() == 1:
            batch = (batch[0] + 1, batch[1])
        step(batch)


def page(out: Path, name: str) -> None:
    """The program on a page of the documentation; the first job, since it makes the group."""
    texts = [block.text for block in blocks(ROOT / "docs" / name, "text")]
    (program,) = [text for text in texts if "init_process_group" in text]
    namespace: dict[str, Any] = {}
    exec(compile(program, name, "exec"), namespace)
    save(out, namespace["model"], {"charged": namespace["step"].charged})


def permute(weights: torch.Tensor) -> None:
    """Put the same numbers into another order."""
    with torch.no_grad():
        weights.copy_(weights.flip(0).clone())


def shared(out: Path, _: str) -> None:
    """Weights of the first process, laid out in memory in other orders, given to all."""
    together = group()
    torch.manual_seed(rank())
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(4, 5))
    model.to(memory_format=torch.channels_last)
    model[1].weight = nn.Parameter(torch.randn(4, 5).T)
    dpvd.share_weights(model, together)
    count = torch.full((3, 2), 1.0 + rank()).T
    Ranks(together).add_up(count)
    save(out, model, {"total": count.tolist()})


ALL = (loop, tiny, fitted, noise_alone, draws, refused, shared, page)
JOBS = {job.__name__: job for job in ALL}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for text in sys.argv[2:]:
        name, _, argument = text.partition(":")
        place = Path(sys.argv[1]) / text.replace(":", "-").replace(" ", "-")
        place.mkdir(exist_ok=True, parents=True)
        JOBS[name](place, argument)
