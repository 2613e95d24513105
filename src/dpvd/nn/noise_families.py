"""Weight noise for any linear map: additive, θ = φ + σε, and multiplicative, θ = φ(1 + √α ε).

Both are sampled by local reparameterisation: the noise is drawn for the outputs, independently for
every example, with the variance the weight noise would have caused. The bias has no noise.
"""

import math
import warnings
from enum import StrEnum

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, choice, non_negative
from dpvd.nn.kl_term.priors import LogUniform, Prior, log_square, prior_from
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.noise import add_noise_, draw, inside_transform, is_sampling

__all__ = ["AdditiveNoise", "MultiplicativeKind", "MultiplicativeNoise"]


class AdditiveNoise(VariationalLayer):
    """θ = φ + σε: output mean x∗φ + b, output variance x²∗σ², with ∗ the layer's linear map.

    Attributes:
        rates: which weights share one σ.
        learned: whether ``log_sigma2`` is a parameter or a buffer.
        log_sigma2: log σ², shape [], [in] or the weight's.
    """

    noise_state = ("log_sigma2",)
    log_sigma2: Tensor
    rates: Rates
    learned: bool
    prior: Prior

    def init_noise(
        self,
        rates: Rates | str,
        learned: bool,
        log_sigma2: float,
        prior: str | Prior,
    ) -> None:
        """Called once by the constructor of a concrete class, after that of the torch layer."""
        self.rates = choice(rates, Rates, "rates")
        self.learned = learned
        self.initial_log_sigma2 = _log_variance("log_sigma2", log_sigma2, learned)
        self.prior = prior_from(prior)
        self.register_buffer("kept", None)
        _register(self, "log_sigma2", self.rates, learned)
        self.reset_noise()

    def reset_noise(self) -> None:
        with torch.no_grad():
            self.log_sigma2.fill_(self.initial_log_sigma2)

    @property
    def prunable(self) -> bool:
        return True

    @property
    def tied(self) -> bool:
        """Whether one number, set from outside by :meth:`set_scale`, is the σ of all weights."""
        one_scale = self.rates is Rates.LAYER
        return one_scale and not self.learned

    @torch.no_grad()
    def set_scale(self, zeta: float) -> None:
        """Set σ = ζ for all weights. ζ = 0 makes the layer deterministic.

        Raises:
            DpvdError: if the layer is not tied, or ζ is negative or not finite.
        """
        non_negative(zeta=zeta)
        if not self.tied:
            raise DpvdError(
                "set_scale needs a layer with rates='layer', learned=False; "
                f"this one has rates='{self.rates}', learned={self.learned}"
            )
        self.log_sigma2.fill_(2 * math.log(zeta) if zeta > 0 else -math.inf)

    def forward(self, x: Tensor) -> Tensor:
        if not is_sampling(self):
            weight = self.mean_weight()
            return self.linear_map(x, weight, self.bias)
        mean, variance = self.output_moments(x)
        return add_noise_(mean, variance)

    def output_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean x∗φ + b and variance x²∗σ² of the outputs; both are new and may be written over."""
        mean = self.linear_map(x, self.mean_weight(), self.bias)
        return mean, self.output_variance(x)

    def output_variance(self, x: Tensor) -> Tensor:
        """x²∗σ², in a shape that broadcasts to the output's."""
        variance = self.only_kept(self.log_sigma2.exp(), 0.0)
        return self.linear_map(x * x, variance, None)

    def weight_variance(self) -> Tensor:
        sigma2 = self.log_sigma2.exp()
        return self.only_kept(sigma2, 0.0)

    def log_alpha(self) -> Tensor:
        """log σ² - log φ², not clipped; -∞ where σ = 0, +∞ where pruned."""
        log_ratio = self.log_sigma2 - log_square(self.weight)
        return self.only_kept(log_ratio, math.inf)

    def kl(self) -> Tensor:
        """Sum over weights; ∞ if σ = 0 (a point has no density against any of the priors)."""
        if self.kept is None or inside_transform():  # where no size may depend on values
            divergence = self.prior.kl(self.weight, self.log_sigma2)
            return self.only_kept(divergence, 0.0).sum()
        mean = self.weight.masked_select(self.kept)
        log_sigma2 = self.log_sigma2.expand_as(self.weight)
        log_sigma2 = log_sigma2.masked_select(self.kept)
        return self.prior.kl(mean, log_sigma2).sum()

    def mean_masks(self) -> dict[str, Tensor | None]:
        """By name, the parameters that hold the means, and where the KL term sees them.

        A mask of the parameter's shape; None for everywhere.
        """
        return {"weight": self.kept}

    def scale_jacobian(self) -> dict[str, Tensor]:
        """{"log_sigma2": ∂σ/∂log σ² = σ/2} if learned, else {}."""
        if not self.learned:
            return {}
        sigma = (self.log_sigma2.detach() / 2).exp_()
        return {"log_sigma2": sigma.div_(2)}

    def extra_repr(self) -> str:
        torch_layer = super().extra_repr()
        return f"{torch_layer}, rates={self.rates}, learned={self.learned}, prior={self.prior}"


class MultiplicativeKind(StrEnum):
    """What the multiplicative noise is on."""

    A = "A"
    """On the inputs, one s ~ N(1, α) per input unit and example: weights have correlated noise."""
    B = "B"
    """On the weights, independently, by local reparameterisation."""


