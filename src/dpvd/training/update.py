"""Where a step's gradients and noise meet, and how they reach the parameters."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpvd.grads import ClippedGradients
from dpvd.mechanisms import BitSource, add_gaussian
from dpvd.nn import KLPull

__all__ = ["Update"]

_NOT_PLAIN = ("momentum", "weight_decay", "maximize", "differentiable")  # options of SGD


class Update:
    """The clipped sum of a step on its way through noise into the parameters.

    One step is

        update.begin(parameters)
        try:
            update.add(clipped)         # for each part of the batch
            update.release(std, bits, jacobian, pulls)
        except BaseException:
            update.discard()
            raise

    Sums go into buffers of their own, never into parameters: noise that is added to a sum is rounded as finely as the
    sum, noise that is added to a weight only as finely as the weight. With plain SGD the noisy sums go from there
    into the parameters, times -η/S. Any other optimizer finds the noisy means in ``.grad`` and takes its own step.

    Guarantees:
        After `release` and after `discard` no buffer holds a sum without noise.
        Between `begin` and `release` the parameters do not change.

    Args:
        optimizer: who moves the parameters.
        batch_size: S.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, batch_size: int) -> None:
        self.optimizer = optimizer
        self.batch_size = batch_size
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._sums: dict[str, Tensor] = {}
        self._zeroed: set[str] = set()  # names of the buffers that are known to hold zeros

    def begin(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Have a zeroed buffer ready for each parameter; buffers are kept from step to step.

        Args:
            parameters: the trainable parameters by name.
        """
        self._parameters = parameters
        self._sums = {name: self._zeros(name, parameter) for name, parameter in parameters.items()}
        self._zeroed = set()

    def add(self, clipped: ClippedGradients) -> None:
        """Add the sum of a batch's clipped gradients, or of a part of it."""
        clipped.add_to(self._sums)

    @torch.no_grad()
    def release(
        self,
        std: float,
        bits: BitSource,
        jacobian: Mapping[str, Tensor],
        pulls: dict[str, KLPull],
    ) -> None:
        """Add the noise, N(0, std²) on each entry of the sum, and let the optimizer step.

        Args:
            std: standard deviation of the noise on the sum.
            bits: where its randomness comes from.
            jacobian: by name, what the noisy sum of a parameter is multiplied by. The KL term has no part in it.
            pulls: by name, the gradient of the KL term, in the unit of the mean; taken out as they are added.
        """
        add_gaussian(self._sums, std, bits)
        rates = _plain_rates(self._parameters, self.optimizer)
        for name, parameter in self._parameters.items():
            mean = self._sums[name].div_(self.batch_size)
            if name in jacobian:
                mean *= jacobian[name]
            pull = pulls.pop(name, None)  # to be let go of: it may be as large as the parameter
            if pull is not None:
                pull.add_to(mean, 1.0)
            if rates:
                parameter.add_(mean, alpha=-rates[name])
                parameter.grad = None  # the optimizer has nothing left to do
            else:
                parameter.grad = mean
        if not rates or _is_watched(self.optimizer):
            self.optimizer.step()

    @torch.no_grad()
    def discard(self) -> None:
        """Forget the sums: an exception or an interrupt leaves none without noise behind."""
        for total in self._sums.values():
            total.zero_()
        self._zeroed = set(self._sums)

    def _zeros(self, name: str, parameter: nn.Parameter) -> Tensor:
        """The buffer of a parameter, zeroed; a new one if the parameter is not what it was."""
        buffer = self._sums.get(name)
        if buffer is None or not _alike(buffer, parameter):
            return torch.zeros_like(parameter, requires_grad=False)
        if name not in self._zeroed:
            buffer.zero_()
        return buffer


def _alike(buffer: Tensor, parameter: Tensor) -> bool:
    return buffer.shape == parameter.shape and buffer.dtype == parameter.dtype and buffer.device == parameter.device


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether somebody notices its steps: a hook, or a learning-rate scheduler, which replaces the method."""
    return "step" in vars(optimizer) or bool(optimizer._optimizer_step_post_hooks)


def _plain_rates(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """By name, the learning rate η if the optimizer moves every parameter by θ ← θ - η g; else {}."""
    if type(optimizer) is not torch.optim.SGD or optimizer._optimizer_step_pre_hooks:
        return {}
    rates: dict[int, float] = {}
    for group in optimizer.param_groups:
        if any(group[option] for option in _NOT_PLAIN):
            return {}
        rates.update(dict.fromkeys(map(id, group["params"]), float(group["lr"])))
    if any(id(parameter) not in rates for parameter in parameters.values()):
        return {}
    return {name: rates[id(parameter)] for name, parameter in parameters.items()}
