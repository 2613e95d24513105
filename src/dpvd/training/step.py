"""One private step, on one screen."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.grads import GradientClipper, LossFn, micro_batches
from dpvd.mechanisms import BitSource, GridNoise, noise_on_grid
from dpvd.nn import AdditiveNoise, KLPull, kl_pulls, tied_layers
from dpvd.plan import PrivacyPlan
from dpvd.privacy import AccountantName, Guarantee, Ledger
from dpvd.training.update import Update

__all__ = ["PrivateStep"]


class PrivateStep:
    """Takes the steps of a plan, and no more than the plan has.

    With any torch optimizer, one call is

        G  = Σ_i clip(∇ loss_i) + N(0, (zΔ)²)           the noisy sum: all that is ever learnt of the batch
        g  = G / S + w ∇KL / N                          S: the plan's batch size; N: its number of examples
        optimizer step on g

    which with plain SGD is the sound form of Algorithm 1: φ ← φ - η g carries noise of standard deviation
    ζ = ηzΔ/S, and layers whose scale is tied sample their weights with that same ζ in the forward pass.

    Guarantees:
        A step is charged, in the ledger if there is one, before its batch is touched.
        The noise is scaled by the sensitivity of the clipping that ran.
        The sum is divided by the plan's batch size, not by the number of examples drawn.
        The KL term, which does not depend on the data, is added apart from both sum and noise and is not clipped.

    Args:
        model: the network; variational layers are welcome, not needed.
        loss_fn: ``loss_fn(model, *batch)``, one value per example.
        plan: what may be done to the data; batches must come from ``plan.batches``.
        optimizer: any torch optimizer over the model's parameters.
        kl_weight: w as a function of the step; None leaves the KL term out.
        ledger: where steps are charged; in memory only if None.
        noise: stream of random bits; the plan's own if None.
        micro_batch: at most this many examples go through the model at once, to limit memory; None takes batches as a
            whole. The noise is added once for the whole batch in either case: the guarantee does not know of it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        plan: PrivacyPlan,
        optimizer: torch.optim.Optimizer,
        *,
        kl_weight: Callable[[int], float] | None = None,
        ledger: Ledger | None = None,
        noise: BitSource | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.model, self.loss_fn, self.plan, self.optimizer = model, loss_fn, plan, optimizer
        self.kl_weight = kl_weight
        self.ledger = ledger
        self.micro_batch = micro_batch
        self.noise = plan.bits("noise") if noise is None else noise
        self.taken = 0  # optimizer steps
        self.charged = 0 if ledger is None else ledger.charged  # steps paid for: never fewer than were taken
        self.zeta = 0.0  # the scale that tied layers had in the last step
        self._prepaid = 0
        # Writing the ledger at every step would cost time; a crash loses at most one block, a hundredth of the run.
        self._block = 1 if ledger is None else max(1, plan.steps // 100)
        self.clipper = GradientClipper(model, loss_fn, clipping=plan.clipping, micro_batch=micro_batch)
        self.update = Update(optimizer, plan.batch_size)
        self._tied = self._check_tied()

    def __call__(self, batch: Any) -> None:
        """Take one step on a batch drawn by ``plan.batches``.

        Raises:
            DpvdError: if the plan's steps are used up; nothing of the batch has been used then.
        """
        self._charge()
        if self.plan.private:
            noise = self._grid_noise()
            self._tie_scale(noise.std)
            self._private_step(batch, noise)
        else:
            self._tie_scale(0.0)
            self._ordinary_step(batch)
        self.taken += 1

    def _private_step(self, batch: Any, noise: GridNoise) -> None:
        self.update.begin(self.clipper.grouping.parameters)
        try:
            for part in self.clipper(batch):
                self.update.add(part)
                jacobian = part.jacobian
                del part  # let go of it before the next one is made
            self.update.release(noise, self.noise, jacobian, self._kl_pulls())
        except BaseException:  # an interrupt too must leave no sum without noise behind
            self.update.discard()
            raise

    def _grid_noise(self) -> GridNoise:
        """Noise of standard deviation zΔ, and what rounding takes more; Δ is that of the clipping that runs."""
        sensitivity = self.clipper.sensitivity(self.plan.relation)
        parameters = self.clipper.grouping.parameters
        entries = sum(parameter.numel() for parameter in parameters.values())
        return noise_on_grid(sensitivity, self.plan.noise_std(sensitivity), entries)

    @property
    def position(self) -> int:
        """How many of the plan's steps are gone: taken, or charged to an earlier start and lost."""
        return self.charged - self._prepaid

    def guarantee(self, delta: float, accountant: AccountantName | str = "pld") -> Guarantee:
        """The privacy statement for the steps charged so far."""
        return self.plan.guarantee(delta, accountant, steps=self.charged)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name, as the model is now."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _charge(self) -> None:
        """Pay for this step; with a ledger, for a block of steps at once, on disk before this returns."""
        if self._prepaid == 0:
            block = min(self._block, self.plan.steps - self.charged)
            if block <= 0:
                raise DpvdError(f"the plan's {self.plan.steps} steps are used up: one more would pass its budget")
            if self.ledger is not None:
                self.ledger.charge(block)
            self.charged += block
            self._prepaid = block
        self._prepaid -= 1

    def _tie_scale(self, noise_std: float) -> None:
        """ζ = ηzΔ/S, the noise that this step's update will carry, becomes the dropout noise of the forward pass."""
        if self._tied:
            (group,) = self.optimizer.param_groups
            self.zeta = group["lr"] * noise_std / self.plan.batch_size
            for layer in self._tied:
                layer.set_scale(self.zeta)

    def _ordinary_step(self, batch: Any) -> None:
        """Without noise there is nothing to clip for: the gradient of the summed loss over the batch size."""
        parameters, totals = self.parameters, dict[str, Tensor]()
        for name, pull in self._kl_pulls().items():
            totals[name] = torch.zeros_like(parameters[name])
            pull.add_to(totals[name], 1.0)
        for part in micro_batches(batch, self.micro_batch):
            loss = self.loss_fn(self.model, *part).sum() / self.plan.batch_size
            found = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
            for name, gradient in zip(parameters, found, strict=True):
                totals[name] = totals[name] + gradient if name in totals else gradient
        for name, parameter in parameters.items():
            parameter.grad = totals[name]
        self.optimizer.step()

    def _kl_pulls(self) -> dict[str, KLPull]:
        """w ∇KL / N at the present parameters, by name; it depends on no data."""
        weight = 0.0 if self.kl_weight is None else self.kl_weight(self.position - 1)
        if weight == 0 or (self._tied and not self.plan.private):  # a point has no density against a prior
            return {}
        return kl_pulls(self.model, weight / self.plan.examples)

    def _check_tied(self) -> list[AdditiveNoise]:
        """The layers whose scale follows the privacy noise; the optimizer must then pass it on as it is."""
        tied = tied_layers(self.model)
        if not tied:
            return []
        if not isinstance(self.optimizer, torch.optim.SGD) or len(self.optimizer.param_groups) != 1:
            raise DpvdError(
                "the model ties its dropout noise to the privacy noise, which is known only for torch.optim.SGD with "
                f"one parameter group (momentum is fine), not for {type(self.optimizer).__name__} with "
                f"{len(self.optimizer.param_groups)}. Use that, or learned scales"
            )
        return tied
