"""Recurrent layers with noise on their weights: one draw for each example and sequence."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.errors import DpvdError
from dpvd.nn.families import AdditiveNoise
from dpvd.nn.functional import noise_std
from dpvd.nn.layer import Rates, VariationalLayer
from dpvd.nn.noise import draw, is_sampling
from dpvd.nn.priors import Prior
from dpvd.nn.unroll import LinearMap, as_sequence, directions, unroll

__all__ = ["AdditiveGRU", "AdditiveLSTM", "AdditiveRNN", "AdditiveRecurrent"]


class AdditiveRecurrent(AdditiveNoise, nn.RNNBase):
    """Additive Gaussian noise θ = φ + σε on all weight matrices of a recurrent layer, by local reparameterisation.

    Each weight matrix adds √v ε to the pre-activations of the gates, with v = x²σ² (or h²σ²) as it changes from step
    to step, and one ε for each example, matrix and gate unit, the *same at every step*: the weights do not change
    within a sequence. At every step the noise has the distribution that noise on the weights would have caused;
    across steps it is fully correlated, where that of random weights is correlated as the inputs are.

    Guarantees: rows of a batch have independent noise; biases have none; in eval mode (and not ``sampling``) the
    result is that of the torch layer bit for bit.

    Edge cases: while it samples, a layer takes sequences [B, T, in] (or [T, B, in]) only, not packed ones.

    Attributes:
        weight: the means of all weights, [gates, Σ in]: the weight matrices of the torch layer side by side, in the
            order of ``names``. ``log_sigma2``, ``kept`` and ``log_alpha()`` have the same form.
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
            raise DpvdError(f"{type(self).__name__} has no projection: leave proj_size out, and add an nn.Linear")
        super().__init__(*sizes, **options)
        self.init_noise(rates, learned, log_sigma2, prior)

    @property
    def names(self) -> list[str]:
        """The names of the weight matrices."""
        ends = [f"l{depth}{suffix}" for depth in range(self.num_layers) for suffix in directions(self)]
        return [f"weight_{side}_{end}" for end in ends for side in ("ih", "hh")]

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return torch.cat([getattr(self, name) for name in self.names], 1)

    def blocks(self, matrix: Tensor) -> dict[str, Tensor]:
        """Split [..., Σ in] into the parts of the weight matrices, by name."""
        widths = [getattr(self, name).shape[1] for name in self.names]
        return dict(zip(self.names, torch.split(matrix, widths, -1), strict=True))

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """That of one weight matrix."""
        return F.linear(x, weight, bias)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "log_sigma2"):  # torch calls this in its constructor, before there is noise
            self.reset_noise()

    @torch.no_grad()
    def prune(self, threshold: float) -> None:
        self.kept = self.log_alpha() < threshold
        for name, kept in self.blocks(self.kept).items():
            getattr(self, name).masked_fill_(~kept, 0.0)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if not is_sampling(self) and self.kept is None:
            return super(VariationalLayer, self).forward(input, hx)  # that of the torch layer
        if not isinstance(input, Tensor) or input.dim() != 3:
            raise DpvdError(
                f"{type(self).__name__} draws noise for each example and takes one tensor of dimension 3; "
                "pad sequences of unequal length instead of packing them, and give a single one a batch of 1"
            )
        x, state = as_sequence(self, input, hx)
        gates = sum(len(getattr(self, name)) for name in self.names)
        noise = draw((x.shape[1], gates), x) if is_sampling(self) else None
        outputs, ends = unroll(self, x, state, self.gate_map(noise))
        return outputs.transpose(0, 1) if self.batch_first else outputs, ends if len(ends) > 1 else ends[0]

    def gate_map(self, noise: Tensor | None) -> LinearMap:
        """The map from a value to noisy pre-activations, for one draw [B, matrices · gates], or without noise."""
        means, variances = self.blocks(self.mean_weight()), self.blocks(self.weight_variance().expand_as(self.weight))
        draws = None if noise is None else self.noise_of(noise)

        def linear_map(name: str, value: Tensor) -> Tensor:
            bias = getattr(self, name.replace("weight", "bias")) if self.bias else None
            mean = self.linear_map(value, means[name], bias)
            return mean if draws is None else mean + gate_std(value, variances[name]) * draws[name]

        return linear_map

    def noise_of(self, noise: Tensor) -> dict[str, Tensor]:
        """One draw [B, matrices · gates] by the name of the matrix."""
        return dict(zip(self.names, noise.chunk(len(self.names), 1), strict=True))


def gate_std(value: Tensor, variance: Tensor) -> Tensor:
    """√(x²σ²) for inputs [..., in] and variances [gates, in] of the weights."""
    return noise_std(F.linear(value.square(), variance))


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
