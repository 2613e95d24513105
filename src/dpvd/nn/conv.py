"""Convolutions with noise on their weights; one constructor serves all dimensions.

The noise is in ``noise_families``.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError, choice
from dpvd.nn.kl_term.priors import Prior
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.noise import inside_transform
from dpvd.nn.noise_families import AdditiveNoise, MultiplicativeKind, MultiplicativeNoise
from dpvd.nn.sum_of_squares import with_sum_of_squares

__all__ = [
    "AdditiveConv",
    "AdditiveConv1d",
    "AdditiveConv2d",
    "AdditiveConv3d",
    "AdditiveConvTranspose2d",
    "MultiplicativeConv",
    "MultiplicativeConv1d",
    "MultiplicativeConv2d",
    "MultiplicativeConv3d",
    "unfolded",
]

Size: TypeAlias = int | tuple[int, ...]
Size2d: TypeAlias = int | tuple[int, int]

_UNFOLDED_WEIGHTS = 32  # entries of one output channel: an unfolding is so many times the input


class ConvMap(VariationalLayer):
    """The linear map of ``nn.Conv1d/2d/3d``: x [B, in, *] → [B, out, *].

    Padding of any mode commutes with squaring, so the variance at padded positions is right too.
    """

    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        conv_forward: Any = self._conv_forward  # that of torch's class
        result: Tensor = conv_forward(x, weight, bias)
        return result


class AdditiveConv(ConvMap, AdditiveNoise):
    """Convolution with additive Gaussian weight noise, θ = φ + σε (sparse variational dropout).

    y = x∗φ + b + √v ε with v = x²∗σ² and ε drawn per example, output channel and position: each
    output has the distribution that weight noise would have caused; that outputs at different
    positions share weights, and so would be correlated, is ignored (Molchanov et al. do the same).

    Guarantees: rows of a batch have independent noise; the bias has none; in eval mode (and not
    ``sampling``) the result is that of torch's layer bit for bit; σ = 0 gives the same in training
    mode (up to rounding, if σ is learned for each weight and the layer the first).

    Edge cases: a rate per input unit ("neuron") is one per input channel of a group.

    Args:
        in_channels, ..., dtype: as for ``nn.Conv2d``.
        rates: "weight", "neuron" (one σ per input channel) or "layer".
        learned: whether ``log_sigma2`` is trained.
        log_sigma2: where log σ² starts.
        prior: name or prior; see ``prior_from``.

    References: Molchanov, Ashukha and Vetrov (arXiv:1701.05369v3), "Additive noise
    reparameterization".
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_sigma2: float = -10.0,
        prior: str | Prior = "log-uniform",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = (kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(in_channels, out_channels, *geometry, device=device, dtype=dtype)
        self.init_noise(rates, learned, log_sigma2, prior)

    def output_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.rates is Rates.LAYER and self.kept is None and self.groups == 1:
            x, squares = with_sum_of_squares(x, 1)  # squares: [B, 1, *]
            under_kernel = self._sum_under_kernel(squares)
            variance = self.log_sigma2.exp() * under_kernel
            mean = self.linear_map(x, self.weight, self.bias)
            return mean, variance
        if not self._is_unfolded(x):
            return super().output_moments(x)
        # [B, *positions, in · entries of the kernel]
        patches = unfolded(x, self.kernel_size, self.stride, self.dilation)
        mean_matrix = self.mean_weight().flatten(1)
        mean = F.linear(patches, mean_matrix, self.bias)
        variance_matrix = self.weight_variance().flatten(1)
        variance = F.linear(patches.square(), variance_matrix)
        return mean.movedim(-1, 1), variance.movedim(-1, 1)

    def _is_unfolded(self, x: Tensor) -> bool:
        """Whether mean and variance are made from one unfolding of the inputs.

        That takes less than half the time, and pays in a first layer: the inputs need no gradient,
        and channels are too few for libraries for convolutions, whose weight gradients are slow
        there. Without learned rates, σ may be 0, and the mean then has to be torch's bit for bit.
        """
        no_padding = (0,) * len(self.kernel_size)
        unpadded = self.padding in (no_padding, "valid")
        undilated = set(self.dilation) == {1}
        simple = unpadded and undilated and self.groups == 1
        small = self.weight[0].numel() <= _UNFOLDED_WEIGHTS
        own_rates = self.learned and self.rates is Rates.WEIGHT
        first = not x.requires_grad and x.dim() == self.weight.dim()
        return simple and small and own_rates and first and not inside_transform()

    def output_variance(self, x: Tensor) -> Tensor:
        """v: [B, out, *], or [B, 1, *] where all output channels have the same."""
        if self.rates is Rates.NEURON and self.kept is None and self.groups == 1:
            one_channel = self.weight[:1]  # [1, in, *]
            variance = self.log_sigma2.exp().expand_as(one_channel)
            return self.linear_map(x * x, variance, None)
        return super().output_variance(x)

    def _sum_under_kernel(self, squares: Tensor) -> Tensor:
        """[B, 1, *]: for each position of the kernel, the sum of [B, 1, *]."""
        if self.padding_mode == "zeros" and not isinstance(self.padding, str):
            return _window_sums(squares, self.kernel_size, self.stride, self.padding, self.dilation)
        ones = torch.ones_like(self.weight[:1, :1])
        return self.linear_map(squares, ones, None)


def unfolded(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """The parts of x [B, in, *] under the kernel at each position, as vectors.

    Returns:
        [B, *positions, in · entries of the kernel].

    >>> unfolded(torch.arange(4.0).view(1, 1, 4), kernel=[2], stride=[1], dilation=[1]).tolist()
    [[[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]]
    """
    geometry = zip(kernel, stride, dilation, strict=True)
    for dim, (size, step, gap) in enumerate(geometry, start=2):
        reach = gap * (size - 1) + 1
        x = x.unfold(dim, reach, step)
        x = x[..., ::gap]
    # [B, in, *positions, *kernel]: channels behind the positions, then one vector.
    channels = 1 + len(kernel)
    x = x.movedim(1, channels)
    return x.flatten(channels)


def _window_sums(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Σ of x [B, 1, *] over each position of the kernel.

    One product with a matrix of zeros and ones in each dimension does it. A convolution with a
    kernel of ones would do the same; libraries for convolutions are slow at it.
    """
    geometries = zip(kernel, stride, padding, dilation, strict=True)
    for dim, geometry in enumerate(geometries, start=2):
        window = _window_matrix(x.shape[dim], *geometry).to(x)  # [size, positions]
        x = torch.tensordot(x, window, dims=([dim], [0]))
        x = x.movedim(-1, dim)
    return x


@lru_cache(maxsize=64)
def _window_matrix(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Tensor:
    """[size, positions]: 1 where an entry lies under the kernel at a position."""
    reach = dilation * (kernel - 1) + 1
    positions = (size + 2 * padding - reach) // stride + 1
    entries = torch.arange(size).unsqueeze(1) + padding  # [size, 1]
    starts = stride * torch.arange(positions)  # [positions]
    distance = entries - starts
    inside = (distance >= 0) & (distance < dilation * kernel)
    covered = inside & (distance % dilation == 0)
    return covered.float()


class AdditiveConv1d(AdditiveConv, nn.Conv1d):
    """``nn.Conv1d`` with additive weight noise: see :class:`AdditiveConv`."""


class AdditiveConv2d(AdditiveConv, nn.Conv2d):
    """``nn.Conv2d`` with additive weight noise: see :class:`AdditiveConv`.

    >>> layer = AdditiveConv2d(1, 4, kernel_size=3, padding=1)
    >>> layer(torch.ones(2, 1, 5, 5)).shape, layer.log_sigma2.shape
    (torch.Size([2, 4, 5, 5]), torch.Size([4, 1, 3, 3]))
    """


class AdditiveConv3d(AdditiveConv, nn.Conv3d):
    """``nn.Conv3d`` with additive weight noise: see :class:`AdditiveConv`."""


# The type that is ignored is that of forward, which has no output_size here.
class AdditiveConvTranspose2d(AdditiveNoise, nn.ConvTranspose2d):  # type: ignore[misc]
    """``nn.ConvTranspose2d`` with additive weight noise, θ = φ + σε; see :class:`AdditiveConv`.

    Args:
        in_channels, ..., dtype: as for ``nn.ConvTranspose2d``, which pads with zeros only.
        rates, learned, log_sigma2, prior: as for :class:`AdditiveConv`.
    """

    input_dim = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2d,
        stride: Size2d = 1,
        padding: Size2d = 0,
        output_padding: Size2d = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size2d = 1,
        *,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_sigma2: float = -10.0,
        prior: str | Prior = "log-uniform",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            device=device,
            dtype=dtype,
        )
        self.init_noise(rates, learned, log_sigma2, prior)

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv_transpose2d(
            x,
            weight,
            bias,
            self.stride,
            self.padding,  # type: ignore[arg-type]
            self.output_padding,
            self.groups,
            self.dilation,
        )


class MultiplicativeConv(ConvMap, MultiplicativeNoise):
    """Convolution with multiplicative weight noise of type B (variational dropout).

    θ = φ(1 + √α ε), that is y = x∗φ + b + √v ε with v = x²∗(αφ²) and ε drawn per example, output
    channel and position.

    Args:
        in_channels, ..., dtype: as for ``nn.Conv2d``.
        kind: "B".
        rates: "layer", "neuron" (one α per input channel) or "weight".
        learned: whether ``log_rate`` (log α) is trained.
        log_alpha: where log α starts.
        prior: name or prior; see ``prior_from``.

    Raises:
        DpvdError: type A; an unknown option.

    References: Kingma, Salimans and Welling (arXiv:1506.02557v2), Sec. 3.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        kind: MultiplicativeKind | str = MultiplicativeKind.B,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_alpha: float = -3.0,
        prior: str | Prior = "log-uniform",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = (kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        super().__init__(in_channels, out_channels, *geometry, device=device, dtype=dtype)
        if choice(kind, MultiplicativeKind, "kind") is MultiplicativeKind.A:
            raise DpvdError("convolutions have type B only; use kind='B', or a dense layer")
        self.init_noise(kind, rates, learned, log_alpha, prior)


class MultiplicativeConv1d(MultiplicativeConv, nn.Conv1d):
    """``nn.Conv1d`` with multiplicative weight noise: see :class:`MultiplicativeConv`."""


class MultiplicativeConv2d(MultiplicativeConv, nn.Conv2d):
    """``nn.Conv2d`` with multiplicative weight noise: see :class:`MultiplicativeConv`."""


class MultiplicativeConv3d(MultiplicativeConv, nn.Conv3d):
    """``nn.Conv3d`` with multiplicative weight noise: see :class:`MultiplicativeConv`."""
