"""Recurrent layers with noise on their weights: one draw for each example and sequence."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.nn.kl_term.priors import Prior
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.noise import draw, is_sampling
from dpvd.nn.noise_families import AdditiveNoise
from dpvd.nn.recurrent.cells import CELLS
from dpvd.nn.recurrent.scan import Noise
from dpvd.nn.recurrent.unroll import Weights, WeightsOf, directions, own_weights, unroll

__all__ = ["AdditiveGRU", "AdditiveLSTM", "AdditiveRNN", "AdditiveRecurrent"]


class AdditiveRecurrent(AdditiveNoise, nn.RNNBase):
    """Additive Gaussian noise θ = φ + σε on all weight matrices of a recurrent layer.

    It is drawn by local reparameterisation. Each weight matrix adds √v ε to the pre-activations of
    the gates, with v = x²σ² (or h²σ²) as it changes from step to step, and one ε for each example,
    matrix and gate unit, the *same at every step*: the weights do not change within a sequence. At
    every step the noise has the distribution that noise on the weights would have caused; across
    steps it is fully correlated, where that of random weights is correlated as the inputs are.

    Guarantees: rows of a batch have independent noise; biases have none; in eval mode (and not
    ``sampling``) the result is that of the torch layer bit for bit.

    Edge cases: while it samples, a layer takes sequences [B, T, in] (or [T, B, in]) only, not
    packed ones.

    Attributes:
        weight: the means of all weights, [gates, Σ in]: the weight matrices of the torch layer side
            by side, in the order of ``names``. ``log_sigma2``, ``kept`` and ``log_alpha()`` have
            the same form.
    """

    def __init__(
        self,
        *sizes: Any,
        rates: Rates | str = Rates.WEIGHT,
        learned: bool = True,
        log_sigma2: float = -10.0,
        prior: str | Prior = "log-uniform",
        **options: Any,
    ) -> None:
        if options.get("proj_size"):
            name = type(self).__name__
            raise DpvdError(f"{name} has no projection: leave proj_size out, and add an nn.Linear")
        super().__init__(*sizes, **options)
        self.init_noise(rates, learned, log_sigma2, prior)

    @property
    def names(self) -> list[str]:
        """The names of the weight matrices."""
        names = []
        for depth in range(self.num_layers):
            for suffix in directions(self):
                names += [f"weight_ih_l{depth}{suffix}", f"weight_hh_l{depth}{suffix}"]
        return names

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        matrices = [getattr(self, name) for name in self.names]
        return torch.cat(matrices, 1)

    def blocks(self, matrix: Tensor) -> dict[str, Tensor]:
        """Split [..., Σ in] into the parts of the weight matrices, by name."""
        parts = torch.split(matrix, self._widths, -1)
        return dict(zip(self.names, parts, strict=True))

    def mean_masks(self) -> dict[str, Tensor | None]:
        if self.kept is None:
            return dict.fromkeys(self.names)
        return {**self.blocks(self.kept)}

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """That of one weight matrix."""
        return F.linear(x, weight, bias)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "log_sigma2"):  # torch's constructor calls this before there is noise
            self.reset_noise()

    @torch.no_grad()
    def prune(self, threshold: float) -> None:
        self.kept = self.log_alpha() < threshold
        for name, kept in self.blocks(self.kept).items():
            matrix = getattr(self, name)
            matrix.masked_fill_(~kept, 0.0)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if not is_sampling(self) and self.kept is None:
            return super(VariationalLayer, self).forward(input, hx)  # that of the torch layer
        weights_of = self.weights_for(input)
        return unroll(self, input, hx, weights_of)

    def weights_for(self, input: Tensor) -> WeightsOf:
        """The means, and if the layer samples also noise, drawn anew for this input."""
        if not isinstance(input, Tensor) or input.dim() != 3:
            raise DpvdError(
                f"{type(self).__name__} draws noise for each example and takes one tensor of "
                "dimension 3; pad sequences of unequal length instead of packing them, and give a "
                "single one a batch of 1"
            )
        own = own_weights(self)
        noise = self._draw_noise(input)
        kept = {} if self.kept is None else self.blocks(self.kept)

        def weights_of(end: str) -> Weights:
            weights = own(end)
            ih = f"weight_ih_{end}"
            hh = f"weight_hh_{end}"
            if kept:
                mean_ih = weights.ih * kept[ih]
                mean_hh = weights.hh * kept[hh]
                weights = replace(weights, ih=mean_ih, hh=mean_hh)
            return replace(weights, noise_ih=noise.get(ih), noise_hh=noise.get(hh))

        return weights_of

    def _draw_noise(self, input: Tensor) -> dict[str, Noise]:
        """By matrix; nothing where the layer does not sample."""
        if not is_sampling(self):
            return {}
        gates = CELLS[self.mode].blocks * self.hidden_size
        count = input.shape[0 if self.batch_first else 1]
        matrices = len(self.names)
        together = draw((count, matrices * gates), input)
        draws = together.chunk(matrices, 1)  # each [B, gates]
        variances = self.blocks(self._variance_rows())
        noise = {}
        for (name, variance), epsilon in zip(variances.items(), draws, strict=True):
            noise[name] = Noise(variance, epsilon)
        return noise

    def _variance_rows(self) -> Tensor:
        """σ² as [gates, Σ in], or [1, Σ in] where all gates share it: v then is one per example."""
        if self.rates is Rates.WEIGHT or self.kept is not None:
            return self.weight_variance()
        variance = self.log_sigma2.exp()
        width = sum(self._widths)
        row = variance.expand(1, width)
        return row.contiguous()

    @property
    def _widths(self) -> list[int]:
        return [getattr(self, name).shape[1] for name in self.names]


class AdditiveRNN(AdditiveRecurrent, nn.RNN):  # type: ignore[misc]
    """``nn.RNN`` with additive weight noise; see :class:`AdditiveRecurrent`.

    Args:
        sizes, options: as for ``nn.RNN``.
        rates: "weight", "neuron" (one σ per input unit of each matrix) or "layer".
        learned, log_sigma2, prior: as for ``AdditiveLinear``.
    """


class AdditiveGRU(AdditiveRecurrent, nn.GRU):  # type: ignore[misc]
    """``nn.GRU`` with additive weight noise; see :class:`AdditiveRecurrent`.

    Args:
        sizes, options: as for ``nn.GRU``.
        rates: "weight", "neuron" (one σ per input unit of each matrix) or "layer".
        learned, log_sigma2, prior: as for ``AdditiveLinear``.
    """


class AdditiveLSTM(AdditiveRecurrent, nn.LSTM):  # type: ignore[misc]
    """``nn.LSTM`` with additive weight noise; see :class:`AdditiveRecurrent`.

    Args:
        sizes, options: as for ``nn.LSTM``, without ``proj_size``.
        rates: "weight", "neuron" (one σ per input unit of each matrix) or "layer".
        learned, log_sigma2, prior: as for ``AdditiveLinear``.

    >>> layer = AdditiveLSTM(3, 2, rates="layer", learned=False, batch_first=True)
    >>> layer.set_scale(0.5)
    >>> outputs, (h, c) = layer(torch.ones(2, 4, 3))
    >>> torch.equal(outputs[0], outputs[1])  # equal rows, unequal noise
    False
    """
