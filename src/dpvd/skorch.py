"""Private training with skorch: its nets with a budget, for scikit-learn's habits.

skorch goes on to own epochs, callbacks, history, prediction and files. Training batches are the
plan's draws, and one private step stands where a net differentiates and steps.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn, tensor
from torch.utils.data import DataLoader

from dpvd.errors import DpvdError, in_unit_interval, positive
from dpvd.grads import Clipping
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee
from dpvd.ranks import processes_around
from dpvd.training import PrivateStep, planned_like

try:
    from skorch import NeuralNet, NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
    from skorch.callbacks import GradientNormClipping, LRScheduler
    from skorch.dataset import unpack_data
except ImportError as problem:
    raise ImportError('dpvd.skorch needs skorch 1.0 or later: pip install "dpvd[skorch]"') from (
        problem
    )

__all__ = ["PrivateBinaryClassifier", "PrivateClassifier", "PrivateNet", "PrivateRegressor"]

log = logging.getLogger("dpvd")


class PrivateNet(NeuralNet):
    """What makes a net of skorch private, within (ε, δ): named before the net's own class.

        class Mine(PrivateNet, MyNet): ...

    Guarantees:
        Training batches are drawn by the plan; each takes one private step, and each step is
        charged. No step goes beyond the plan's, however often ``partial_fit`` is called.
        History and callbacks get no training losses, predictions or batch sizes, but "epsilon" at
        the end of an epoch; validation scores pass.
        Pickled nets and saved parameters keep the account.

    Args:
        module: as of skorch, and so are all others that are not named here.
        epsilon: ε that all training of this net may spend.
        delta: δ, below one over the number of examples.
        clip_norm: the bound on each example's gradient.
        epochs: passes over the data that the noise is chosen for; ``max_epochs`` if not given.
        micro_batch: at most this many examples go through the module at once.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept at once.
        accountant: by which the noise is chosen.
        train_split: where validation data come from, apart from the training data:
            ``skorch.helper.predefined_split(dataset)``. Scores on them are exact.

    Attributes:
        plan_: what is done to the data; None before training.
        step_: the private step; None before training.
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        epsilon: float,
        delta: float,
        clip_norm: float = 1.0,
        epochs: float | None = None,
        micro_batch: int | None = None,
        kept_mb: float = 64.0,
        accountant: AccountantName | str = AccountantName.PLD,
        train_split: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(module, *args, train_split=train_split, **options)
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.epochs = epochs
        self.micro_batch = micro_batch
        self.kept_mb = kept_mb
        self.accountant = accountant
        self.plan_: PrivacyPlan | None = None
        self.step_: PrivateStep | None = None
        self._saved: Mapping[str, Any] | None = None  # of a step that was pickled

    def guarantee(self) -> Guarantee:
        """The privacy statement for all steps charged so far."""
        if self.plan_ is None:
            raise DpvdError("nothing was trained yet: call fit(X, y) first")
        return self._step().guarantee(self.delta, AccountantName.parse(self.accountant))

    # Before the first batch.

    def initialize(self) -> Any:
        """As of skorch: new weights, and so a new account."""
        positive(epsilon=self.epsilon, clip_norm=self.clip_norm)
        in_unit_interval(delta=self.delta)
        self.plan_ = None
        self.step_ = None
        self._saved = None
        return super().initialize()

    def initialize_criterion(self) -> Any:
        """As of skorch, with one value per example where the criterion is one of torch's."""
        super().initialize_criterion()
        criterion = self.criterion_
        asked = getattr(self, "criterion__reduction", "none")
        if asked != "none":
            raise DpvdError(
                f"criterion__reduction={asked!r} makes one number of the whole batch, which hides"
                " what each example contributes: leave it out"
            )
        if hasattr(criterion, "reduction"):
            criterion.reduction = "none"
        return self

    def get_split_datasets(self, X: Any, y: Any = None, **options: Any) -> Any:
        """As of skorch; all rows of X are for training."""
        train, valid = super().get_split_datasets(X, y, **options)
        rows = len(self.get_dataset(X, y))
        if len(train) != rows:
            raise DpvdError(
                f"train_split holds {rows - len(train)} of {rows} rows out: which ones depends on"
                " the others, and scores on them are exact figures that the account does not cover."
                " Hold rows out yourself, whose figures may be seen, and give"
                " train_split=skorch.helper.predefined_split(dataset)"
            )
        return train, valid

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **options: Any) -> Any:
        """As of skorch, and no longer than the plan has steps."""
        self._check()
        self._begin(self.get_dataset(X, y))
        wanted = self.max_epochs if epochs is None else epochs
        left = self._epochs_left()
        if left == 0:
            log.warning("the budget is spent: the net stays as it is")
        return super().fit_loop(X, y, epochs=min(wanted, left), **options)

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """As of skorch; for training, the plan's draws."""
        iterator = super().get_iterator(dataset, training=training)
        if not training:
            return iterator
        assert self.plan_ is not None
        return planned_like(_loader(iterator), self.plan_, self._step().position)

    def _begin(self, dataset: Any) -> None:
        """Make the plan at the first fit; later ones go on with it."""
        loader = _loader(super().get_iterator(dataset, training=True))
        if self.plan_ is None:
            self.plan_ = self._plan(loader).calibrate(self.epsilon, self.delta, self.accountant)
        known = self.plan_
        planned = (known.examples, known.batch_size)
        found = (len(dataset), loader.batch_size)
        if found != planned:
            raise DpvdError(
                f"the budget was planned for batches of {known.batch_size} of {known.examples}"
                f" examples, got {found[1]} of {found[0]}: go on with the same data, or begin anew"
                " by fit"
            )

    def _plan(self, loader: DataLoader[Any]) -> PrivacyPlan:
        assert loader.batch_size is not None
        return PrivacyPlan(
            examples=len(loader.dataset),  # type: ignore[arg-type]
            batch_size=loader.batch_size,
            epochs=self.max_epochs if self.epochs is None else self.epochs,
            clipping=Clipping("flat", clip_norm=self.clip_norm),
        )

    def _step(self) -> PrivateStep:
        """The step of module and optimizer as they are now, with what was charged before."""
        assert self.plan_ is not None
        known = self.step_
        is_same = known is not None and known.model is self.module_
        if known is not None and is_same and known.optimizer is self.optimizer_:
            return known
        self._set_training(True)
        self.step_ = PrivateStep(
            self.module_,
            _Losses(self),
            self.plan_,
            self.optimizer_,
            micro_batch=self.micro_batch,
            kept_mb=self.kept_mb,
        )
        saved = known.state_dict() if known is not None and is_same else self._saved
        if saved is not None:
            self.step_.load_state_dict(saved)
            self._saved = None
        return self.step_

    def _epochs_left(self) -> int:
        plan = self.plan_
        assert plan is not None
        position = self._step().position
        if position >= plan.steps:
            return 0
        in_one_epoch = plan.examples / plan.batch_size
        begun = math.floor(position / in_one_epoch + 1e-9)
        return math.ceil(plan.steps / in_one_epoch - 1e-9) - begun

    # While training.

    def train_step(self, batch: Any, **options: Any) -> dict[str, Any]:
        """One private step; what it returns tells nothing of the data."""
        if options:
            raise DpvdError(
                f"fit was given {', '.join(options)}, which private training does not pass on to"
                " the module: put it into X, a dictionary with one row for each example"
            )
        self._set_training(True)
        self._step()(batch)
        self.optimizer_.zero_grad()
        return {"loss": tensor(0.0), "y_pred": None}

    def validation_step(self, batch: Any, **options: Any) -> Any:
        """As of skorch: the mean loss of validation data."""
        step = super().validation_step(batch, **options)
        step["loss"] = step["loss"].mean()
        return step

    def run_single_epoch(
        self, iterator: Any, training: bool, prefix: str, step_fn: Any, **options: Any
    ) -> None:
        """As of skorch; of training the history keeps only the number of batches."""
        if not training:
            super().run_single_epoch(iterator, training, prefix, step_fn, **options)
            return
        if self._step().charged == 0:
            self._step().accept_weights()  # callbacks have begun with other weights, or frozen some
        batches = 0
        for batch in iterator:
            self.notify("on_batch_begin", batch=batch, training=True)
            step = step_fn(batch, **options)
            self.notify("on_batch_end", batch=batch, training=True, **step)
            batches += 1
        self.history.record(prefix + "_batch_count", batches)

    def on_epoch_end(self, net: Any, *args: Any, **options: Any) -> None:
        """As of skorch; the history gets ε."""
        super().on_epoch_end(net, *args, **options)
        self.history.record("epsilon", self.guarantee().epsilon)

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        named = super()._default_callbacks
        return [(name, callback) for name, callback in named if name != "train_loss"]

    def _check(self) -> None:
        """Raise for what would void the account, or show training data."""
        processes = processes_around()
        if processes > 1:
            raise DpvdError(
                f"{processes} processes: a net of skorch trains in one. Train in one process, or"
                " write the loop yourself with dpvd.PrivateStep"
            )
        if self._optimizers != ["optimizer"]:
            raise DpvdError(
                f"a private fit has one optimizer, got {', '.join(self._optimizers)}: take one,"
                " with parameter groups if need be"
            )
        for name, callback in self.callbacks_:
            if isinstance(callback, GradientNormClipping):
                raise DpvdError(
                    f"callback {name!r} clips the mean of a batch, which bounds no example: leave"
                    " it out, and give clip_norm"
                )
            if getattr(callback, "on_train", False):
                raise DpvdError(
                    f"callback {name!r} scores training data, outside the account: score validation"
                    " data, on_train=False"
                )
            if _follows_training(callback):
                raise DpvdError(
                    f"callback {name!r} monitors {callback.monitor!r}, which is not recorded: give"
                    " validation data by train_split, and monitor='valid_loss'"
                )

    # Files.

    def notify(self, method_name: str, **options: Any) -> None:
        """As of skorch."""
        super().notify(method_name, **options)
        if method_name != "on_train_end" or self.step_ is None:
            return
        if any(getattr(callback, "load_best", False) for _, callback in self.callbacks_):
            self.step_.accept_weights()  # those of an earlier step, chosen by validation

    def load_params(self, *args: Any, use_safetensors: bool = False, **options: Any) -> None:
        """As of skorch; parameters bring their account along."""
        if use_safetensors and self.plan_ is None:
            raise DpvdError(
                "safetensors files hold no account: how many private steps the weights have taken"
                " is not known. Save them with use_safetensors=False, or pickle the net"
            )
        super().load_params(*args, use_safetensors=use_safetensors, **options)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if self.step_ is not None:
            state["_saved"] = self.step_.state_dict()
        state["step_"] = None
        return state


