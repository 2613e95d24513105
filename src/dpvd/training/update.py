"""Where a step's noise and gradients meet, and how they reach the parameters."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpvd.grads import ClippedGradients
from dpvd.mechanisms import BitSource, add_gaussian
from dpvd.nn import KLPull

__all__ = ["Update"]


class Update:
    """The noisy mean of a step, G / S, on its way into the parameters.

    With plain SGD the noise and the sum are added to the parameters themselves, times -η/S: nothing else the size of
    the model is written or read. Any other optimizer finds them in ``.grad`` and takes its own step.

    Guarantees:
        The noise comes first: no sum of gradients is ever in memory without it, so that an interrupt between the two
        leaves nothing behind that could be released by mistake.

    Args:
        optimizer: who moves the parameters.
        batch_size: S.
        whole: whether a batch comes in one piece. In several, the parameters cannot take the first sum while they are
            still needed for the gradients of the next: a buffer does.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, batch_size: int, *, whole: bool = True) -> None:
        self.optimizer, self.batch_size, self.whole = optimizer, batch_size, whole
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        self._rates: dict[str, float] = {}
        self._totals: dict[str, Tensor] = {}
        self._scales: dict[str, float] = {}
        self._pulls: dict[str, KLPull] = {}

    def begin(
        self,
        parameters: Mapping[str, nn.Parameter],
        std: float,
        bits: BitSource,
        jacobian: Mapping[str, Tensor],
        pulls: dict[str, KLPull],
    ) -> None:
        """Put the pull of the KL term in place, which is no secret, and the noise: N(0, std²) on each entry of the sum.

        The pull comes first because it is read off the parameters as they were, and noise may be added to those.

        Args:
            parameters: the trainable parameters by name.
            std: standard deviation of the noise on the sum.
            bits: where its randomness comes from.
            jacobian: by name, what the noisy sum of a parameter is multiplied by. Such a parameter needs a buffer.
            pulls: by name, the gradient of the KL term, in the unit of the mean; taken out as they are added.
        """
        self._parameters, self._pulls = parameters, pulls
        self._rates = _plain_rates(parameters, self.optimizer)
        self._totals, self._scales = {}, {}
        by_scale: dict[float, dict[str, Tensor]] = {}
        for name, parameter in parameters.items():
            direct = self.whole and name in self._rates and name not in jacobian
            total = parameter.detach() if direct else self._empty_buffer(name, parameter)
            scale = (-self._rates[name] if name in self._rates else 1.0) / self.batch_size
            self._totals[name], self._scales[name] = total, scale
            by_scale.setdefault(abs(scale), {})[name] = total
            if name not in jacobian:
                self._pull(name)
        for scale, totals in by_scale.items():
            add_gaussian(totals, std * scale, bits)

    def add(self, clipped: ClippedGradients) -> None:
        """Add the sum of a batch's clipped gradients, or of a part of it."""
        clipped.add_to(self._totals, self._scales)

    @torch.no_grad()
    def finish(self, jacobian: Mapping[str, Tensor]) -> None:
        """Multiply by the Jacobians, which the pull of the KL term has no part in, and let the optimizer step."""
        for name, parameter in self._parameters.items():
            if name in jacobian:
                self._totals[name] *= jacobian[name]
                self._pull(name)
            if name not in self._rates:
                parameter.grad = self._totals[name]
                continue
            parameter.grad = None  # the optimizer has nothing left to do
            if self._totals[name] is self._buffers.get(name):
                parameter.add_(self._totals[name])
        if not self._rates or _is_watched(self.optimizer):
            self.optimizer.step()

    def _pull(self, name: str) -> None:
        pull = self._pulls.pop(name, None)  # to be let go of: it may be as large as the parameter
        if pull is not None:
            pull.add_to(self._totals[name], self._scales[name] * self.batch_size)

    def _empty_buffer(self, name: str, parameter: nn.Parameter) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or (buffer.shape, buffer.dtype, buffer.device) != (
            parameter.shape,
            parameter.dtype,
            parameter.device,
        ):
            buffer = self._buffers[name] = torch.empty_like(parameter, requires_grad=False)
        return buffer.zero_()


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody notices its steps: a hook, or a learning-rate scheduler, which replaces the method."""
    return "step" in vars(optimizer) or bool(optimizer._optimizer_step_post_hooks)


def _plain_rates(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate of each parameter that the optimizer moves by θ ← θ - η g; {} if it does anything else."""
    if type(optimizer) is not torch.optim.SGD or optimizer._optimizer_step_pre_hooks:
        return {}
    rates: dict[int, float] = {}
    for group in optimizer.param_groups:
        if any(group[option] for option in ("momentum", "weight_decay", "maximize", "differentiable")):
            return {}
        rates.update(dict.fromkeys(map(id, group["params"]), float(group["lr"])))
    if any(id(parameter) not in rates for parameter in parameters.values()):
        return {}
    return {name: rates[id(parameter)] for name, parameter in parameters.items()}
