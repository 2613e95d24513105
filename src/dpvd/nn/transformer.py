"""The encoder layer of a transformer with noise on its weights."""

from typing import Any

import torch
from torch import Tensor, nn

from dpvd.nn.counterparts import LayerName, converted, counterparts
from dpvd.nn.noise import is_sampling

__all__ = ["VariationalTransformerEncoderLayer"]


class VariationalTransformerEncoderLayer(nn.TransformerEncoderLayer):
    """``nn.TransformerEncoderLayer`` whose attention and dense layers are variational.

    It computes what torch's layer does, x + attention and x + dense layers, normalised before or
    after.

    Guarantees: rows of a batch have independent noise; normalisation has none; in eval mode (and
    not ``sampling``) the result is that of torch's layer bit for bit; its state dicts load. Inside
    ``nn.TransformerEncoder`` too, which copies it, the layer samples when it is asked to: torch's
    fast path for eval mode, which reads the weights past the layers that own them, is taken only
    where nothing samples.

    Edge cases: with ``batch_first=False`` the inner layers still see the batch first, so that one
    row of their noise belongs to one example. Ordinary dropout comes on top of the noise;
    ``dropout=0`` leaves the noise alone.

    Args:
        sizes, options: as for ``nn.TransformerEncoderLayer``.
        layer: the family, "additive" or "multiplicative"; or "gaussian" or "binary", in which
            attention stays plain.
        noise: options of its layers: ``rates``, ``learned``, ``log_sigma2`` and so on.

    Raises:
        DpvdError: an unknown family or option of it.

    >>> noise = {"rates": "layer"}
    >>> layer = VariationalTransformerEncoderLayer(4, 2, 8, batch_first=True, noise=noise)
    >>> type(layer.self_attn).__name__, layer.linear1.rates.value
    ('AdditiveMultiheadAttention', 'layer')
    >>> layer(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(
        self,
        *sizes: Any,
        layer: LayerName | str = LayerName.ADDITIVE,
        noise: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*sizes, **options)
        classes = counterparts(layer)
        for name in ("self_attn", "linear1", "linear2"):
            plain = getattr(self, name)
            if type(plain) in classes:
                cls = classes[type(plain)]
                setattr(self, name, converted(cls, plain, noise or {}))

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        samples = any(is_sampling(child) for child in self.children())
        if not (self.training or samples):
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        if src.is_nested:
            return self._padded(src)
        x = self._swapped(src)
        if self.norm_first:
            normal = self.norm1(x)
            x = x + self._attend(normal, src_mask, src_key_padding_mask, is_causal)
            normal = self.norm2(x)
            x = x + self._ff_block(normal)
        else:
            attended = self._attend(x, src_mask, src_key_padding_mask, is_causal)
            x = self.norm1(x + attended)
            dense = self._ff_block(x)
            x = self.norm2(x + dense)
        return self._swapped(x)

    def _attend(
        self,
        x: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        """Attention of [B, T, E] to itself, through a layer that may want the time first."""
        x = self._swapped(x)
        attended = self._sa_block(x, mask, padding, is_causal)
        return self._swapped(attended)

    def _swapped(self, x: Tensor) -> Tensor:
        """From the layer's order of dimensions to batch first, or back."""
        if self.self_attn.batch_first or x.dim() < 3:  # a single sequence has one order only
            return x
        return x.transpose(0, 1)

    def _padded(self, src: Tensor) -> Tensor:
        """Sequences of unequal length.

        ``nn.TransformerEncoder`` nests them in eval mode where a mask hides padding.
        """
        lengths = [len(sequence) for sequence in src.unbind()]
        padded = src.to_padded_tensor(0.0)
        time = torch.arange(padded.shape[1], device=src.device)
        ends = torch.tensor(lengths, device=src.device)
        hidden = time >= ends[:, None]  # [B, T]
        result = self(padded, src_key_padding_mask=hidden)
        rows = [row[:length] for row, length in zip(result, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows)