class PrivateClassifier(PrivateNet, NeuralNetClassifier):
    """``skorch.NeuralNetClassifier`` with a budget: see `PrivateNet` for what is added.

        net = PrivateClassifier(module, epsilon=3, delta=1e-5, max_epochs=10)
        net.fit(X, y)
        print(net.guarantee().sentence())

    The classes are those that occur in y, which counts as public: give ``classes`` if it is not.
    """


class PrivateBinaryClassifier(PrivateNet, NeuralNetBinaryClassifier):
    """``skorch.NeuralNetBinaryClassifier`` with a budget: see `PrivateNet`."""


class PrivateRegressor(PrivateNet, NeuralNetRegressor):
    """``skorch.NeuralNetRegressor`` with a budget: see `PrivateNet`."""


class _Losses:
    """The criterion of a net as a loss: ``loss_fn(module, X, y)``, one value per example."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def __call__(self, module: nn.Module, *batch: Any) -> Tensor:
        x, y = unpack_data(batch)
        outputs = self.net.infer(x)  # by the module, in which engines may have put other weights
        losses: Tensor = self.net.get_loss(outputs, y, X=x, training=True)
        if losses.dim() <= 1:
            return losses
        _refuse_all_pairs(outputs, y)
        return losses.flatten(1).mean(1)


def _loader(iterator: Any) -> DataLoader[Any]:
    if not isinstance(iterator, DataLoader):
        raise DpvdError(
            f"iterator_train must be a torch DataLoader, got {type(iterator).__name__}: the plan"
            " draws the batches, from the data set of one"
        )
    return iterator


def _refuse_all_pairs(outputs: Any, targets: Any) -> None:
    """Raise where torch would compare every output with every target: [B, 1] with [B]."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    if targets.is_floating_point() and targets.dim() < outputs.dim():
        raise DpvdError(
            f"the module returns {outputs.dim()} dimensions and y has {targets.dim()}, so that"
            " every output would be compared with every target: give y.reshape(-1, 1)"
        )


def _follows_training(callback: Any) -> bool:
    """Whether a callback decides by a figure of the training data."""
    monitor = getattr(callback, "monitor", None)
    if not isinstance(monitor, str) or not monitor.startswith("train_"):
        return False
    # A scheduler has a monitor by default, which this one alone reads.
    return not isinstance(callback, LRScheduler) or "Plateau" in str(callback.policy)
