"""Private training with the ``Trainer`` of Hugging Face, of which this is a subclass.

The trainer goes on to own epochs, evaluation, schedulers and checkpoints. Its training loader is
the plan's, and one private step stands where it differentiates and steps.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.files import write_atomically
from dpvd.grads import Clipping, LossFn
from dpvd.loader import PlannedLoader, as_dataset
from dpvd.losses import cross_entropy
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, steps_in
from dpvd.training import PrivateStep

try:
    from transformers import Trainer
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as problem:
    raise ImportError(
        "dpvd.transformers needs transformers 4.48 or later and accelerate: pip install"
        ' "dpvd[transformers]"'
    ) from problem

__all__ = ["PrivateTrainer"]

ACCOUNT = "dpvd_account.json"  # beside the weights of a checkpoint

# Of what is logged while training, all that tells nothing of the data.
_HARMLESS = {
    "epoch",
    "epsilon",
    "learning_rate",
    "step",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
}
_EVALUATION = ("eval_", "test_")


class PrivateTrainer(Trainer):
    """A ``transformers.Trainer`` whose training is private, within (ε, δ).

        trainer = PrivateTrainer(model, args, train_dataset=data, epsilon=3, delta=1e-5)
        trainer.train()
        print(trainer.guarantee().sentence())

    Guarantees:
        Training batches are drawn by the plan; each takes one private step, and each step is
        charged. Training stops when the plan's steps are taken.
        Of training, loggers get "epsilon", the learning rate and times; losses, norms and counts of
        tokens are dropped. What is named eval_... or test_... passes.
        Checkpoints hold plan and account; one without is refused.

    Args:
        args: as of ``transformers.Trainer``, and so are all others that are not named here.
        epsilon: ε that the whole training may spend.
        delta: δ, below one over the number of examples.
        clip_norm: the bound on each example's gradient; ``max_grad_norm`` does nothing.
        loss_fn: one value per example, ``loss_fn(model, batch)``; cross entropy of the logits and
            batch["labels"] if not given. See ``dpvd.losses``.
        micro_batch: at most this many examples go through the model at once.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept at once.
        accountant: by which the noise is chosen.

    Attributes:
        plan: what is done to the data; None before training.
        step: the private step; None before training.
    """

    def __init__(
        self,
        *args: Any,
        epsilon: float,
        delta: float,
        clip_norm: float = 1.0,
        loss_fn: LossFn | nn.Module = cross_entropy,
        micro_batch: int | None = None,
        kept_mb: float = 64.0,
        accountant: AccountantName | str = AccountantName.PLD,
        **options: Any,
    ) -> None:
        positive(epsilon=epsilon, clip_norm=clip_norm)
        in_unit_interval(delta=delta)
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.loss_fn = loss_fn
        self.micro_batch = micro_batch
        self.kept_mb = kept_mb
        self.accountant = AccountantName.parse(accountant)
        self.plan: PrivacyPlan | None = None
        self.step: PrivateStep | None = None
        self._saved: Mapping[str, Any] | None = None
        super().__init__(*args, **options)
        _check_arguments(self.args)
        _check_trainer(self)

    def guarantee(self) -> Guarantee:
        """The privacy statement for all steps charged so far."""
        if self.step is None:
            raise DpvdError("nothing was trained yet: call train() first")
        return self.step.guarantee(self.delta, self.accountant)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        """As of ``transformers.Trainer``; a checkpoint is resumed with its account."""
        _check_arguments(self.args)
        self._saved = None
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            self._saved = _read_account(Path(resume_from_checkpoint))
            # The plan's loader begins where the account ends; skipping would drop its marks.
            self.args.ignore_data_skip = True
        return super().train(resume_from_checkpoint, *args, **options)

    # What stands in place of the trainer's own.

    def get_train_dataloader(self) -> Any:
        """The plan's draws from the training data, through the trainer's collator."""
        dataset, collator = self._examples()
        self.model.train()
        self.create_optimizer()
        self.plan = self._plan(len(as_dataset(dataset)))
        self.step = PrivateStep(
            self.model,
            self.loss_fn,
            self.plan,
            _raw(self.optimizer),
            micro_batch=self.micro_batch,
            kept_mb=self.kept_mb,
        )
        if self._saved is not None:
            self.step.load_state_dict(self._saved["step"])
        loader = self.plan.loader(
            dataset,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            start=self.step.position,
        )
        return _Epochs(loader, self.plan)

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **options: Any) -> Tensor:
        """One private step; the loss that it returns is 0, and tells nothing of the data."""
        assert self.step is not None
        assert self.plan is not None
        if model is not self.model or _raw(self.optimizer) is not self.step.optimizer:
            raise DpvdError(
                f"the trainer has wrapped the model into {type(model).__name__}, or changed the"
                " optimizer: train in one process on one device, without compiling"
            )
        if self.optimizer is not self.step.optimizer:
            self.optimizer.step = _nothing  # the trainer's own step, after this one
        model.train()
        self.step(self._prepare_inputs(inputs))
        model.zero_grad()
        if self.step.position >= self.plan.steps:
            self.control.should_training_stop = True
        return torch.tensor(0.0, device=self.args.device)

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Pass evaluation figures on, and of training what tells nothing of the data."""
        kept = {
            name: value
            for name, value in logs.items()
            if name in _HARMLESS or name.startswith(_EVALUATION)
        }
        if self.step is not None and not any(name.startswith(_EVALUATION) for name in logs):
            kept["epsilon"] = self.guarantee().epsilon
        super().log(kept, *args, **options)

    def floating_point_ops(self, inputs: Any) -> int:
        """0: the true number would tell how many examples, and how long ones, were drawn."""
        return 0

    def _save(self, output_dir: str | None = None, *args: Any, **options: Any) -> None:
        super()._save(output_dir, *args, **options)
        if self.step is not None and self.plan is not None:
            folder = Path(self.args.output_dir if output_dir is None else output_dir)
            account = {
                "epsilon": self.epsilon,
                "delta": self.delta,
                "plan": self.plan.to_dict(),
                "step": self.step.state_dict(),
            }
            write_atomically(folder / ACCOUNT, json.dumps(account).encode())

    def _load_best_model(self) -> None:
        super()._load_best_model()
        assert self.step is not None
        self.step.accept_weights()  # those of an earlier step of this run, chosen by evaluation

    # The plan.

    def _examples(self) -> tuple[Any, Any]:
        """The training data and the function that collates them, as the trainer would have them."""
        dataset = self.train_dataset
        if dataset is None:
            raise DpvdError("there is no training data: give train_dataset")
        if hasattr(dataset, "column_names"):  # a datasets.Dataset
            return self._remove_unused_columns(dataset, description="training"), self.data_collator
        return dataset, self._get_collator_with_removed_columns(
            self.data_collator, description="training"
        )

    def _plan(self, examples: int) -> PrivacyPlan:
        """The plan of this training; that of the checkpoint, if one is resumed."""
        batch_size = self.args.train_batch_size
        steps = self.args.max_steps
        if steps <= 0:
            epochs = self.args.num_train_epochs
            steps = steps_in(epochs, batch_size=batch_size, examples=examples)
        plan = PrivacyPlan(
            examples=examples,
            batch_size=batch_size,
            steps=steps,
            clipping=Clipping("flat", clip_norm=self.clip_norm),
        )
        if self._saved is None:
            return plan.calibrate(self.epsilon, self.delta, self.accountant)
        saved = PrivacyPlan.from_dict(self._saved["plan"])
        promised = (self._saved["epsilon"], self._saved["delta"])
        same = plan.to_dict() | {"noise_multiplier": saved.noise_multiplier} == saved.to_dict()
        if not same or promised != (self.epsilon, self.delta):
            raise DpvdError(
                "the checkpoint is of a training under another plan, for ε = "
                f"{promised[0]:g} in {saved.steps} steps of {saved.batch_size} of {saved.examples}"
                f" examples, not ε = {self.epsilon:g} in {steps} steps of {batch_size} of"
                f" {examples}: go on with the same budget, data, batch size, epochs and clip norm"
            )
        return saved


