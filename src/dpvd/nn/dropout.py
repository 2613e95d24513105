"""Dropout with a fixed rate on the inputs of a dense layer: binary or Gaussian. No prior, no KL."""

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from dpvd.errors import in_unit_interval
from dpvd.nn.layer import VariationalLayer
from dpvd.nn.linear import DenseMap
from dpvd.nn.noise import Distribution, draw, is_sampling

__all__ = ["BinaryDropoutLinear", "GaussianDropoutLinear", "InputDropout"]


class InputDropout(VariationalLayer):
    """y = (x∘s)∗φ + b with s drawn per example and input unit, E[s] = 1, Var[s] = α = p/(1-p)."""

    rate: float
    distribution: Distribution

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
            noise = draw(x.shape, x, self.distribution)
            x = x * self.multiplier(noise)
        return self.linear_map(x, self.weight, self.bias)

    def weight_variance(self) -> Tensor:
        alpha = self.rate / (1 - self.rate)
        return alpha * self.weight.square()

    def log_alpha(self) -> Tensor:
        """log(p/(1-p)) for every weight."""
        log_odds = math.log(self.rate) - math.log1p(-self.rate)
        return torch.full_like(self.weight, log_odds)

    def kl(self) -> Tensor:
        """0: a fixed rate has no prior to be measured against."""
        return self.weight.new_zeros(())

    def extra_repr(self) -> str:
        torch_layer = super().extra_repr()
        return f"{torch_layer}, rate={self.rate}"


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

    distribution = "uniform"

    def multiplier(self, noise: Tensor) -> Tensor:
        """0 where the uniform draw is below p, else 1/(1-p)."""
        kept = noise >= self.rate
        return kept.to(noise.dtype) / (1 - self.rate)


class GaussianDropoutLinear(DropoutLinear):
    """Dense layer whose inputs are multiplied by N(1, α) noise, α = p/(1-p), p = ``rate``.

    References: Wang and Manning, "Fast dropout training", ICML 2013; Srivastava et al. (2014), Sec.
    10.
    """

    distribution = "normal"

    def multiplier(self, noise: Tensor) -> Tensor:
        """1 + √α·noise."""
        alpha = self.rate / (1 - self.rate)
        return 1 + math.sqrt(alpha) * noise
