"""Adam whose second moment is corrected for the privacy noise in it."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, non_negative, positive

__all__ = ["AdamBC", "NoiseAware"]


@runtime_checkable
class NoiseAware(Protocol):
    """An optimizer that wants to know how noisy the gradients of the coming step are."""

    def expect_noise(self, stds: Mapping[nn.Parameter, float | Tensor]) -> None:
        """Take the standard deviation of the noise in each parameter's ``.grad``."""
        ...


class AdamBC(torch.optim.Optimizer):
    """Adam without the bias that privacy noise brings into its second moment.

    A noisy gradient g + n has E[(g + n)²] = g² + s², s the standard deviation of the noise. Where s
    is larger than g, which is the rule in private training, Adam divides all coordinates by about
    s and is little more than SGD with momentum. s is public, so it can be subtracted:

        m ← β₁m + (1 - β₁)g,   v ← β₂v + (1 - β₂)g²,   u ← β₂u + (1 - β₂)s²
        θ ← θ - η m̂ / √max(v̂ - û, φû),   hats: over 1 - βᵗ

    `PrivateStep` tells s before each step, so u follows it when the clip norm, or the unit of a
    learned scale, changes. All of this happens after the noise: it costs no privacy.

    Guarantees: without noise (s = 0) the step is that of ``torch.optim.AdamW`` with ε outside of
    the root.

    Edge cases: of a coordinate without signal, v̂ - û is a small number of either sign; the floor
    keeps it from being divided by. The paper's floor γ' is an absolute number to be tuned; a
    multiple of the noise's own variance is known in advance.

    Args:
        params: as for every torch optimizer; groups may have options of their own.
        lr: η.
        betas: β₁ and β₂.
        floor: φ, the least second moment that is divided by, as a multiple of the noise's variance.
        eps: added to the root: what is divided by where there is neither noise nor gradient.
        weight_decay: decoupled, as in AdamW: θ is multiplied by 1 - ηλ.

    Raises:
        DpvdError: if a number is out of range, or ``step`` is called before anybody has told the
            noise.

    References: Tang, Shpilevskiy and Lécuyer (arXiv:2312.14334v1), "DP-AdamBC: Your DP-Adam Is
    Actually DP-SGD (Unless You Apply Bias Correction)", Algorithm 1.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        floor: float = 1.0,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "floor": floor,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            _check(group)
        self._told: dict[nn.Parameter, float | Tensor] = {}

    def expect_noise(self, stds: Mapping[nn.Parameter, float | Tensor]) -> None:
        """Take the noise's standard deviation in the gradients of the next step, and of no other.

        Args:
            stds: by parameter, a number or a tensor of the parameter's shape; 0 without noise.
        """
        self._told = dict(stds)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step on the gradients, with the noise that was told."""
        if closure is not None:
            raise DpvdError("AdamBC steps on one noisy gradient: it takes no closure")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter not in self._told:
                    raise DpvdError(
                        "AdamBC does not know the noise of this step: take steps with PrivateStep "
                        "or fit, which tell it, or call expect_noise before each step"
                    )
                self._move(parameter, group, self._told[parameter])
        self._told = {}  # noise that was told once is not taken for that of a later step

    def _move(self, parameter: nn.Parameter, group: Mapping[str, Any], std: float | Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["first"] = torch.zeros_like(parameter)
            state["second"] = torch.zeros_like(parameter)
            state["noise"] = parameter.new_zeros(())  # takes the shape of s
        beta1, beta2 = group["betas"]
        state["step"] += 1
        state["first"].lerp_(gradient, 1 - beta1)
        state["second"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["noise"] = beta2 * state["noise"] + (1 - beta2) * std**2
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        warm1 = 1 - beta1 ** state["step"]
        warm2 = 1 - beta2 ** state["step"]
        noise = state["noise"] / warm2
        least = group["floor"] * noise
        signal = torch.maximum(state["second"] / warm2 - noise, least)
        parameter.addcdiv_(
            state["first"], signal.sqrt_().add_(group["eps"]), value=-group["lr"] / warm1
        )


def _check(group: Mapping[str, Any]) -> None:
    positive(eps=group["eps"])
    non_negative(lr=group["lr"], floor=group["floor"], weight_decay=group["weight_decay"])
    for beta in group["betas"]:
        if not (0 <= beta < 1 and math.isfinite(beta)):
            raise DpvdError(f"betas must be at least 0 and below 1, got {group['betas']!r}")
