"""Private training with Accelerate of Hugging Face, whose ``Accelerator`` this is a subclass of.

Accelerate goes on to own devices, schedulers, checkpoints and trackers. The loop stays the user's:
one private step stands in it for the backward pass and the optimizer's step.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.files import write_atomically
from dpvd.grads import Clipping, LossFn
from dpvd.losses import cross_entropy
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee
from dpvd.training import PrivateStep, check_sampler, planned_like

try:
    from accelerate import Accelerator, DistributedType
    from accelerate.utils import DynamoBackend, send_to_device
except ImportError as problem:
    raise ImportError(
        'dpvd.accelerate needs accelerate 1.0 or later: pip install "dpvd[accelerate]"'
    ) from problem

__all__ = ["PrivateAccelerator"]

log = logging.getLogger("dpvd")

ACCOUNT = "dpvd_account.json"  # beside the weights of a checkpoint

# Of what a loop logs, all that tells nothing of the training data.
_HARMLESS = {"epoch", "epsilon", "learning_rate", "lr", "step"}
_EVALUATION = ("eval", "test", "val")


class PrivateAccelerator(Accelerator):
    """An ``accelerate.Accelerator`` for one private training, within (ε, δ).

        accelerator = PrivateAccelerator(epsilon=3, delta=1e-5, epochs=2)
        model, optimizer, loader, scheduler = accelerator.prepare_private(
            model, optimizer, loader, scheduler
        )
        for _ in range(2):
            for batch in loader:
                accelerator.private_step(batch)
                scheduler.step()
        print(accelerator.guarantee().sentence())

    Guarantees:
        The training loader's batches are drawn by the plan; each takes one private step, and each
        step is charged. After the plan's steps the loader is empty.
        ``log`` hands trackers "epsilon", learning rates, and what is named eval, test or val; other
        values are dropped, with one warning for each name.
        ``save_state`` keeps plan and account; ``load_state`` goes on counting, and refuses a
        checkpoint without them.

    Args:
        epsilon: ε that the whole training may spend.
        delta: δ, below one over the number of examples.
        epochs: passes over the training loader.
        clip_norm: the bound on each example's gradient.
        loss_fn: one value per example, as of :class:`dpvd.PrivateStep`; cross entropy of the logits
            and the labels if not given. See ``dpvd.losses``.
        micro_batch: at most this many examples go through the model at once.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept at once.
        accountant: by which the noise is chosen.
        options: as of ``accelerate.Accelerator``.

    Attributes:
        plan: what is done to the data; None before ``prepare_private``.
        private: the private step; None before ``prepare_private``.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        epochs: float,
        clip_norm: float = 1.0,
        loss_fn: LossFn | nn.Module = cross_entropy,
        micro_batch: int | None = None,
        kept_mb: float = 64.0,
        accountant: AccountantName | str = AccountantName.PLD,
        **options: Any,
    ) -> None:
        positive(epsilon=epsilon, epochs=epochs, clip_norm=clip_norm)
        in_unit_interval(delta=delta)
        self.epsilon = epsilon
        self.delta = delta
        self.epochs = epochs
        self.clip_norm = clip_norm
        self.loss_fn = loss_fn
        self.micro_batch = micro_batch
        self.kept_mb = kept_mb
        self.accountant = AccountantName.parse(accountant)
        self.plan: PrivacyPlan | None = None
        self.private: PrivateStep | None = None
        self._passes: _Passes | None = None
        self._saved: Mapping[str, Any] | None = None
        self._dropped: set[str] = set()
        super().__init__(**options)
        _check(self)
        self.register_save_state_pre_hook(self._write_account)
        self.register_load_state_pre_hook(self._read_account)

    def prepare_private(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        *schedulers: Any,
    ) -> tuple[Any, ...]:
        """Prepare what is trained, and the loader it is trained on.

        Everything else, loaders of evaluation data too, is for ``prepare``.

        Args:
            model: the network.
            optimizer: holds its trainable parameters.
            loader: of which data set, collate function, workers and batch size are taken, and the
                order of examples is not.
            schedulers: of the learning rate.

        Returns:
            The same, in this order.

        Raises:
            DpvdError: if it was called before, or the loader draws in a way of its own.
        """
        if self.private is not None:
            raise DpvdError("an accelerator has one private training: make another for the next")
        if not isinstance(loader, DataLoader):
            raise DpvdError(f"the third argument is a DataLoader, got {type(loader).__name__}")
        check_sampler(loader)
        assert loader.batch_size is not None  # refused by check_sampler
        self.plan = PrivacyPlan(
            examples=len(loader.dataset),  # type: ignore[arg-type]  # check_sampler saw its sampler
            batch_size=loader.batch_size,
            epochs=self.epochs,
            clipping=Clipping("flat", clip_norm=self.clip_norm),
        ).calibrate(self.epsilon, self.delta, self.accountant)
        model.train()
        model, prepared, *rest = super().prepare(model, optimizer, *schedulers)
        self.private = PrivateStep(
            model,
            self.loss_fn,
            self.plan,
            prepared.optimizer,
            micro_batch=self.micro_batch,
            kept_mb=self.kept_mb,
        )
        self._passes = _Passes(loader, self.plan, self.private)
        return (model, prepared, self._passes, *rest)

    def private_step(self, batch: Any) -> None:
        """Take one private step: in place of backward pass, optimizer step and zero_grad.

        Raises:
            DpvdError: as :class:`dpvd.PrivateStep`.
        """
        step = self._begun()
        step.model.train()
        step(send_to_device(batch, self.device))
        step.optimizer.zero_grad()

    def guarantee(self) -> Guarantee:
        """The privacy statement for all steps charged so far."""
        return self._begun().guarantee(self.delta, self.accountant)

    # What stands in place of the accelerator's own.

    def backward(self, loss: Any, **options: Any) -> None:
        """Refused: gradients of a batch's mean bound no example."""
        raise DpvdError(
            "backward differentiates the loss of a whole batch, without clipping or noise: call"
            " accelerator.private_step(batch) in place of backward, optimizer.step and zero_grad"
        )

    def clip_grad_norm_(self, *args: Any, **options: Any) -> None:
        """Refused: it would clip the mean of a batch."""
        raise DpvdError(
            "clip_grad_norm_ clips the mean of a batch, which bounds no example: leave it out, and"
            " give PrivateAccelerator(clip_norm=...)"
        )

    clip_grad_value_ = clip_grad_norm_

    def log(self, values: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Hand trackers ε, evaluation figures, and what tells nothing of the data."""
        kept = {}
        for name, value in values.items():
            if name in _HARMLESS or name.startswith(_EVALUATION):
                kept[name] = value
            elif name not in self._dropped:
                self._dropped.add(name)
                log.warning(
                    "%r is not logged: values of the training data are outside the account. Give"
                    " figures of evaluation data names that begin with eval, test or val",
                    name,
                )
        if self.private is not None:
            kept["epsilon"] = self.guarantee().epsilon
        super().log(kept, *args, **options)

    def load_state(self, *args: Any, **options: Any) -> None:
        """As of Accelerate; the account goes on from that of the checkpoint."""
        step = self._begun()
        super().load_state(*args, **options)
        assert self._saved is not None  # the hook has read it, or raised
        step.load_state_dict(self._saved["step"])
        assert self._passes is not None
        self._passes.begin()

    # The account beside the weights.

    def _write_account(self, models: Any, weights: Any, folder: str) -> None:
        step = self._begun()
        account = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "plan": step.plan.to_dict(),
            "step": step.state_dict(),
        }
        write_atomically(Path(folder) / ACCOUNT, json.dumps(account).encode())

    def _read_account(self, models: Any, folder: str) -> None:
        """Called before anything is loaded."""
        step = self._begun()
        path = Path(folder) / ACCOUNT
        if not path.is_file():
            raise DpvdError(
                f"{folder} has no {ACCOUNT}: how many private steps its weights have taken is not"
                " known. Load what PrivateAccelerator.save_state wrote"
            )
        account: Mapping[str, Any] = json.loads(path.read_text())
        saved = PrivacyPlan.from_dict(account["plan"])
        if saved != step.plan or account["delta"] != self.delta:
            raise DpvdError(
                f"the checkpoint is of a training under another plan, for ε = "
                f"{account['epsilon']:g} in {saved.steps} steps of {saved.batch_size} of"
                f" {saved.examples} examples, not ε = {self.epsilon:g} in {step.plan.steps} steps"
                f" of {step.plan.batch_size} of {step.plan.examples}: go on with the same budget,"
                " data, batch size, epochs and clip norm"
            )
        self._saved = account

    def _begun(self) -> PrivateStep:
        if self.private is None:
            raise DpvdError("nothing is prepared yet: call accelerator.prepare_private first")
        return self.private


class _Passes:
    """The training loader: the plan's draws, from where the account is."""

    def __init__(self, source: DataLoader[Any], plan: PrivacyPlan, step: PrivateStep) -> None:
        self.dataset = source.dataset
        self._source = source
        self._plan = plan
        self._step = step
        self.begin()

    def begin(self) -> None:
        """Draw from the position of the account on."""
        self._loader = planned_like(self._source, self._plan, self._step.position)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


def _check(accelerator: PrivateAccelerator) -> None:
    """Raise for options that would void the account, or that it cannot follow."""
    is_compiled = accelerator.state.dynamo_plugin.backend != DynamoBackend.NO
    refusals = {
        f"{accelerator.num_processes} processes: each would train on the whole budget. Train in one"
        " process": accelerator.num_processes > 1,
        f"{accelerator.distributed_type} wraps the model, which is not supported: train in one"
        " process on one device": accelerator.distributed_type != DistributedType.NO,
        "gradient_accumulation_steps sums gradients without noise: leave it at 1, give the loader"
        " the larger batch size, and limit memory by PrivateAccelerator(micro_batch=...)": (
            accelerator.gradient_accumulation_steps != 1
        ),
        f"mixed_precision={accelerator.mixed_precision!r} scales losses, which is not supported:"
        " take 'bf16' or 'no'": accelerator.mixed_precision not in ("no", "bf16"),
        "dynamo_backend compiles the model, which private steps run eagerly: leave it out": (
            is_compiled
        ),
    }
    for words, applies in refusals.items():
        if applies:
            raise DpvdError(words)