class MultiplicativeNoise(VariationalLayer):
    """θ = φ(1 + √α ε).

    Type A: y = (x s)∗φ + b with s ~ N(1, α). Type B: output mean x∗φ + b, variance x²∗(αφ²).

    Attributes:
        kind: type A or B.
        rates: which weights share one α.
        learned: whether ``log_rate`` is a parameter or a buffer.
        log_rate: log α, shape [], [in] or the weight's.
    """

    noise_state = ("log_rate",)
    log_rate: Tensor
    kind: MultiplicativeKind
    rates: Rates
    learned: bool
    prior: Prior

    def init_noise(
        self,
        kind: MultiplicativeKind | str,
        rates: Rates | str,
        learned: bool,
        log_alpha: float,
        prior: str | Prior,
    ) -> None:
        """Called once by the constructor of a concrete class, after that of the torch layer."""
        self.kind = choice(kind, MultiplicativeKind, "kind")
        self.rates = choice(rates, Rates, "rates")
        self.learned = learned
        self.initial_log_alpha = _log_variance("log_alpha", log_alpha, learned)
        self.prior = prior_from(prior)
        if self.kind is MultiplicativeKind.A:
            _check_type_a(self.rates, learned, self.prior)
        self.register_buffer("kept", None)
        _register(self, "log_rate", self.rates, learned)
        self.reset_noise()

    def reset_noise(self) -> None:
        with torch.no_grad():
            self.log_rate.fill_(self.initial_log_alpha)

    @property
    def prunable(self) -> bool:
        return self.learned

    def forward(self, x: Tensor) -> Tensor:
        if not is_sampling(self):
            return self.linear_map(x, self.mean_weight(), self.bias)
        if self.kind is MultiplicativeKind.A:
            noise = draw(x.shape, x)
            x = x * self.multiplier(noise)
            return self.linear_map(x, self.mean_weight(), self.bias)
        mean, variance = self.output_moments(x)
        return add_noise_(mean, variance)

    def multiplier(self, noise: Tensor) -> Tensor:
        """Type A: the factor on the inputs, 1 + √α·noise, with the gradient to ``log_rate``."""
        log_root = self.log_rate / 2
        root_alpha = log_root.exp()
        return 1 + root_alpha * noise

    def output_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Type B: mean x∗φ + b and variance x²∗(αφ²); both are new and may be written over."""
        mean = self.linear_map(x, self.mean_weight(), self.bias)
        variance = self.linear_map(x * x, self.weight_variance(), None)
        return mean, variance

    def weight_variance(self) -> Tensor:
        alpha = self.log_rate.exp()
        squares = self.mean_weight().square()
        return alpha * squares

    def log_alpha(self) -> Tensor:
        """``log_rate``, expanded; +∞ where pruned."""
        return self.only_kept(self.log_rate, math.inf)

    def kl(self) -> Tensor:
        """Type B: the sum over weights. Type A: the sum over s, one for each input unit."""
        if self.kind is MultiplicativeKind.A:
            units = self.weight.new_ones(self.weight.shape[1])
            log_rates = self.log_rate.flatten()
            return self.prior.kl_multiplicative(units, log_rates).sum()
        divergence = self.prior.kl_multiplicative(self.weight, self.log_rate)
        return self.only_kept(divergence, 0.0).sum()

    def extra_repr(self) -> str:
        torch_layer = super().extra_repr()
        return (
            f"{torch_layer}, kind={self.kind}, rates={self.rates}, learned={self.learned},"
            f" prior={self.prior}"
        )


def _check_type_a(rates: Rates, learned: bool, prior: Prior) -> None:
    if rates is Rates.WEIGHT:
        raise DpvdError(
            "kind='A' puts noise on the inputs and cannot have rates='weight'; "
            "use rates 'layer' or 'neuron', or kind='B'"
        )
    if learned and isinstance(prior, LogUniform):
        warnings.warn(
            "type A noise with learned rates under the log-uniform prior has an objective that is "
            "infinite or overfits (Hron et al., arXiv:1711.02989, arXiv:1807.01969); use kind='B', "
            "learned=False or another prior ('ard', 'gaussian')",
            UserWarning,
            stacklevel=4,
        )


def _log_variance(name: str, value: float, learned: bool) -> float:
    """Check a starting value: finite, or -∞ (no noise) where nothing has to learn from it."""
    no_noise = value == -math.inf
    if math.isfinite(value) or (no_noise and not learned):
        return float(value)
    allowed = "a finite number" if learned else "a finite number or -inf"
    raise DpvdError(f"{name} must be {allowed}, got {value!r}")


def _register(layer: VariationalLayer, name: str, rates: Rates, learned: bool) -> None:
    """Give the layer an uninitialised parameter (learned) or buffer of the rates' shape."""
    weight = layer.weight
    # One entry per input unit; trailing ones make it broadcast to the weight.
    trailing = weight.dim() - layer.input_dim - 1
    shapes = {
        Rates.LAYER: torch.Size(),
        Rates.NEURON: torch.Size([weight.shape[layer.input_dim]] + [1] * trailing),
        Rates.WEIGHT: weight.shape,
    }
    values = torch.empty(shapes[rates], dtype=weight.dtype, device=weight.device)
    if learned:
        layer.register_parameter(name, nn.Parameter(values))
    else:
        layer.register_buffer(name, values)
