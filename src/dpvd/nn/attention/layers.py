"""Multi-head attention with noise (see ``noise_families``) on the weights of its linear maps."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError, choice
from dpvd.nn.attention.core import ROLES, Projection, attention, biases, matrices, own_keys
from dpvd.nn.kl_term.priors import Prior
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.noise import draw, is_sampling, noise_std
from dpvd.nn.noise_families import AdditiveNoise, MultiplicativeKind, MultiplicativeNoise
from dpvd.nn.sum_of_squares import sum_of_squares

__all__ = [
    "AdditiveMultiheadAttention",
    "AttentionMap",
    "MultiplicativeMultiheadAttention",
    "projected_std",
]


class AttentionMap(VariationalLayer, nn.MultiheadAttention):
    """The four linear maps of ``nn.MultiheadAttention``, each with noise on what it gives.

    The noise is √v ε with v = x²∗Var(θ), and is drawn for each example, position and output unit,
    as in a dense layer that is called on a sequence: at every position it has the distribution that
    noise on the weights would have caused; that positions share weights, and so would be
    correlated, is ignored. (One ε for a whole sequence would shift all keys alike wherever inputs
    are normalised, and a softmax does not see such a shift.)

    Attributes:
        weight: the means of all weights, [E, E + kdim + vdim + E]: the matrices of query, key,
            value and output side by side. Noise parameters, ``kept`` and ``log_alpha()`` have the
            same form.
    """

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        by_role = matrices(self)
        side_by_side = list(by_role.values())
        return torch.cat(side_by_side, 1)

    def blocks(self, values: Tensor) -> dict[str, Tensor]:
        """Split [..., Σ in] into the parts of the four matrices, by role."""
        widths = [self.embed_dim, self.kdim, self.vdim, self.embed_dim]
        parts = torch.split(values, widths, -1)
        return dict(zip(ROLES, parts, strict=True))

    def variances(self) -> dict[str, Tensor]:
        """Variances of the weights by role: [E, in], or [in] or [] where weights share one."""
        variance = self.weight_variance()
        return self.blocks(variance)

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """That of one matrix."""
        return F.linear(x, weight, bias)

    @torch.no_grad()
    def prune(self, threshold: float) -> None:
        if self.prunable:
            self.kept = self.log_alpha() < threshold
            kept = self.blocks(self.kept)
            for role, matrix in matrices(self).items():
                removed = ~kept[role]
                matrix.masked_fill_(removed, 0.0)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        arguments = (
            query,
            key,
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
        )
        if not is_sampling(self) and self.kept is None:
            return nn.MultiheadAttention.forward(self, *arguments)
        if query.dim() != 3:
            raise DpvdError(
                f"{type(self).__name__} draws noise for each example and takes batches of "
                f"sequences, of dimension 3, not {query.dim()}; give a single sequence a batch of 1"
            )
        count = query.shape[0 if self.batch_first else 1]
        project = self.projection(self.draw_noise(query, key))
        return attention(self, project, own_keys(self, count), *arguments)

    def draw_noise(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        """The noise of one call by role, [B, T, E] each, in one draw; {} if it does not sample."""
        if not is_sampling(self):
            return {}
        batch = 0 if self.batch_first else 1
        time = 1 - batch
        count = query.shape[batch]
        queries = query.shape[time]
        keys = key.shape[time]
        lengths = [queries, keys, keys, queries]  # in the order of ROLES
        noise = draw((count, sum(lengths), self.embed_dim), query)
        parts = torch.split(noise, lengths, 1)  # each [B, T, E]
        by_role = zip(ROLES, parts, strict=True)
        return dict(by_role)

    def projection(self, noise: dict[str, Tensor]) -> Projection:
        """The four linear maps with this noise, or without any."""
        means = self.blocks(self.mean_weight())
        shifts = biases(self)
        variances = self.variances() if noise else {}

        def project(role: str, x: Tensor) -> Tensor:
            mean = self.linear_map(x, means[role], shifts[role])
            if not noise:
                return mean
            std = projected_std(x, variances[role])
            spread = std * noise[role]
            return mean + spread

        return project

    def extra_repr(self) -> str:
        rest = super().extra_repr()
        return f"{self.embed_dim}, {self.num_heads}{rest}"


def projected_std(x: Tensor, variance: Tensor) -> Tensor:
    """√v with v = x²∗Var(θ) for x [..., in]: [..., out], or [..., 1] where all outputs share it.

    Args:
        x: the inputs.
        variance: of the weights, [out, in], or [in] or [] where they share one.

    >>> projected_std(torch.tensor([[3.0, 4.0]]), torch.tensor(4.0)).tolist()
    [[10.0]]
    """
    if variance.dim() == 2:
        output = F.linear(x * x, variance)
    elif variance.dim() == 1:
        output = (x * x) @ variance
        output = output.unsqueeze(-1)
    else:
        output = variance * sum_of_squares(x, -1)
    return noise_std(output)


# The type that is ignored is that of forward, which has three inputs here, not one.
class AdditiveMultiheadAttention(AttentionMap, AdditiveNoise):  # type: ignore[misc]
    """``nn.MultiheadAttention`` with additive Gaussian weight noise, θ = φ + σε.

    How it is drawn: see :class:`AttentionMap`.

    Guarantees: rows of a batch have independent noise; biases, and the keys of ``add_bias_kv``,
    have none; in eval mode (and not ``sampling``) the result is that of torch's layer bit for bit;
    its state dicts load.

    Edge cases: ``rates="layer", learned=False`` is the layer of Algorithm 1, whose σ is tied from
    outside by ``set_scale``. While it samples, the layer takes batches only.

    Args:
        embed_dim, ..., batch_first, device, dtype: as for ``nn.MultiheadAttention``.
        rates: "weight", "neuron" (one σ per input unit of each matrix) or "layer".
        learned: whether ``log_sigma2`` is trained.
        log_sigma2: where log σ² starts.
        prior: name or prior; see ``prior_from``.

    >>> layer = AdditiveMultiheadAttention(4, 2, batch_first=True, rates="layer", learned=False)
    >>> layer.set_scale(0.5)
    >>> values, weights = layer(*[torch.ones(2, 3, 4)] * 3)
    >>> torch.equal(values[0], values[1])  # equal rows, unequal noise
    False
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_sigma2: float = -10.0,
        prior: str | Prior = "log-uniform",
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        self.init_noise(rates, learned, log_sigma2, prior)

    def mean_masks(self) -> dict[str, Tensor | None]:
        names = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
        if self._qkv_same_embed_dim:
            names = ["in_proj_weight", "out_proj.weight"]
        if self.kept is None:
            return dict.fromkeys(names)
        by_role = self.blocks(self.kept)
        masks = list(by_role.values())
        if self._qkv_same_embed_dim:
            masks = [torch.cat(masks[:3]), masks[3]]
        return dict(zip(names, masks, strict=True))

    def variances(self) -> dict[str, Tensor]:
        if self.rates is Rates.WEIGHT or self.kept is not None:
            return super().variances()
        shared = self.log_sigma2.exp()
        if self.rates is Rates.LAYER:
            return dict.fromkeys(ROLES, shared)
        return self.blocks(shared)


class MultiplicativeMultiheadAttention(AttentionMap, MultiplicativeNoise):  # type: ignore[misc]
    """``nn.MultiheadAttention`` with multiplicative weight noise of type B, θ = φ(1 + √α ε).

    How it is drawn: see :class:`AttentionMap`.

    Guarantees and edge cases: as for :class:`AdditiveMultiheadAttention`.

    Args:
        embed_dim, ..., batch_first, device, dtype: as for ``nn.MultiheadAttention``.
        kind: "B".
        rates: "layer", "neuron" (one α per input unit of each matrix) or "weight".
        learned: whether ``log_rate`` (log α) is trained.
        log_alpha: where log α starts.
        prior: name or prior; see ``prior_from``.

    Raises:
        DpvdError: type A; an unknown option.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        kind: MultiplicativeKind | str = MultiplicativeKind.B,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_alpha: float = -3.0,
        prior: str | Prior = "log-uniform",
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        if choice(kind, MultiplicativeKind, "kind") is MultiplicativeKind.A:
            raise DpvdError("attention has noise of type B only; use kind='B', or a dense layer")
        self.init_noise(kind, rates, learned, log_alpha, prior)
