"""A table of vectors with noise on its entries."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.nn.kl_term.priors import Prior
from dpvd.nn.layer import Rates
from dpvd.nn.noise_families import AdditiveNoise

__all__ = ["AdditiveEmbedding"]


class AdditiveEmbedding(AdditiveNoise, nn.Embedding):
    """Embedding with additive Gaussian noise on the table, θ = φ + σε.

    y_t = φ[i_t] + σ[i_t] ε_t with ε drawn per example, position and entry.

    Guarantees: rows of a batch have independent noise; in eval mode (and not ``sampling``) the
    result is that of ``nn.Embedding`` bit for bit.

    Edge cases: the padding row, which does not learn, has no noise and no KL term. ``max_norm``,
    ``scale_grad_by_freq`` and ``sparse`` of torch's layer are not offered: they cannot be trained
    privately.

    Args:
        num_embeddings, embedding_dim, padding_idx, device, dtype: as for ``nn.Embedding``.
        rates: "weight", "neuron" (one σ per word) or "layer".
        learned: whether ``log_sigma2`` is trained.
        log_sigma2: where log σ² starts.
        prior: name or prior; see ``prior_from``.

    >>> layer = AdditiveEmbedding(10, 3, rates="neuron")
    >>> layer(torch.tensor([[1, 2], [2, 2]])).shape, layer.log_sigma2.shape
    (torch.Size([2, 2, 3]), torch.Size([10, 1]))
    """

    input_dim = 0

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_sigma2: float = -10.0,
        prior: str | Prior = "log-uniform",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.register_parameter("bias", None)
        self.init_noise(rates, learned, log_sigma2, prior)

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The rows of the table that the indices x [B, ...] name; there is no bias."""
        return F.embedding(x, weight, self.padding_idx)

    def output_variance(self, x: Tensor) -> Tensor:
        """σ²[i_t], [B, ..., d], 0 at padding; only of the rows looked up."""
        log_variance = self.only_kept(self.log_sigma2, -math.inf)
        variance = F.embedding(x, log_variance).exp()
        if self.padding_idx is None:
            return variance
        is_padding = (x == self.padding_idx).unsqueeze(-1)  # [B, ..., 1]
        return variance.masked_fill(is_padding, 0)

    def weight_variance(self) -> Tensor:
        variance = super().weight_variance()
        variance = variance.expand_as(self.weight)
        return self._without_padding(variance)

    def kl(self) -> Tensor:
        """Sum over the entries of all rows but the padding row."""
        divergence = self.prior.kl(self.weight, self.log_sigma2)
        divergence = self.only_kept(divergence, 0.0)
        return self._without_padding(divergence).sum()

    def mean_masks(self) -> dict[str, Tensor | None]:
        if self.padding_idx is None:
            return super().mean_masks()
        kept = self.kept
        if kept is None:
            kept = torch.ones_like(self.weight, dtype=torch.bool)
        return {"weight": self._without_padding(kept)}

    def _without_padding(self, values: Tensor) -> Tensor:
        if self.padding_idx is None:
            return values
        rows = torch.arange(self.num_embeddings, device=values.device)
        is_padding = rows.unsqueeze(1) == self.padding_idx  # [words, 1]
        return values.masked_fill(is_padding, 0.0)
