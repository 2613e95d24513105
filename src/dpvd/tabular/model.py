"""The model of a table: rows are centred and perhaps whitened, a head gives scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError, positive_int
from dpvd.tabular.codes import class_codes
from dpvd.tabular.linear import Calibration
from dpvd.tabular.network import TableNetwork

__all__ = ["Prediction", "TableModel"]

_CONSTANT = 0.1  # part of a whitened row's squared length that is the constant
_DRAWS = 64
_BLOCK = 8192


@dataclass(frozen=True)
class Prediction:
    """What a model says of rows, with how sure it is.

    Attributes:
        probabilities: [n, classes]; None for regression.
        entropy: [n] of the probabilities, in nats; None for regression.
        mutual_information: [n], the part of the entropy that comes from uncertain weights.
        mean: [n], regression; in the units of the target.
        std: [n], regression: standard deviation of the target, noise and weights together.
    """

    probabilities: Tensor | None = None
    entropy: Tensor | None = None
    mutual_information: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None


def unit_length(rows: Tensor) -> Tensor:
    """Rows scaled to length 1; rows of zeros stay."""
    norms: Tensor = rows.norm(dim=-1, keepdim=True)
    return rows / norms.clamp_min(1e-12)


def _with_constant(white: Tensor) -> Tensor:
    """Rows of length 1 with a constant, again of length 1."""
    constant = torch.full_like(white[..., :1], math.sqrt(_CONSTANT))
    return torch.cat([math.sqrt(1 - _CONSTANT) * white, constant], dim=-1)


class TableModel(nn.Module):
    """A model of centred, perhaps whitened rows, with a Gaussian posterior of its weights.

    Everything that was learnt is a buffer or a parameter: the state dict is the model.

        v = unit(x), or unit(x, constant) if whitened    rows of length 1
        u = unit(v - mean)
        q = (√.9 unit(uW), √.1)                          if whitened
        p = (√.9 unit(u' W'), √.1)                       with hidden units; u' part of u
        s = q w, kept within ``bound``                   scores, k = classes - 1 of them
        s = network(q, p)                                with hidden units: see `TableNetwork`
        logits = gain · codes (s - centre) + offset      classes
        y = offset + gain (s - centre)                   regression, then in the target's units

    The first constant keeps what rows of different length say; few people cannot pay for it.

    Args:
        features: columns of the encoded table.
        classes: number of classes; None for regression.
        whitened: whether rows are whitened.
        constant: what whitened rows are lengthened by, of the size of typical rows.
        target_range: lower and upper bound of the target, regression.
        hidden: number of hidden units; 0 for a linear model. They need whitened rows.
        hidden_features: how many of the features hidden units see; all if None.
        prior_std: of the network's weights, around where they start.
        points: whether the network's weights are points, without a posterior.
    """

    constant: Tensor
    mean: Tensor
    transform: Tensor
    codes: Tensor
    gain: Tensor
    centre: Tensor
    offset: Tensor
    bound: Tensor
    head_std: Tensor
    residual: Tensor
    seen: Tensor
    hidden_transform: Tensor
    target_range: Tensor

    def __init__(
        self,
        features: int,
        classes: int | None,
        *,
        whitened: bool,
        constant: float = 1.0,
        target_range: tuple[float, float] = (-1.0, 1.0),
        hidden: int = 0,
        hidden_features: int | None = None,
        prior_std: float = 1.0,
        points: bool = False,
    ) -> None:
        super().__init__()
        positive_int(features=features)
        if hidden and not whitened:
            raise DpvdError("hidden units need whitened rows")
        if not all(map(math.isfinite, target_range)) or target_range[0] >= target_range[1]:
            raise DpvdError(f"the range of a target goes from low to high, got {target_range!r}")
        self.features = features
        self.classes = classes
        self.whitened = whitened
        codes = torch.ones(1, 1) if classes is None else class_codes(classes).float()
        outputs = codes.shape[1]
        width = features + 1 if whitened else features
        inputs = width + 1 if whitened else width
        self.width = width
        self.head: nn.Linear | TableNetwork
        if hidden:
            seen = features if hidden_features is None else hidden_features
            self.head = TableNetwork(
                inputs, seen + 1, hidden, outputs, prior_std=prior_std, points=points
            )
            self.register_buffer("seen", torch.arange(seen))
            self.register_buffer("hidden_transform", torch.eye(seen))
        else:
            self.head = nn.Linear(inputs, outputs, bias=False)
            nn.init.zeros_(self.head.weight)
            self.register_buffer("head_std", torch.zeros(inputs, outputs))
        self.register_buffer("constant", torch.tensor(float(constant)))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("transform", torch.eye(width if whitened else 0))
        self.register_buffer("codes", codes)
        # With two classes a score is then the logarithm of their odds.
        self.register_buffer("gain", torch.tensor(1.0 if classes is None else 0.5))
        self.register_buffer("centre", torch.zeros(outputs))
        self.register_buffer("offset", torch.zeros(len(codes)))
        self.register_buffer("bound", torch.tensor(math.inf))
        self.register_buffer("residual", torch.tensor(0.0))
        self.register_buffer("target_range", torch.tensor(target_range, dtype=torch.float64))

    def of_unit_length(self, x: Tensor) -> Tensor:
        """v, [..., width]; the width is one more than the features if rows are whitened."""
        rows = x.to(self.mean.dtype)
        if self.whitened:
            rows = torch.cat([rows, self.constant.expand(*rows.shape[:-1], 1)], dim=-1)
        return unit_length(rows)

    def centred(self, x: Tensor) -> Tensor:
        """u, [..., width]."""
        return unit_length(self.of_unit_length(x) - self.mean)

    def inputs(self, x: Tensor) -> Tensor:
        """What the head takes: u, or q if rows are whitened, or (q, p) with hidden units."""
        rows = self.centred(x)
        if not self.whitened:
            return rows
        q = _with_constant(unit_length(rows @ self.transform))
        if isinstance(self.head, nn.Linear):
            return q
        p = _with_constant(unit_length(rows[..., self.seen] @ self.hidden_transform))
        return torch.cat([q, p], dim=-1)

    def unscaled(self, weights: Tensor) -> Tensor:
        """Weights of whitened rows of length 1 as those of q, whose rows are shorter: [d, k]."""
        return weights / math.sqrt(1 - _CONSTANT)

    def scores(self, x: Tensor) -> Tensor:
        """s, [..., k]."""
        return self.bounded(self.head(self.inputs(x)))

    def bounded(self, scores: Tensor) -> Tensor:
        """Scores of a length of at most ``bound``."""
        lengths: Tensor = scores.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return scores * (self.bound / lengths).clamp_max(1.0)

    def outcome(self, scores: Tensor) -> Tensor:
        """Logits [..., classes], or for regression the target within [-1, 1] [...]."""
        moved = self.gain * ((scores - self.centre) @ self.codes.T) + self.offset
        return moved if self.classes is not None else moved.squeeze(-1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, classes]; for regression the mean [n], in the units of the target."""
        outcome = self.outcome(self.scores(x))
        return outcome if self.classes is not None else self._in_units(outcome)

    def set_calibration(self, found: Calibration) -> None:
        """Take how scores relate to targets from their moments.

        Classes: scores of class k are N(m + μ c_k, v), so the logit of class k is
        (μ/v) c_k (s - m) + log π_k, with π_k = (1 + (K - 1) c_k · mean of t) / K.
        """
        self.centre.copy_(found.score_mean)
        if self.classes is None:
            self.gain.fill_(found.slope)
            self.offset.copy_(found.target_mean)
            self.residual.fill_(found.residual)
            return
        self.gain.fill_(found.shift / found.within)
        self.centre.copy_(found.score_mean - found.shift * found.target_mean)
        codes = class_codes(self.classes)
        prior = (1 + (self.classes - 1) * (codes @ found.target_mean)) / self.classes
        prior = prior.clamp_min(0.5 / self.classes / 10)
        self.offset.copy_((prior / prior.sum()).log())

    @torch.no_grad()
    def predict(
        self, x: Tensor, *, draws: int = _DRAWS, generator: torch.Generator | None = None
    ) -> Prediction:
        """The predictive distribution: averages over the posterior of the weights.

        The head was fitted with the noise in it, so its own probabilities are calibrated, and
        averaging must not flatten them again: draws are made around logits that are enlarged by
        √(1 + πv/8), v the variance of a difference of two logits, which averaging takes back.

        Args:
            x: [n, features] encoded rows.
            draws: of the scores.
            generator: where they come from; seeded with 0 if None, since they protect nothing.
        """
        source = torch.Generator().manual_seed(0) if generator is None else generator
        # All rows share the draws, so that what is said of one does not depend on the others; each
        # comes with its opposite, so that they favour no class.
        half = torch.randn((draws + 1) // 2, 1, self.head.out_features, generator=source)
        normals = torch.cat([half, -half])[:draws].to(self.mean.dtype)
        parts = [self._predict(rows, normals) for rows in torch.split(x, _BLOCK)]
        if self.classes is None:
            means, stds = zip(*parts, strict=True)
            return Prediction(mean=torch.cat(means), std=torch.cat(stds))
        probabilities, information = zip(*parts, strict=True)
        together = torch.cat(probabilities)
        return Prediction(together, _entropy(together), torch.cat(information))

    def _predict(self, x: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.inputs(x)
        scores = self.bounded(self.head(rows))  # [n, k]
        variance = self._variance(rows)  # [n, k]
        if self.classes is None:
            low, high = self.target_range.tolist()
            total = self.residual + self.gain**2 * variance.squeeze(-1)
            return self._in_units(self.outcome(scores)), total.sqrt() * (high - low) / 2
        noise = normals * variance.sqrt()  # [draws, n, k]
        moves = self.gain * (noise @ self.codes.T)  # [draws, n, classes]
        apart = 2 * self.classes / (self.classes - 1)  # squared distance of two codes
        v = apart * self.gain**2 * variance.mean(-1, keepdim=True)  # [n, 1]
        enlarged = self.outcome(scores) * (1 + math.pi / 8 * v).sqrt()
        members = (enlarged + moves).softmax(-1)
        mean = members.mean(0)
        return mean, (_entropy(mean) - _entropy(members).mean(0)).clamp_min(0.0)

    def _variance(self, rows: Tensor) -> Tensor:
        """Of the scores, under the posterior of the weights."""
        if isinstance(self.head, TableNetwork):
            return self.head.variance(rows)
        return rows.square() @ self.head_std.square()

    def _in_units(self, outcome: Tensor) -> Tensor:
        low, high = self.target_range.tolist()
        share: Tensor = (outcome.clamp(-1.0, 1.0) + 1) / 2
        return share.mul(high - low).add(low)


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.xlogy(probabilities, probabilities).sum(-1)
