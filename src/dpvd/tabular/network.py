"""The small variational network of a table: a hidden layer beside a linear path."""

import math

import torch
from torch import Tensor, nn

from dpvd.errors import positive, positive_int
from dpvd.nn import AdditiveLinear, Gaussian

__all__ = ["TableNetwork"]

_SPREAD = 2.0  # standard deviation of a hidden unit's input at the start
_REACH = 0.5  # length that the vector of all hidden units stays below


class TableNetwork(nn.Module):
    """Scores of a linear path, and of a hidden layer of tanh units beside it.

        s = q (φ + δ) + h U        h = reach/√H tanh(p (V₀ + Δ))

    δ, Δ and U are what is learnt, from zero: deviations from where the weights start. Their prior
    is N(0, s²), so that of the linear path is N(φ, s²) and that of the hidden layer N(V₀, s²): the
    released statistics φ are start and mean of the prior at once. V₀ is drawn from a public seed.

    Args:
        inputs: entries of q, of length 1.
        hidden_inputs: entries of p, of length 1; a row is (q, p).
        hidden: H, number of tanh units.
        outputs: scores of a row.
        prior_std: s.
        points: whether weights are points; otherwise they are sampled in training, with the scale
            of the privacy noise (Algorithm 1), and have a posterior afterwards.
    """

    start: Tensor
    initial: Tensor

    def __init__(
        self,
        inputs: int,
        hidden_inputs: int,
        hidden: int,
        outputs: int,
        *,
        prior_std: float = 1.0,
        points: bool = False,
    ) -> None:
        super().__init__()
        positive_int(inputs=inputs, hidden_inputs=hidden_inputs, hidden=hidden, outputs=outputs)
        positive(prior_std=prior_std)
        self.inputs = inputs
        self.in_features = inputs + hidden_inputs
        self.out_features = outputs
        self.points = points
        self.prior_std = prior_std
        self.scale = _REACH / math.sqrt(hidden)
        prior = Gaussian(prior_std)

        def layer(wide: int, high: int) -> nn.Linear:
            if points:
                made = nn.Linear(wide, high, bias=False)
            else:
                made = AdditiveLinear(
                    wide, high, bias=False, rates="layer", learned=False, prior=prior
                )
            nn.init.zeros_(made.weight)
            return made

        self.linear = layer(inputs, outputs)
        self.hidden = layer(hidden_inputs, hidden)
        self.out = layer(hidden, outputs)
        drawn = torch.randn(hidden, hidden_inputs, generator=torch.Generator().manual_seed(0))
        self.register_buffer("start", torch.zeros(outputs, inputs))
        self.register_buffer("initial", _SPREAD * drawn)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores [..., outputs] of rows [..., inputs + hidden_inputs]."""
        q, p = self._split(rows)
        linear: Tensor = self.linear(q) + q @ self.start.T
        through_units: Tensor = self.out(self._units(p))
        return linear + through_units

    @torch.no_grad()
    def variance(self, rows: Tensor) -> Tensor:
        """Variance of the scores [..., outputs] under the posterior, to first order in Δ."""
        q, p = self._split(rows)
        if self.points:
            return torch.zeros_like(q @ self.start.T)
        sigma2 = self._sigma2()
        units = self._units(p)
        slopes = self.scale * (1 - (units / self.scale).square())
        # ∂s/∂Δ of unit j is U slopeⱼ p, ∂s/∂U is h, ∂s/∂δ is q.
        through = slopes.square() @ self.out.weight.square().T
        lengths = q.square().sum(-1, keepdim=True) + units.square().sum(-1, keepdim=True)
        return sigma2 * (lengths + through * p.square().sum(-1, keepdim=True))

    def set_posterior(self, std: float) -> None:
        """Give all weights this standard deviation."""
        for layer in (self.linear, self.hidden, self.out):
            if isinstance(layer, AdditiveLinear):
                layer.set_scale(std)

    def _sigma2(self) -> Tensor:
        assert isinstance(self.linear, AdditiveLinear)  # asked of points never
        return self.linear.log_sigma2.exp()

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[..., : self.inputs], rows[..., self.inputs :]

    def _units(self, p: Tensor) -> Tensor:
        """h, [..., H]."""
        moved: Tensor = self.hidden(p)
        return self.scale * torch.tanh(moved + p @ self.initial.T)
