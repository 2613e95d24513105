"""The private step: `__call__` and `_private_step` are all of it, on one screen."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from dp_accounting import DpEvent
from torch import Tensor, nn

from dpvd.errors import DpvdError, choice
from dpvd.grads import (
    Batch,
    ClippedGradients,
    GradientClipper,
    Grouping,
    Isolation,
    Jacobian,
    LossFn,
    NotIsolated,
    as_batch,
    batch_size,
    losses_of,
    micro_batches,
    modules_of,
)
from dpvd.mechanisms import (
    BitSource,
    CorrelatedNoise,
    Draw,
    GridNoise,
    SeededBits,
    check_draw,
    check_noise,
    noise_on_grid,
    release_sums,
)
from dpvd.nn import KLGradient, kl_gradients
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, Ledger
from dpvd.ranks import Ranks, refuse_untold_group
from dpvd.training.account import Account
from dpvd.training.checks import (
    BatchOrigin,
    check_correlated,
    check_declared,
    check_steps_on_gradients,
    check_tied,
)
from dpvd.training.group import check_ranks, check_same_weights, refuse_sharded
from dpvd.training.quantile import QuantileCount
from dpvd.training.update import Update, check_parameters, tell_noise

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Earlier", "PrivateStep"]

log = logging.getLogger("dpvd")


class Earlier(StrEnum):
    """What to make of private steps that a model remembers from before."""

    CHARGED = "charged"
    """They were on the same data: the statement covers them too."""
    OTHER_DATA = "other-data"
    """The caller declares that they were on other people's data; the statement says so."""


