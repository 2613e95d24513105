"""Dropout with a fixed rate on the inputs of a dense layer: binary or Gaussian. No prior, no KL."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from dpvd.errors import in_unit_interval
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.linear import DenseMap
from dpvd.nn.noise import NoiseKind, draw, is_sampling

__all__ = ["BinaryDropoutLinear", "GaussianDropoutLinear", "InputDropout"]


class InputDropout(VariationalLayer):
    """y = (x∘s)∗φ + b with s drawn per example and input unit, E[s] = 1, Var[s] = α = p/(1-p)."""

    rate: float
    noise_kind: NoiseKind

    def init_noise(self, rate: float) -> None:
        """Called once by the constructor of a concrete class, after that of the torch layer."""
        in_unit_interval(rate=rate)
        self.rate = rate
        self.register_buffer("kept", None)

    def reset_noise(self) -> None:
        """The rate is fixed: nothing to do."""

    @property
    def prunable(self) -> bool:
        return False

    @abstractmethod
    def multiplier(self, noise: Tensor) -> Tensor:
        """The factor s on the inputs that this draw stands for."""

    def forward(self, x: Tensor) -> Tensor:
        if is_sampling(self):
            x = x * self.multiplier(draw(x.shape, x, self.noise_kind))
        return self.linear_map(x, self.weight, self.bias)

    def weight_variance(self) -> Tensor:
        return self.rate / (1 - self.rate) * self.weight.square()

    def log_alpha(self) -> Tensor:
        """log(p/(1-p)) for every weight."""
        return torch.full_like(self.weight, math.log(self.rate) - math.log1p(-self.rate))

    def kl(self) -> Tensor:
        """0: a fixed rate has no prior to be measured against."""
        return self.weight.new_zeros(())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rate={self.rate}"


class DropoutLinear(InputDropout, DenseMap, nn.Linear):
    """A dense layer with dropout on its inputs; a concrete class says what it does to them."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rate: float = 0.5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.init_noise(rate)


class BinaryDropoutLinear(DropoutLinear):
    """Dense layer whose inputs are dropped with probability p = ``rate``, else scaled by 1/(1-p).

    References: Srivastava et al., "Dropout", JMLR 15 (2014).
    """

    noise_kind = "uniform"

    def multiplier(self, noise: Tensor) -> Tensor:
        """0 where the uniform draw is below p, else 1/(1-p)."""
        return (noise >= self.rate).to(noise.dtype) / (1 - self.rate)


class GaussianDropoutLinear(DropoutLinear):
    """Dense layer whose inputs are multiplied by N(1, α) noise, α = p/(1-p), p = ``rate``.

    References: Wang and Manning, "Fast dropout training", ICML 2013; Srivastava et al. (2014), Sec.
    10.
    """

    noise_kind = "normal"

    def multiplier(self, noise: Tensor) -> Tensor:
        """1 + √α·noise."""
        return 1 + math.sqrt(self.rate / (1 - self.rate)) * noise
