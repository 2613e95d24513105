"""Priors over weights: each knows the KL divergence of N(mean, σ²) and N(mean, α·mean²) from it."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from torch import Tensor
from torch.nn import functional as F

from dpvd.errors import DpvdError, choice, positive
from dpvd.nn.kl_term.divergences import exact_kl, kingma_kl, molchanov_kl

__all__ = [
    "ARD",
    "SQUARE_OFFSET",
    "Approximation",
    "Gaussian",
    "LogUniform",
    "Prior",
    "log_square",
    "prior_from",
]

SQUARE_OFFSET = 1e-16
"""What is added to mean² where its logarithm is taken."""


def log_square(mean: Tensor) -> Tensor:
    """log(mean² + 1e-16): the offset keeps the value and its gradient finite at mean = 0."""
    square = mean.square()
    return (square + SQUARE_OFFSET).log()


class Prior(ABC):
    """A prior over one weight. KL terms are elementwise; a layer sums them and never averages."""

    @abstractmethod
    def kl(self, mean: Tensor, log_sigma2: Tensor) -> Tensor:
        """KL(N(mean, σ²) ‖ prior), elementwise over the broadcast of both."""

    @abstractmethod
    def kl_multiplicative(self, mean: Tensor, log_alpha: Tensor) -> Tensor:
        """KL(N(mean, α·mean²) ‖ prior), in the shape of ``mean``, which ``log_alpha`` fits."""


class _ScaleFreePrior(Prior):
    """A prior whose KL depends on α = σ²/mean² alone."""

    @abstractmethod
    def of_log_alpha(self, log_alpha: Tensor) -> Tensor:
        """The KL as a function of log α, elementwise."""

    def kl(self, mean: Tensor, log_sigma2: Tensor) -> Tensor:
        log_alpha = log_sigma2 - log_square(mean)
        return self.of_log_alpha(log_alpha)

    def kl_multiplicative(self, mean: Tensor, log_alpha: Tensor) -> Tensor:
        divergence = self.of_log_alpha(log_alpha)
        return divergence.expand_as(mean)


class Approximation(StrEnum):
    """How the KL to the log-uniform prior is computed."""

    EXACT = "exact"
    """By the Dawson function, to 1e-9."""
    MOLCHANOV = "molchanov"
    """Sigmoid fit, within 0.0094, for all α."""
    KINGMA = "kingma"
    """Cubic, within 0.0203, for α ≤ 1; log α is projected to at most 0."""


_LOG_UNIFORM_KL = {
    Approximation.EXACT: exact_kl,
    Approximation.MOLCHANOV: molchanov_kl,
    Approximation.KINGMA: kingma_kl,
}


@dataclass(frozen=True)
class LogUniform(_ScaleFreePrior):
    """p(log|w|) constant: rewards noise relative to the weight, and so sparsity.

    The prior is improper and has no proper posterior: its KL, normalised to 0 as α → ∞, is a
    regulariser and not part of a bound on any evidence.

    References: Kingma et al. (arXiv:1506.02557v2); Hron et al. (arXiv:1711.02989v1,
    arXiv:1807.01969v1).
    """

    approximation: Approximation | str = Approximation.EXACT

    def __post_init__(self) -> None:
        approximation = choice(self.approximation, Approximation, "approximation")
        object.__setattr__(self, "approximation", approximation)

    def of_log_alpha(self, log_alpha: Tensor) -> Tensor:
        approximation = Approximation(self.approximation)
        kl = _LOG_UNIFORM_KL[approximation]
        return kl(log_alpha)


@dataclass(frozen=True)
class ARD(_ScaleFreePrior):
    """Gaussian N(0, s²), with the s that is best for each weight: KL = ½ log(1 + 1/α)."""

    def of_log_alpha(self, log_alpha: Tensor) -> Tensor:
        return 0.5 * F.softplus(-log_alpha)


@dataclass(frozen=True)
class Gaussian(Prior):
    """N(0, std²): KL = ½ ((σ² + mean²)/std² - 1 - log(σ²/std²)).

    >>> from torch import tensor
    >>> Gaussian().kl(tensor(1.0), tensor(0.0)).item()
    0.5
    """

    std: float = 1.0

    def __post_init__(self) -> None:
        positive(std=self.std)

    def kl(self, mean: Tensor, log_sigma2: Tensor) -> Tensor:
        log_ratio = log_sigma2 - 2 * math.log(self.std)
        square = (mean / self.std).square()
        doubled = log_ratio.exp() + square - 1 - log_ratio
        return 0.5 * doubled

    def kl_multiplicative(self, mean: Tensor, log_alpha: Tensor) -> Tensor:
        log_sigma2 = log_alpha + log_square(mean)
        return self.kl(mean, log_sigma2)


_BY_NAME = MappingProxyType(
    {
        "log-uniform": LogUniform(),
        "molchanov": LogUniform(Approximation.MOLCHANOV),
        "kingma": LogUniform(Approximation.KINGMA),
        "ard": ARD(),
        "gaussian": Gaussian(),
    }
)


def prior_from(prior: str | Prior) -> Prior:
    """Return the prior of this name, or the prior itself.

    >>> prior_from("molchanov")
    LogUniform(approximation=<Approximation.MOLCHANOV: 'molchanov'>)
    """
    if isinstance(prior, Prior):
        return prior
    if prior not in _BY_NAME:
        raise DpvdError(f"prior must be one of {', '.join(_BY_NAME)} or a Prior; got {prior!r}")
    return _BY_NAME[prior]
