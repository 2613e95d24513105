"""Dense layers with noise on their weights.

The noise is in ``noise_families``, fixed rates are in ``dropout``.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.nn.kl_term.priors import Prior
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.noise_families import AdditiveNoise, MultiplicativeKind, MultiplicativeNoise
from dpvd.nn.sum_of_squares import with_sum_of_squares

__all__ = ["AdditiveLinear", "DenseMap", "MultiplicativeLinear"]


class DenseMap(VariationalLayer):
    """The linear map of ``nn.Linear``: x [B, ..., in] → [B, ..., out]."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class AdditiveLinear(DenseMap, AdditiveNoise, nn.Linear):
    """Dense layer with additive Gaussian weight noise, θ = φ + σε (sparse variational dropout).

    y = xφ' + b + √v ε with v = x²(σ²)' and ε drawn per example and output unit. With one σ for the
    layer v = σ²‖x‖², with one per input unit v = Σᵢ xᵢ²σᵢ²: the same for all outputs, without a
    second matmul.

    Guarantees: rows of a batch have independent noise; the bias has none; in eval mode (and not
    ``sampling``) the result is that of ``nn.Linear`` bit for bit; σ = 0 gives the same in training
    mode.

    Edge cases: ``rates="layer", learned=False`` is the layer of Algorithm 1, whose σ is tied from
    outside by ``set_scale``. The variance is not clipped: log α may take any value.

    Args:
        in_features, out_features, bias, device, dtype: as for ``nn.Linear``.
        rates: "weight", "neuron" (one σ per input unit) or "layer".
        learned: whether ``log_sigma2`` is trained.
        log_sigma2: where log σ² starts; -10 is the recipe of Molchanov et al.
        prior: name or prior; see ``prior_from``.

    >>> layer = AdditiveLinear(3, 2, rates="layer", learned=False)
    >>> layer.set_scale(0.5)
    >>> round(layer.log_sigma2.exp().item(), 6)
    0.25

    References: Molchanov, Ashukha and Vetrov (arXiv:1701.05369v3), "Additive noise
    reparameterization".
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_sigma2: float = -10.0,
        prior: str | Prior = "log-uniform",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.init_noise(rates, learned, log_sigma2, prior)

    def output_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The variance is [B, ..., out] for rates per weight or if pruned, else [B, ..., 1]."""
        if self.rates is Rates.WEIGHT or self.kept is not None:
            return super().output_moments(x)
        sigma2 = self.log_sigma2.exp()  # [in] or []
        if self.rates is Rates.NEURON:
            variance = (x * x) @ sigma2
            variance = variance.unsqueeze(-1)
        else:
            x, squares = with_sum_of_squares(x, -1)
            variance = sigma2 * squares
        mean = self.linear_map(x, self.weight, self.bias)
        return mean, variance


class MultiplicativeLinear(DenseMap, MultiplicativeNoise, nn.Linear):
    """Dense layer with multiplicative Gaussian noise, θ = φ(1 + √α ε) (variational dropout).

    Type A: y = (x∘s)φ' + b with s_i ~ N(1, α_i) per example and input unit.
    Type B: y = xφ' + b + √v ε with v = x²(αφ²)' and ε per example and output unit.

    Guarantees: rows of a batch have independent noise; the bias has none; in eval mode (and not
    ``sampling``) the result is that of ``nn.Linear`` bit for bit.

    Args:
        in_features, out_features, bias, device, dtype: as for ``nn.Linear``.
        kind: "A" or "B".
        rates: "layer", "neuron" (one α per input unit) or "weight" (type B only).
        learned: whether ``log_rate`` (log α) is trained.
        log_alpha: where log α starts; a dropout rate p has α = p/(1-p).
        prior: name or prior; see ``prior_from``. Type A with learned rates and a log-uniform prior
            warns.

    Raises:
        DpvdError: type A with a rate per weight; an unknown option.

    References: Kingma, Salimans and Welling (arXiv:1506.02557v2), Sec. 3.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        kind: MultiplicativeKind | str = MultiplicativeKind.B,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_alpha: float = -3.0,
        prior: str | Prior = "log-uniform",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.init_noise(kind, rates, learned, log_alpha, prior)
