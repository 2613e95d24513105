"""Training from beginning to end: schedules, averaging, evaluation, ledger and checkpoints."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, positive_int
from dpvd.files import make_folder
from dpvd.grads import Isolation, LossFn
from dpvd.losses import cross_entropy
from dpvd.mechanisms import SeededBits
from dpvd.nn import noise_from
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, Ledger, epsilon_curve
from dpvd.ranks import Ranks
from dpvd.training.averaging import IterateAverage
from dpvd.training.checkpoint import Checkpoint, pack_optimizer, restore_optimizer
from dpvd.training.posterior import check_posterior, set_posterior
from dpvd.training.recipe import Recipe
from dpvd.training.step import PrivateStep
from dpvd.tree import leaves_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["CHECKPOINT", "LEDGER", "FitResult", "Progress", "fit", "has_begun"]

# Files in the folder of a run.
LEDGER = "ledger.jsonl"
CHECKPOINT = "checkpoint.safetensors"

POSITION = ("epoch", "step", "epsilon")  # of an entry of the history; the others are metrics

Evaluate = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for progress displays.

    ``epsilon`` is never below what the steps so far have spent; between evaluations it is that of
    the next one. ``metrics`` are those of the last evaluation: they come from evaluation data,
    never from the training data.
    """

    step: int
    steps: int
    epoch: float
    epsilon: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class FitResult:
    """What training gives back. ``model`` holds the averaged parameters and is in eval mode."""

    model: nn.Module
    guarantee: Guarantee
    history: list[dict[str, float]]
    steps: int
    seconds: float


def fit(
    model: nn.Module,
    data: Any,
    plan: PrivacyPlan,
    recipe: Recipe,
    *,
    delta: float,
    accountant: AccountantName | str = AccountantName.PLD,
    loss_fn: LossFn = cross_entropy,
    optimizer: torch.optim.Optimizer | None = None,
    evaluate: Evaluate | None = None,
    evaluations: int = 20,
    folder: Path | str | None = None,
    resume: bool = False,
    generator: torch.Generator | None = None,
    on_step: Callable[[Progress], None] | None = None,
    micro_batch: int | None = None,
    kept_mb: float = 64.0,
    prefetch: bool = False,
    isolation: Isolation | str = Isolation.CHECKED,
    shared: bool = False,
    group: "ProcessGroup | None" = None,
) -> FitResult:
    """Train a model under a plan.

    Guarantees:
        Batches come from the plan's sampler, every step is charged before it is taken, and training
        stops before the plan's budget is passed. The returned guarantee is for all steps that were
        charged.
        A run that is resumed never takes more steps than were left when it stopped: steps that were
        charged but lost in a crash stay charged.

    Args:
        model: trained in place.
        data: tensors or arrays with the examples along the first dimension, in the containers that
            ``loss_fn`` takes after the model. They may be memory-mapped, and of any type that the
            model or the loss converts; batches go to the model's device.
        plan: what may be done to the data.
        recipe: how to optimise.
        delta: δ of the guarantee.
        accountant: the accountant of the guarantee.
        loss_fn: one value per example.
        optimizer: any that holds the trainable parameters, instead of the recipe's; the learning
            rate of each of its groups is the η₀ of the recipe's schedule.
        evaluate: called with the (averaged) model at the evaluation points; what it returns enters
            the history.
            It must not look at the training data: what it prints or stores is outside the account.
        evaluations: how many evaluation points; checkpoints are written there too.
        folder: where ledger and checkpoint are kept; nothing is written if None.
        resume: go on from what lies in the folder.
        generator: where the layers' noise comes from (it does not protect anything, so it may be
            seeded).
        on_step: called after every step.
        micro_batch: at most this many examples go through the model at once, to limit memory; see
            ``PrivateStep``.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept at once; see
            ``PrivateStep``.
        prefetch: read batches in the background; see ``PrivacyPlan.batches``.
        isolation: how it is made sure that no example reaches another's gradient; see
            ``PrivateStep``.
        shared: take steps on all examples without a copy of the data, for models that do not write
            to their inputs; see ``PrivacyPlan.batches``.
        group: of the processes that train together, each of which calls this with the same data;
            see ``PrivateStep``. All of them read ``folder``, the first of them writes there.

    Raises:
        DpvdError: if the data does not fit the plan, the model's account has no step of the plan
            left, the folder holds another run, or its files are damaged.
    """
    positive_int(evaluations=evaluations)
    columns = plan.check_data(data)
    check_posterior(model, plan, recipe, optimizer)
    model.train()
    place = None if folder is None else Path(folder)
    moved_by = recipe.make_optimizer(model.parameters()) if optimizer is None else optimizer
    run = _Run(
        model,
        plan,
        recipe,
        loss_fn,
        moved_by,
        generator,
        place,
        resume,
        micro_batch,
        kept_mb,
        isolation,
        Ranks(group),
    )
    points = _evaluation_points(plan.steps, evaluations)
    started = time.monotonic()
    try:
        spent = epsilon_curve(
            run.step.event, points, delta, accountant=accountant, relation=plan.relation
        )
        budget = dict(zip(points, spent, strict=True))
        if run.is_new:
            run.save()  # what is charged from now on can be gone on from
        batches = plan.batches(
            columns,
            bits=run.sampling,
            start=run.step.position,
            device=run.device,
            prefetch=prefetch,
            shared=shared,
            group=group,
        )
        for batch in batches:
            run.take(batch)
            if run.step.position in budget:
                run.evaluate(evaluate, budget[run.step.position])
                run.save()
            if on_step is not None:
                on_step(run.progress(budget))
    except KeyboardInterrupt:
        run.save()
        raise
    finally:
        run.close()
    # Before the average, which nobody else may hide behind.
    guarantee = run.step.guarantee(delta, accountant)
    run.average.apply()
    set_posterior(run.step, recipe)
    run.step.accept_weights()
    model.eval()
    return FitResult(model, guarantee, run.history, run.step.taken, time.monotonic() - started)


