"""Where a step's gradients and noise meet, and how they reach the parameters."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.grads import ClippedGradients, Jacobian
from dpvd.mechanisms import BitSource, GridNoise, release_jointly, release_sums
from dpvd.nn import KLGradient
from dpvd.ranks import ALONE, Ranks
from dpvd.training.adam_bc import NoiseAware

__all__ = ["Update", "check_parameters", "tell_noise"]

Release = Callable[..., None]
"""Adds noise to sums, with the arguments of `release_sums`."""

_NOT_PLAIN = ("momentum", "weight_decay", "maximize", "differentiable")  # options of SGD


class Update:
    """The clipped sum of a step on its way through noise into the parameters.

    One step is

        update.begin(parameters)
        try:
            update.add(clipped)         # for each micro-batch
            update.release(noise, bits, kl_gradients)
        except BaseException:
            update.discard()
            raise

    Sums go into buffers of their own, never into parameters: noise that is added to a sum is
    rounded as finely as the sum, noise that is added to a weight only as finely as the weight. With
    plain SGD the noisy sums go from there into the parameters, times -η/S. Any other optimizer
    finds the noisy means in ``.grad`` and takes its own step.

    Guarantees:
        After `release` and after `discard` no buffer holds a sum without noise.
        Between `begin` and `release` the parameters do not change: every micro-batch sees those of
        the first, so it does not matter here how a batch was cut.

    Args:
        optimizer: what moves the parameters.
        batch_size: S.
        ranks: the processes whose sums make one step.
        release: what adds the noise to the sums.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        batch_size: int,
        ranks: Ranks = ALONE,
        release: Release = release_sums,
    ) -> None:
        self.optimizer = optimizer
        self.batch_size = batch_size
        self._ranks = ranks
        self._release_sums = release
        self._parameters: Mapping[str, nn.Parameter] = {}
        self._jacobian = Jacobian()
        self._sums: dict[str, Tensor] = {}  # of the parameters' shapes
        self._zeroed: set[str] = set()  # names of the buffers that are known to hold zeros

    def begin(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Have a zeroed buffer ready for each parameter; buffers are reused from step to step.

        Args:
            parameters: the trainable parameters by name.
        """
        trained = {id(parameter) for parameter in parameters.values()}
        for parameter in self._parameters.values():
            if id(parameter) not in trained:
                # Frozen since: an optimizer would go on moving it by its last gradient.
                parameter.grad = None
        self._parameters = parameters
        self._jacobian = Jacobian()
        self._sums = {name: self._zeros(name, parameter) for name, parameter in parameters.items()}
        self._zeroed = set()

    def add(self, clipped: ClippedGradients) -> None:
        """Add the sum of a micro-batch's clipped gradients to the buffers; parameters stay."""
        clipped.add_to(self._sums)
        self._jacobian = clipped.jacobian

    @torch.no_grad()
    def release(
        self, noise: GridNoise, bits: BitSource, kl_gradients: dict[str, KLGradient]
    ) -> None:
        """Add the noise to the sums, and let the optimizer step.

        Args:
            noise: for the entries of all parameters together.
            bits: where its randomness comes from.
            kl_gradients: by name, the gradient of the KL term, in the unit of the mean; removed as
                they are added.
        """
        rates = _plain_rates(self._parameters, self.optimizer)
        if rates:
            self._move(rates, noise, bits, kl_gradients)
        else:
            self._hand_over(noise, bits, kl_gradients)
        if not rates or _has_step_observers(self.optimizer):
            self.optimizer.step()

    def _move(
        self,
        rates: Mapping[str, float],
        noise: GridNoise,
        bits: BitSource,
        kl_gradients: dict[str, KLGradient],
    ) -> None:
        """Plain SGD: θ ← θ - η (J · noisy sum / S + ∂KL), in one pass where there is no J."""
        jacobian = self._jacobian
        direct = {name: p for name, p in self._parameters.items() if name not in jacobian}
        for name, parameter in direct.items():
            # Before the noise: ∂KL reads the parameter as it was.
            _add_kl_gradient(kl_gradients, name, parameter, -rates[name])
        scales = {name: -rate / self.batch_size for name, rate in rates.items()}
        self._add_noise(noise, bits, scales, direct)
        for name, parameter in self._parameters.items():
            parameter.grad = None  # the optimizer has nothing left to do
            if name in jacobian:
                change = jacobian.multiply_(name, self._sums[name])
                _add_kl_gradient(kl_gradients, name, change, -rates[name])
                parameter.add_(change)
                change.zero_()
        self._zeroed = set(self._sums)

    def _hand_over(
        self, noise: GridNoise, bits: BitSource, kl_gradients: dict[str, KLGradient]
    ) -> None:
        """Any other optimizer: J · noisy sum / S + ∂KL becomes the gradient."""
        scales = dict.fromkeys(self._sums, 1 / self.batch_size)
        self._add_noise(noise, bits, scales, {})
        for name, parameter in self._parameters.items():
            mean = self._sums[name]
            self._jacobian.multiply_(name, mean)
            _add_kl_gradient(kl_gradients, name, mean, 1.0)
            parameter.grad = mean
        tell_noise(self.optimizer, self._parameters, noise.std / self.batch_size, self._jacobian)

    def _add_noise(
        self,
        noise: GridNoise,
        bits: BitSource,
        scales: Mapping[str, float],
        parameters: Mapping[str, Tensor],
    ) -> None:
        """The Gaussian mechanism on the sums: this process's, or those of all processes."""
        if self._ranks.are_several:
            release_jointly(
                self._sums, noise, bits, scales=scales, parameters=parameters, ranks=self._ranks
            )
        else:
            self._release_sums(self._sums, noise, bits, scales=scales, parameters=parameters)

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


def check_parameters(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> None:
    """Raise unless the optimizer moves exactly the parameters that the model trains.

    Args:
        optimizer: any.
        parameters: the trainable parameters of the model by name.
    """
    groups = optimizer.param_groups
    held = {id(p) for group in groups for p in group["params"] if p.requires_grad}
    trained = {id(p): name for name, p in parameters.items()}
    if held == trained.keys():
        return
    missing = [name for key, name in trained.items() if key not in held]
    if missing:
        raise DpvdError(
            f"the optimizer does not hold {missing[0]!r} ({len(missing)} of {len(trained)} "
            "trainable parameters are missing): make it after the model's last change (fix and "
            "variational return a copy), from model.parameters(), and switch requires_grad off for "
            "what should stay as it is"
        )
    raise DpvdError(
        f"the optimizer holds {len(held - trained.keys())} parameters that are not the model's: "
        "they would move without an account. Make it from model.parameters()"
    )


def tell_noise(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    std: float,
    jacobian: Jacobian,
) -> None:
    """Tell an optimizer that asks for it how noisy the gradients of the coming step are.

    Args:
        optimizer: any.
        parameters: the trainable parameters by name.
        std: standard deviation of the noise in the mean, before the Jacobian.
        jacobian: what the noisy gradients of scale parameters were multiplied by.
    """
    if isinstance(optimizer, NoiseAware):
        optimizer.expect_noise(
            {
                parameter: std * jacobian[name] if name in jacobian else std
                for name, parameter in parameters.items()
            }
        )


def _add_kl_gradient(
    kl_gradients: dict[str, KLGradient], name: str, total: Tensor, scale: float
) -> None:
    """Add the gradient of the KL term and free it: it may be as large as the parameter."""
    kl_gradient = kl_gradients.pop(name, None)
    if kl_gradient is not None:
        kl_gradient.add_to(total, scale)


def _alike(buffer: Tensor, parameter: Tensor) -> bool:
    kinds = ("shape", "dtype", "device")
    return all(getattr(buffer, kind) == getattr(parameter, kind) for kind in kinds)


def _has_step_observers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a hook observes step(), or a learning-rate scheduler, which replaces the method."""
    return "step" in vars(optimizer) or bool(optimizer._optimizer_step_post_hooks)


def _plain_rates(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, float]:
    """By name, the learning rate η if every parameter is moved by θ ← θ - η g; else {}."""
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