class PrivateStep:
    """Takes the steps of a plan, and no more than the plan has.

    With any torch optimizer, one call is

        G  = Σ_i clip(∇ loss_i) + N(0, (zΔ)²)    the noisy sum: all that is ever learnt of the batch
        g  = G / S + w ∇KL / N                   S: the plan's batch size; N: its number of examples
        optimizer step on g

    which with plain SGD is the sound form of Algorithm 1: φ ← φ - η g carries noise of standard
    deviation ζ = ηzΔ/S, and layers whose scale is tied sample their weights with that same ζ in the
    forward pass.

    Guarantees:
        A step is charged, in the ledger if there is one, before its noisy result is used; a call
        that is refused, or fails before that, costs nothing and changes nothing.
        Batches that the plan did not draw, a draw of another plan, and a draw that was used before
        are refused.
        The noise is scaled by the sensitivity of the clipping that ran.
        The sum is divided by the plan's batch size, not by the number of examples drawn.
        The KL term, which does not depend on the data, is added apart from both sum and noise and
        is not clipped.
        Steps that were charged to the model before, by whatever object, count.

    Args:
        model: the network; variational layers are welcome, not needed.
        loss_fn: one value per example: ``loss_fn(model, *batch)`` for a batch that is a tuple or a
            list, ``loss_fn(model, batch)`` for anything else, such as a dictionary; or a criterion
            of torch with reduction="none", which gets ``model(x)`` and ``y``.
        plan: what may be done to the data; batches must come from ``plan.batches`` or
            ``plan.loader``.
        optimizer: any torch optimizer that holds exactly the trainable parameters of the model.
        kl_weight: w as a function of the step; None trains without the KL term.
        ledger: where steps are charged; in memory only if None.
        noise: stream of random bits; the plan's own if None.
        micro_batch: at most this many examples go through the model at once, to limit memory; None
            takes batches as a whole. The noise is added once for the whole batch in either case:
            the guarantee does not know of it.
        isolation: how it is made sure that no example reaches another's gradient.
        kept_mb: at most this much of per-example gradients, in 10⁶ bytes, is kept in memory between
            their norms and their sum; what does not fit is computed again.
        batches: where batches come from.
        earlier: what to make of private steps that the model remembers from before.
        group: of the processes that train together, such as ``torch.distributed.group.WORLD``. All
            of them start from the same weights, take their batches from
            ``plan.batches(..., group=group)`` and end with the same weights; the first of them
            has the ledger.

    Raises:
        DpvdError: if the model cannot be trained privately, the optimizer holds other parameters,
            the ledger is of another plan, the noise is not of the plan's kind, several processes
            train and no group was given, or they disagree about what to train.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn | nn.Module,
        plan: PrivacyPlan,
        optimizer: torch.optim.Optimizer,
        *,
        kl_weight: Callable[[int], float] | None = None,
        ledger: Ledger | None = None,
        noise: BitSource | None = None,
        micro_batch: int | None = None,
        isolation: Isolation | str = Isolation.CHECKED,
        kept_mb: float = 64.0,
        batches: BatchOrigin | str = BatchOrigin.PLANNED,
        earlier: Earlier | str = Earlier.CHARGED,
        group: "ProcessGroup | None" = None,
    ) -> None:
        self._ranks = Ranks(group)
        refuse_untold_group(self._ranks)
        with self._ranks.together():
            refuse_sharded(model)
            self._batches = choice(batches, BatchOrigin, "batches")
            other_data = choice(earlier, Earlier, "earlier") is Earlier.OTHER_DATA
            self._plan = plan
            self._noise = plan.bits("noise") if noise is None else noise
            plan.check_source(self._noise, "noise")
            if ledger is not None and ledger.fingerprint != plan.fingerprint:
                raise DpvdError(
                    "the ledger belongs to another plan: open it with the plan it was started with"
                )
            self._model = model
            self._optimizer = optimizer
            self.kl_weight = kl_weight
            self.clipper = GradientClipper(
                model,
                loss_fn,
                clipping=plan.clipping,
                micro_batch=micro_batch,
                isolation=isolation,
                kept_mb=kept_mb,
            )
            check_steps_on_gradients(optimizer)
            check_parameters(optimizer, self.parameters)
            self._tied = check_tied(model, optimizer)
        check_ranks(self._ranks, model, plan, batches=self._batches, ledger=ledger)
        is_correlated = plan.private and plan.bands > 1
        self._correlated = CorrelatedNoise(plan.bands) if is_correlated else None
        if self._correlated is not None:
            check_correlated(bool(self._tied), optimizer, self._batches)
        release = release_sums if self._correlated is None else self._correlated.release
        self.update = Update(optimizer, plan.batch_size, self._ranks, release)
        if not model.training:
            log.warning(
                "the model is in eval mode: dropout is off, and so it will be trained; call"
                " model.train()"
            )
        is_adaptive = plan.private and plan.clipping.is_adaptive
        self._quantile = QuantileCount(plan) if is_adaptive else None
        self._ledger = ledger
        self._taken = 0  # steps of this object
        self._prepaid = 0
        self.zeta = 0.0  # the scale that tied layers had in the last step
        # Writing the ledger at every step would cost time; a crash loses at most one block, a
        # hundredth of the run. Whole cycles are paid for: what comes after a crash begins with one.
        has_ledger = bool(self._ranks.largest(int(ledger is not None)))
        block = max(1, plan.steps // 100) if has_ledger else 1
        self._block = -(-block // plan.bands) * plan.bands
        with self._ranks.together():
            self._account = Account(model, plan, beside=self._beside(), other_data=other_data)
        self._catch_up()
        if self._account.changed_before():
            self._note_changes()
        self.accept_weights()

    def __call__(self, batch: Any) -> None:
        """Take one step on a batch drawn by ``plan.batches`` or ``plan.loader``.

        Raises:
            DpvdError: if the plan's steps are used up, the batch is not the next of the plan's, or
                something in model, loss or optimizer is not as it must be; nothing was charged and
                nothing has changed then.
        """
        refuse_untold_group(self._ranks)
        with self._ranks.together():
            if self._prepaid == 0 and self.charged >= self.plan.steps:
                raise DpvdError(
                    f"the plan's {self.plan.steps} steps are used up: one more would pass its"
                    " budget"
                )
            examples = as_batch(batch)
            draw = self._draw_of(batch, batch_size(examples))
            # Asked once in a step: it looks at every module.
            grouping = self.clipper.current_grouping() if self.plan.private else None
            parameters = self.parameters if grouping is None else grouping.parameters
            check_parameters(self.optimizer, parameters)
            self._notice_changes()
        if grouping is None:
            self._ordinary_step(examples, draw, parameters)
        else:
            self._private_step(examples, draw, grouping)
        self._taken += 1
        if self._is_looked_at():
            check_same_weights(self._ranks, self._model)
        self._account.accept_weights(closely=self._is_looked_at())
        self._account.note_step(drawn=draw is not None, isolation=self._isolation())

    def _private_step(self, batch: Batch, draw: Draw | None, grouping: Grouping) -> None:
        noise = self._grid_noise(grouping)
        check_noise(noise, grouping.parameters)
        if self._correlated is not None:
            assert draw is not None  # declared batches were refused
            self._correlated.begin(draw, noise, grouping.parameters)
        self._tie_scale(noise.std)
        try:
            with self._ranks.together():
                self.update.begin(grouping.parameters)
                self._begin_count()
                padding = None if draw is None else draw.padding
                for part in self.clipper(batch, self.position + 1, grouping, padding):
                    self.update.add(part)
                    self._count(part)
                    del part  # free its memory before the next one is made
                kl_by_name = self._kl_gradients()
            with self._ranks.together():  # no process goes on before the first one's ledger
                self._charge(draw)
            self.update.release(noise, self._noise, kl_by_name)
            self._adapt_clip_norm()
        except BaseException as problem:
            self.update.discard()  # no sum without noise stays in memory
            self._begin_count()
            if isinstance(problem, NotIsolated) and self._taken:
                self._account.note_not_covered(
                    "the steps before a check that found examples not isolated"
                )
            if self.clipper.spoiled:
                self._account.note_not_covered("buffers that a batch was found to have changed")
            raise

    def _grid_noise(self, grouping: Grouping) -> GridNoise:
        """Noise of standard deviation zΔ, enlarged for rounding; Δ of the clipping that runs."""
        clipping = self.clipper.clipping  # which might not be the plan's any more
        sensitivity = clipping.sensitivity(self.plan.relation, grouping.count)
        entries = sum(parameter.numel() for parameter in grouping.parameters.values())
        return noise_on_grid(sensitivity, self.plan.noise_std(sensitivity), entries)

    def gradient_noise(self) -> float:
        """Standard deviation zΔ/S of the privacy noise on each entry of a step's mean gradient."""
        if not self.plan.private:
            return 0.0
        return self._grid_noise(self.clipper.current_grouping()).std / self.plan.batch_size

    # Adaptive clipping; nothing happens here under any other.

    def _begin_count(self) -> None:
        if self._quantile is not None:
            self._quantile.begin()

    def _count(self, part: ClippedGradients) -> None:
        if self._quantile is not None:
            self._quantile.add(part)

    def _adapt_clip_norm(self) -> None:
        """Clip the next step's gradients to the norm that the noisy count of this step gives."""
        if self._quantile is not None:
            self.clipper.clipping = self._quantile.release(self.clipper.clipping, self._noise)

    # What is bound to this object, and may be looked at.

    @property
    def model(self) -> nn.Module:
        return self._model

    @property
    def loss_fn(self) -> LossFn:
        return self.clipper.loss_fn

    @property
    def micro_batch(self) -> int | None:
        """At most this many examples go through the model at once; set on the clipper."""
        return self.clipper.micro_batch

    @property
    def kept_mb(self) -> float:
        """At most this much of per-example gradients is kept, in 10⁶ bytes."""
        return self.clipper.kept_mb

    @property
    def plan(self) -> PrivacyPlan:
        return self._plan

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._optimizer

    @property
    def noise(self) -> BitSource:
        return self._noise

    @property
    def ledger(self) -> Ledger | None:
        return self._ledger

    @property
    def clip_norm(self) -> float:
        """The clip norm of the next step; under adaptive clipping it changes, by private counts."""
        return self.clipper.clipping.clip_norm

    @property
    def taken(self) -> int:
        """Steps of this run that moved the weights: this object's, and those it took up."""
        return self._taken

    @property
    def charged(self) -> int:
        """Steps of the plan that are paid for: never fewer than were taken."""
        return self._account.charged

    @property
    def position(self) -> int:
        """Number of the plan's steps consumed: taken, or charged to an earlier start and lost."""
        return self.charged - self._prepaid

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name, as the model is now."""
        if self.plan.private:
            return self.clipper.current_grouping().parameters
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def guarantee(self, delta: float, accountant: AccountantName | str = "pld") -> Guarantee:
        """The privacy statement for all steps ever charged to this model on this data."""
        self._notice_changes()
        self._account.take_up(self._beside())
        return self._account.guarantee(delta, accountant, self._noise.description)

    def event(self, steps: int) -> DpEvent:
        """What is released of the data after so many steps, earlier charges to the model included.

        Raises:
            DpvdError: if earlier runs were accounted under another relation.
        """
        return self._account.event(steps)

    def accept_weights(self) -> None:
        """Declare that what changed the weights since the last step is no new use of the data.

        Averages of noisy weights are such a change. Without this call the statement says that other
        code changed them.
        """
        self._account.accept_weights(closely=True)

    # How it is written down.

    def state_dict(self) -> dict[str, Any]:
        """What a later object needs to go on: plain data, saved with model and optimizer."""
        position = self._noise.position if isinstance(self._noise, SeededBits) else None
        return {
            "account": self._account.to_dict(),
            "taken": self._taken,
            "noise_position": position,
            "clip_norm": self.clip_norm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where :meth:`state_dict` was written.

        The larger of the counts wins: that of the state, of the ledger, or of the model.

        Raises:
            DpvdError: if the state is of another plan.
        """
        self._account.join(state["account"])
        self._taken = int(state["taken"])
        if isinstance(self._noise, SeededBits) and state["noise_position"] is not None:
            self._noise.position = state["noise_position"]
        if self._quantile is not None:
            self.clipper.clipping = replace(self.clipper.clipping, clip_norm=state["clip_norm"])
        self._catch_up()
        self.accept_weights()

    # The parts of a step.

    def _notice_changes(self) -> None:
        """Note in the account if other code than this object's steps has written to the weights."""
        if self._account.weights_changed():
            self._note_changes()
            self.accept_weights()

    def _note_changes(self) -> None:
        if self._account.note_not_covered(
            "changes that other code made to the weights between the steps"
        ):
            log.warning(
                "the weights were changed between steps by other code, such as an ordinary"
                " optimizer step left in the loop: the statement will say that this is not covered;"
                " see PrivateStep.accept_weights"
            )

    def _is_looked_at(self) -> bool:
        """Whether the weights' values are compared after this step, not only counts of writes.

        At steps 1, 2, 4, ..., at each 256th and at the last.
        """
        position = self.position
        is_power_of_two = position & (position - 1) == 0
        return is_power_of_two or position % 256 == 0 or position == self.plan.steps

    def _beside(self) -> list[nn.Module]:
        """The modules that the loss holds."""
        return [module for _, module in modules_of(self.loss_fn)]

    def _catch_up(self) -> None:
        """Let ledger and account agree: each may have missed what the other knows."""
        known = 0 if self._ledger is None else self._ledger.charged
        self._account.charge_up_to(self._ranks.largest(max(known, self.charged)))
        behind = 0 if self._ledger is None else self.charged - self._ledger.charged
        if behind > 0:
            log.warning(
                "the ledger lacks %d steps that were charged to this model: they are charged to"
                " it now",
                behind,
            )
        with self._ranks.together():
            if self._ledger is not None and behind > 0:
                self._ledger.charge(behind)

    def _charge(self, draw: Draw | None) -> None:
        """Pay for this step; with a ledger, for a block of steps, on disk before this returns."""
        if self._prepaid == 0:
            block = min(self._block, self.plan.steps - self.charged)
            if self._ledger is not None:
                self._ledger.charge(block)
            self._account.charge(block)
            self._prepaid = block
        self._prepaid -= 1
        if draw is None:
            self._account.note_not_covered(
                "how batches were drawn, which the caller declared and nobody saw"
            )
        else:
            draw.used = True

    def _isolation(self) -> str:
        """Why no example reached into another's gradient; empty without clipping."""
        if self.plan.private:
            return self.clipper.describe_isolation()
        return ""

    def _draw_of(self, batch: Any, count: int) -> Draw | None:
        """The draw that a batch is; None where the caller declares the batches."""
        if self._batches is BatchOrigin.PLANNED:
            ranks = self._ranks
            return check_draw(
                batch,
                count,
                self.plan.fingerprint,
                self.position,
                rank=ranks.rank,
                ranks=ranks.size,
            )
        check_declared(count, self.plan)
        return None

    def _tie_scale(self, noise_std: float) -> None:
        """Set the dropout noise of tied layers to ζ = ηzΔ/S, the noise of this step's update."""
        if self._tied:
            (group,) = self.optimizer.param_groups
            self.zeta = group["lr"] * noise_std / self.plan.batch_size
            for layer in self._tied:
                layer.set_scale(self.zeta)

    def _ordinary_step(
        self, batch: Batch, draw: Draw | None, parameters: dict[str, nn.Parameter]
    ) -> None:
        """Without noise there is nothing to clip for: the summed gradient over the batch size."""
        self._tie_scale(0.0)
        totals = dict[str, Tensor]()
        with self._ranks.together():
            # Of several processes one adds it: their sums are added up.
            kl_by_name = self._kl_gradients() if self._ranks.is_first else {}
            for name, kl_gradient in kl_by_name.items():
                totals[name] = torch.zeros_like(parameters[name])
                kl_gradient.add_to(totals[name], 1.0)
            for part in micro_batches(batch, self.micro_batch):
                loss = losses_of(self.model, self.loss_fn, part).sum() / self.plan.batch_size
                found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
                for name, gradient in zip(parameters, found, strict=True):
                    totals[name] = totals[name] + gradient if name in totals else gradient
        for name in parameters:
            self._ranks.add_up(totals[name])
        with self._ranks.together():
            self._charge(draw)
        for name, parameter in parameters.items():
            parameter.grad = totals[name]
        tell_noise(self.optimizer, parameters, 0.0, Jacobian())
        self.optimizer.step()

    def _kl_gradients(self) -> dict[str, KLGradient]:
        """w ∇KL / N at the present parameters, by name; it depends on no data."""
        weight = 0.0 if self.kl_weight is None else self.kl_weight(self.position)
        is_point = self._tied and not self.plan.private  # a point has no density against a prior
        if weight == 0 or is_point:
            return {}
        return kl_gradients(self.model, weight / self.plan.examples)