def has_begun(folder: Path | str) -> bool:
    """Whether a run in the folder has come as far as its ledger, and so can be resumed.

    Edge cases: what a crash leaves of a ledger that was being made is removed. A checkpoint without
    a ledger is no new run, but one that lost its account: resuming it is refused.
    """
    path = Path(folder) / LEDGER
    if Ledger.has_begun(path) or (Path(folder) / CHECKPOINT).exists():
        return True
    path.unlink(missing_ok=True)
    return False


def _types_apart(model: nn.Module, batch: Any) -> str:
    """What to do about data of another type than the model's; empty if that is not it."""
    known = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    for path, leaf in leaves_of(batch):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.is_floating_point() and leaf.dtype not in known:
            types = " and ".join(sorted(map(str, known)))
            return (
                f"data{path} is {leaf.dtype}, the model is {types}: convert the data, as with"
                " .float() or .astype(np.float32), or the model"
            )
        if leaf.dtype in (torch.int8, torch.int16, torch.int32):
            return f"data{path} is {leaf.dtype}: labels are int64, convert them with .long()"
    return ""


def _evaluation_points(steps: int, evaluations: int) -> list[int]:
    """The numbers of steps after which a run is evaluated; the last is the end.

    >>> _evaluation_points(10, 4), _evaluation_points(2, 20)
    ([2, 5, 8, 10], [1, 2])
    """
    points = set()
    for index in range(1, evaluations + 1):
        point = round(steps * index / evaluations)
        points.add(max(1, point))
    return sorted(points)


