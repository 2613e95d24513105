"""Private training inside Lightning: one callback for a ``Trainer``.

Lightning goes on to own epochs, validation, schedulers, checkpoints and loggers. The callback
replaces what touches the training data: the loader by the plan's draws, and ``training_step``,
backward pass and optimizer step by one private step.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn, tensor
from torch.utils.data import DataLoader

from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.grads import Clipping, LossFn, as_batch
from dpvd.loader import PlannedLoader
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, steps_in
from dpvd.ranks import processes_around
from dpvd.training import PrivateStep, check_sampler, planned_like

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
except ImportError as problem:
    raise ImportError(
        'dpvd.lightning needs Lightning 2.4 or later: pip install "dpvd[lightning]"'
    ) from problem

__all__ = ["Private"]

log = logging.getLogger("dpvd")

_OWN_LOOP = ("backward", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad")


class Private(Callback):
    """Makes the fit of a Lightning ``Trainer`` private, within (ε, δ).

        private = dpvd.lightning.Private(epsilon=3, delta=1e-5)
        trainer = Trainer(max_epochs=10, callbacks=[private])
        trainer.fit(module, loader)
        print(private.guarantee().sentence())

    ``training_step`` returns one loss per example (reduction="none"), or ``loss_fn`` gives them and
    ``training_step`` is not called.

    Guarantees:
        The training loader's batches are drawn by the plan; each takes one private step, and each
        step is charged. Training stops when the plan's steps are taken.
        Of training, loggers get "epsilon" at the end of an epoch. What ``self.log`` is given while
        training is dropped, in the module and in callbacks; validation figures pass.
        Checkpoints hold plan and account: a resumed run goes on counting.

    Args:
        epsilon: ε that the whole fit may spend.
        delta: δ, below one over the number of examples.
        clip_norm: the bound on each example's gradient.
        epochs: passes over the data; those of the trainer (max_epochs, max_steps) if not given.
        loss_fn: one value per example: ``loss_fn(module, *batch)``, or a criterion of torch with
            reduction="none"; the module's ``training_step`` if not given.
        micro_batch: at most this many examples go through the model at once.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept at once.
        accountant: by which the noise is chosen.

    Attributes:
        plan: what is done to the data; None before the fit.
        step: the private step; None before the fit.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        clip_norm: float = 1.0,
        epochs: float | None = None,
        loss_fn: LossFn | nn.Module | None = None,
        micro_batch: int | None = None,
        kept_mb: float = 64.0,
        accountant: AccountantName | str = AccountantName.PLD,
    ) -> None:
        super().__init__()
        positive(epsilon=epsilon, clip_norm=clip_norm)
        in_unit_interval(delta=delta)
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.epochs = epochs
        self.loss_fn = loss_fn
        self.micro_batch = micro_batch
        self.kept_mb = kept_mb
        self.accountant = AccountantName.parse(accountant)
        self.plan: PrivacyPlan | None = None
        self.step: PrivateStep | None = None
        self._saved: Mapping[str, Any] | None = None
        self._log: Callable[..., None] | None = None
        self._replaced: list[str] = []
        self._dropped: set[str] = set()

    def guarantee(self) -> Guarantee:
        """The privacy statement for all steps charged so far."""
        if self.step is None:
            raise DpvdError("nothing was trained yet: call trainer.fit(module, loader) first")
        return self.step.guarantee(self.delta, self.accountant)

    # Before the first batch.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        _check_trainer(trainer)
        _check_module(pl_module)
        self._keep_training_values(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        source = trainer.fit_loop._data_source
        loader = source.dataloader()
        if not isinstance(loader, DataLoader):
            raise DpvdError(
                f"the training data must come from one torch DataLoader, got"
                f" {type(loader).__name__}: give one, of a map-style data set"
            )
        check_sampler(loader)
        optimizer = _optimizer_of(trainer)
        self.plan = self._plan(trainer, loader)
        self.step = PrivateStep(
            pl_module,
            _TrainingLoss() if self.loss_fn is None else self.loss_fn,
            self.plan,
            optimizer,
            micro_batch=self.micro_batch,
            kept_mb=self.kept_mb,
        )
        if self._saved is not None:
            self.step.load_state_dict(self._saved["step"])
            self._saved = None
        position = self.step.position
        source.instance = _Epochs(planned_like(loader, self.plan, position), self.plan, position)
        self._take_over(trainer, pl_module, self.step)

    def _plan(self, trainer: Trainer, loader: DataLoader[Any]) -> PrivacyPlan:
        """The plan of this fit; that of the checkpoint, if one is resumed."""
        examples = len(loader.dataset)  # type: ignore[arg-type]  # check_sampler saw its sampler
        batch_size = loader.batch_size
        assert batch_size is not None  # refused by check_sampler
        plan = PrivacyPlan(
            examples=examples,
            batch_size=batch_size,
            steps=self._steps(trainer, batch_size, examples),
            clipping=Clipping("flat", clip_norm=self.clip_norm),
        )
        if self._saved is None:
            return plan.calibrate(self.epsilon, self.delta, self.accountant)
        saved = PrivacyPlan.from_dict(self._saved["plan"])
        promised = (self._saved["epsilon"], self._saved["delta"])
        same = plan.to_dict() | {"noise_multiplier": saved.noise_multiplier} == saved.to_dict()
        if not same or promised != (self.epsilon, self.delta):
            raise DpvdError(
                "the checkpoint is of a fit under another plan, for ε = "
                f"{promised[0]:g} in {saved.steps} steps of {saved.batch_size} of {saved.examples}"
                f" examples, not ε = {self.epsilon:g} in {plan.steps} steps of {batch_size} of"
                f" {examples}: go on with the same budget, data, batch size, epochs and clip norm"
            )
        return saved

    def _steps(self, trainer: Trainer, batch_size: int, examples: int) -> int:
        """As many steps as the trainer would take, or as ``epochs`` are."""
        limits = []
        epochs = trainer.max_epochs if self.epochs is None else self.epochs
        if epochs is not None and epochs != -1:
            limits.append(steps_in(epochs, batch_size=batch_size, examples=examples))
        if trainer.max_steps != -1:
            limits.append(trainer.max_steps)
        if not limits:
            raise DpvdError(
                "training without an end has no finite ε: give Trainer(max_epochs=...) or"
                " Private(epochs=...)"
            )
        return min(limits)

    # While training.

    def _take_over(self, trainer: Trainer, pl_module: LightningModule, step: PrivateStep) -> None:
        """Let one private step stand where Lightning differentiates and steps."""

        def training_step(batch: Any, *_: Any) -> Tensor:
            if trainer.accumulate_grad_batches != 1:
                raise DpvdError(_ACCUMULATION)
            if isinstance(step.loss_fn, _TrainingLoss):
                step.loss_fn.is_spread = as_batch(batch).layout.is_spread
            step(batch)
            return tensor(0.0)  # what Lightning takes for the loss: it tells nothing of the data

        def backward(*_: Any, **__: Any) -> None:
            """The private step has differentiated already."""

        def optimizer_step(
            epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any]
        ) -> None:
            optimizer_closure()  # calls training_step, in which the optimizer steps

        self._replace(pl_module, training_step=training_step)
        self._replace(pl_module, backward=backward, optimizer_step=optimizer_step)

    def _keep_training_values(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let nothing that is logged while training reach a logger, but ε."""
        original_log = pl_module.log
        original_log_dict = pl_module.log_dict
        self._log = original_log

        def log_evaluation(name: str, *args: Any, **options: Any) -> None:
            if trainer.training:
                self._say_dropped(name)
            else:
                original_log(name, *args, **options)

        def log_dict(values: Mapping[str, Any], *args: Any, **options: Any) -> None:
            if trainer.training:
                for name in values:
                    self._say_dropped(name)
            else:
                original_log_dict(values, *args, **options)

        self._replace(pl_module, log=log_evaluation, log_dict=log_dict)
        for callback in trainer.callbacks:  # Lightning has given them the module's
            callback.log = log_evaluation
            callback.log_dict = log_dict

    def _say_dropped(self, name: str) -> None:
        if name not in self._dropped:
            self._dropped.add(name)
            log.warning(
                "%r is not logged: values of the training data are outside the account. Log them"
                " for validation data",
                name,
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: Any, **options: Any
    ) -> None:
        assert self.step is not None
        assert self.plan is not None
        if self.step.position >= self.plan.steps:
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self._log is not None
        self._log("epsilon", self.guarantee().epsilon, prog_bar=True)

    # Afterwards.

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._put_back(pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._put_back(pl_module)

    def _replace(self, pl_module: LightningModule, **functions: Callable[..., Any]) -> None:
        for name, function in functions.items():
            vars(pl_module)[name] = function
            self._replaced.append(name)

    def _put_back(self, pl_module: LightningModule) -> None:
        for name in self._replaced:
            vars(pl_module).pop(name, None)
        self._replaced = []

    def state_dict(self) -> dict[str, Any]:
        """Plan and account, which checkpoints keep beside the weights."""
        if self.step is None or self.plan is None:
            return {}
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "plan": self.plan.to_dict(),
            "step": self.step.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict or None


class _TrainingLoss:
    """``training_step`` of a module as a loss: ``loss_fn(module, *batch)``.

    Attributes:
        is_spread: whether batches are tuples or lists, whose entries a loss gets one by one.
    """

    def __init__(self) -> None:
        self.is_spread = True

    def __call__(self, module: LightningModule, *batch: Any) -> Tensor:
        whole = batch if self.is_spread else batch[0]
        # The class has the user's own; on the object stands ours.
        output = type(module).training_step(module, whole, 0)
        losses = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(losses, Tensor) or losses.dim() == 0:
            got = "one number" if isinstance(losses, Tensor) else type(losses).__name__
            raise DpvdError(
                f"training_step returned {got} for the batch, which hides what each example"
                " contributes: return one loss per example, such as F.cross_entropy(self(x), y,"
                " reduction='none'), or give Private(loss_fn=...)"
            )
        return losses


class _Epochs:
    """A planned loader whose first pass counts the steps of its epoch before a resumption.

    Lightning counts them, too. It asks for the two methods before it calls a loader resumable;
    where to go on stands in the account.
    """

    def __init__(self, loader: PlannedLoader, plan: PrivacyPlan, position: int) -> None:
        self._loader = loader
        self._start = position
        self._begun_at = position  # where the present pass began
        per_epoch = plan.examples / plan.batch_size
        begun = int(position / per_epoch + 1e-9)
        first = 0
        if begun:
            first = steps_in(begun, batch_size=plan.batch_size, examples=plan.examples)
        self._before = max(0, position - first)

    def __iter__(self) -> Any:
        self._begun_at = self._loader.position  # Lightning asks several times before it reads
        return iter(self._loader)

    def __len__(self) -> int:
        before = self._before if self._begun_at == self._start else 0
        return len(self._loader) + before

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: the account says where to go on."""


_ACCUMULATION = (
    "accumulate_grad_batches sums gradients without noise: leave it at 1, give the loader the"
    " larger batch size, and limit memory by Private(micro_batch=...)"
)


def _check_trainer(trainer: Trainer) -> None:
    """Raise for options of the trainer that would void the account, or that it cannot follow."""
    limit = trainer.limit_train_batches
    is_limited = isinstance(limit, int) or limit != 1.0
    # A trainer of one device does not look at the launcher that started several of it.
    devices = max(trainer.world_size, processes_around())
    refusals = {
        f"{devices} devices: each would train on the whole budget. Train on one,"
        " Trainer(devices=1)": devices > 1,
        _ACCUMULATION: trainer.accumulate_grad_batches != 1,
        "gradient_clip_val clips the mean of a batch, which bounds no example: leave it out, and"
        " give Private(clip_norm=...)": bool(trainer.gradient_clip_val),
        f"precision {trainer.precision!r} is not supported: take '32-true' or '64-true'": (
            trainer.precision not in ("32-true", "64-true")
        ),
        "overfit_batches repeats batches, which the account does not allow: train on a"
        " torch.utils.data.Subset instead": trainer.overfit_batches > 0,
        "limit_train_batches leaves examples out that the account counts on: train on a"
        " torch.utils.data.Subset instead": is_limited and not trainer.fast_dev_run,
        "reload_dataloaders_every_n_epochs is not supported: the plan is for one data set": (
            trainer.reload_dataloaders_every_n_epochs > 0
        ),
        "learning rates and batch sizes are not searched for on the training data, which would be"
        " outside the account: choose them on public data, and leave the finder out": (
            any(isinstance(one, BatchSizeFinder | LearningRateFinder) for one in trainer.callbacks)
        ),
        "there are several Private callbacks: give one": (
            sum(isinstance(callback, Private) for callback in trainer.callbacks) > 1
        ),
    }
    _refuse_first(refusals)


def _check_module(module: LightningModule) -> None:
    """Raise for modules that differentiate and step in a way of their own."""
    own = [name for name in _OWN_LOOP if _is_own(module, name)]
    _refuse_first(
        {
            "the module optimizes by hand (automatic_optimization=False): let Lightning do it, or"
            " write the loop yourself with dpvd.PrivateStep": not module.automatic_optimization,
            f"the module has its own {', '.join(own)}, in whose place the private step stands:"
            " remove it; learning rates belong into a scheduler": bool(own),
        }
    )


def _is_own(module: LightningModule, name: str) -> bool:
    return getattr(type(module), name) is not getattr(LightningModule, name)


def _refuse_first(refusals: Mapping[str, bool]) -> None:
    for words, applies in refusals.items():
        if applies:
            raise DpvdError(words)


def _optimizer_of(trainer: Trainer) -> Any:
    if len(trainer.optimizers) != 1:
        raise DpvdError(
            f"a private fit has one optimizer, got {len(trainer.optimizers)}: return one from"
            " configure_optimizers, with parameter groups if need be"
        )
    return trainer.optimizers[0]