class _Epochs:
    """A planned loader that has the length of a whole epoch, from which the trainer counts on.

    Passes may be shorter by one batch; the first one after a resumption, by several.
    """

    def __init__(self, loader: PlannedLoader, plan: PrivacyPlan) -> None:
        self.dataset = loader.dataset
        self._loader = loader
        self._length = steps_in(1, batch_size=plan.batch_size, examples=plan.examples)

    def __iter__(self) -> Any:
        return iter(self._loader)

    def __len__(self) -> int:
        return self._length


def _nothing(*_: Any, **__: Any) -> None:
    """The private step has moved the weights already."""


def _raw(optimizer: Any) -> Any:
    """The optimizer itself, without accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _read_account(folder: Path) -> Mapping[str, Any]:
    path = folder / ACCOUNT
    if not path.is_file():
        raise DpvdError(
            f"{folder} has no {ACCOUNT}: how many private steps its weights have taken is not"
            " known. Resume a checkpoint that PrivateTrainer wrote"
        )
    account: Mapping[str, Any] = json.loads(path.read_text())
    return account


def _check_arguments(args: Any) -> None:
    """Raise for options that would void the account, or that it cannot follow."""
    refusals = {
        f"{args.world_size * max(1, args.n_gpu)} devices: each would train on the whole budget."
        " Train in one process on one device": args.world_size > 1 or args.n_gpu > 1,
        "gradient_accumulation_steps sums gradients without noise: leave it at 1, give the larger"
        " per_device_train_batch_size, and limit memory by PrivateTrainer(micro_batch=...)": (
            args.gradient_accumulation_steps != 1
        ),
        "fp16 and bf16 are not supported: train in float32": args.fp16 or args.bf16,
        "deepspeed, fsdp and torch_compile wrap the model, which is not supported: leave them"
        " out": any(getattr(args, name, None) for name in ("deepspeed", "fsdp", "torch_compile")),
        "auto_find_batch_size trains again with other batches after a failure: choose a batch size,"
        " and limit memory by PrivateTrainer(micro_batch=...)": args.auto_find_batch_size,
        "label_smoothing_factor is not read: give loss_fn=dpvd.losses.from_logits("
        "nn.CrossEntropyLoss(reduction='none', label_smoothing=...))": (
            args.label_smoothing_factor != 0
        ),
        "include_num_input_tokens_seen counts what was drawn, which is a secret: leave it out": (
            getattr(args, "include_num_input_tokens_seen", "no") not in (False, "no")
        ),
    }
    for words, applies in refusals.items():
        if applies:
            raise DpvdError(words)


def _check_trainer(trainer: PrivateTrainer) -> None:
    own_loss = type(trainer).compute_loss is not Trainer.compute_loss
    if own_loss or trainer.compute_loss_func is not None:
        raise DpvdError(
            "compute_loss makes one number of a batch, and is not called: give loss_fn, which"
            " returns one value per example, such as dpvd.losses.from_logits(...)"
        )