class _Run:
    """The moving parts of one run, and how they are put on disk and restored."""

    def __init__(
        self,
        model: nn.Module,
        plan: PrivacyPlan,
        recipe: Recipe,
        loss_fn: LossFn,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator | None,
        folder: Path | None,
        resume: bool,
        micro_batch: int | None,
        kept_mb: float,
        isolation: Isolation | str,
        ranks: Ranks,
    ) -> None:
        self.model = model
        self.ranks = ranks
        self.plan = plan
        self.recipe = recipe
        self.folder = folder
        self.is_new = not resume
        self.generator = torch.Generator() if generator is None else generator
        if generator is None:
            self.generator.seed()
        elif not ranks.is_first:
            # The layers' noise of other examples is other noise.
            self.generator.manual_seed(generator.initial_seed() + ranks.rank)
        self.noise = plan.bits("noise")
        self.sampling = plan.bits("sampling")
        schedule = recipe.schedule(plan)
        self.schedules = [
            replace(schedule, initial=float(group["lr"])) for group in optimizer.param_groups
        ]
        self.average = IterateAverage(model)
        self.history: list[dict[str, float]] = []
        if resume and folder is None:
            raise DpvdError("to resume, name the folder of the run")
        self._made_folder = folder is not None and not folder.exists()
        with ranks.together():
            ledger = _open_ledger(plan, folder, resume) if ranks.is_first else None
        try:
            self.step = PrivateStep(
                model,
                loss_fn,
                plan,
                optimizer,
                kl_weight=recipe.kl_schedule(plan),
                ledger=ledger,
                noise=self.noise,
                micro_batch=micro_batch,
                kept_mb=kept_mb,
                isolation=isolation,
                group=ranks.group,
            )
            if resume:
                self._restore()
            elif self.step.position >= plan.steps:
                raise DpvdError(
                    f"this model has been trained under this plan already, and its {plan.steps}"
                    " steps are used up: take a new model, or a plan of its own for what is to be"
                    " spent in addition"
                )
        except BaseException:
            if ledger is not None and not resume and ledger.is_unused:
                self._leave_nothing(ledger)
            raise

    @property
    def device(self) -> torch.device | None:
        """Where the model is."""
        for parameter in self.model.parameters():
            return parameter.device
        return None

    def take(self, batch: Any) -> None:
        for group, schedule in zip(self.step.optimizer.param_groups, self.schedules, strict=True):
            group["lr"] = schedule(self.step.position)
        try:
            with noise_from(self.generator):
                self.step(batch)
        except RuntimeError as error:
            words = _types_apart(self.model, batch)
            if words:
                raise DpvdError(words) from error
            raise
        if self.step.position > self.recipe.average_from(self.plan):
            self.average.update(self.step.zeta)

    def evaluate(self, evaluate: Evaluate | None, epsilon: float) -> None:
        entry = {"epoch": self._epoch(), "step": self.step.position, "epsilon": epsilon}
        if evaluate is not None:
            with self.average.applied():
                self.model.eval()
                entry |= evaluate(self.model)
                self.model.train()
            self.step.accept_weights()
        self.history.append(entry)

    def progress(self, budget: Mapping[int, float]) -> Progress:
        position = self.step.position
        next_point = min(point for point in budget if point >= position)
        last_entry = self.history[-1] if self.history else {}
        metrics = {name: value for name, value in last_entry.items() if name not in POSITION}
        return Progress(
            step=position,
            steps=self.plan.steps,
            epoch=self._epoch(),
            epsilon=budget[next_point],
            metrics=metrics,
        )

    def _epoch(self) -> float:
        examples_seen = self.step.position * self.plan.batch_size
        return examples_seen / self.plan.examples

    def save(self) -> None:
        """Write a checkpoint, if there is a folder."""
        if self.folder is None or self.step.ledger is None:
            return
        optimizer, optimizer_facts = pack_optimizer(self.step.optimizer)
        tensors = _prefixed("model", self.model.state_dict())
        tensors |= _prefixed("average", self.average.mean)
        tensors |= _prefixed("optimizer", optimizer)
        tensors["generator"] = self.generator.get_state()
        facts = {
            "fingerprint": self.step.ledger.fingerprint,
            "recipe": self.recipe.to_dict(),
            "step": self.step.state_dict(),
            "averaged": self.average.count,
            "mean_zeta2": self.average.mean_zeta2,
            "optimizer": optimizer_facts,
            "history": self.history,
            "sampling_position": (
                self.sampling.position if isinstance(self.sampling, SeededBits) else None
            ),
        }
        Checkpoint(tensors, facts).save(self.folder / CHECKPOINT)

    def close(self) -> None:
        """Let go of the ledger; of a new run that nothing was charged to nothing is left behind."""
        ledger = self.step.ledger
        if ledger is None:
            return
        ledger.close()
        if self.is_new and ledger.is_unused:
            self._leave_nothing(ledger)

    def _leave_nothing(self, ledger: Ledger) -> None:
        """Remove what was written of a run of which nothing has begun."""
        assert self.folder is not None  # where the ledger is
        ledger.delete()
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        if self._made_folder and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _restore(self) -> None:
        assert self.folder is not None  # checked before
        if self.step.charged == 0 and not (self.folder / CHECKPOINT).exists():
            return  # nothing had begun
        saved = Checkpoint.load(self.folder / CHECKPOINT)
        facts = saved.facts
        if facts["fingerprint"] != self.plan.fingerprint:
            raise DpvdError(
                f"the checkpoint in {self.folder} belongs to another plan than the ledger beside it"
            )
        if Recipe.from_dict(facts["recipe"]) != self.recipe:
            raise DpvdError(
                f"the run in {self.folder} was started with another recipe: resume with that one"
            )
        self._load_weights(saved.part("model"))
        self.average.mean = saved.part("average")
        self.average.count = facts["averaged"]
        self.average.mean_zeta2 = facts["mean_zeta2"]
        restore_optimizer(self.step.optimizer, saved.part("optimizer"), facts["optimizer"])
        if self.ranks.is_first:  # each process draws noise of its own for its own examples
            self.generator.set_state(saved.tensors["generator"])
        else:
            self.generator.seed()
        self.history = facts["history"]
        self.step.load_state_dict(facts["step"])
        if isinstance(self.sampling, SeededBits):
            self.sampling.position = facts["sampling_position"]

    def _load_weights(self, weights: dict[str, Tensor]) -> None:
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as problem:
            raise DpvdError(
                f"the run in {self.folder} is of another model: resume with that one ({problem})"
            ) from None


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Named so that ``Checkpoint.part`` finds them."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _open_ledger(plan: PrivacyPlan, folder: Path | None, resume: bool) -> Ledger | None:
    if folder is None:
        return None
    if resume:
        return Ledger.open(folder / LEDGER, plan.to_dict())
    make_folder(folder)
    return Ledger.create(folder / LEDGER, plan.to_dict())
