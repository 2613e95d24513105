"""The networks that runs train: the paper's single hidden layer, by method."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.data import centred, flatten, unit_norm
from dpvd.errors import DpvdError, choice, positive_int
from dpvd.nn import variational
from dpvd.training import PRE_ACTIVATION

__all__ = ["Method", "NetworkSpec", "Scale"]


class Method(StrEnum):
    """How a run trains."""

    DPVD = "dpvd"
    """Differentially private variational dropout: Algorithm 1."""
    SVI = "svi"
    """The paper's baseline without dropout: point weights under a Gaussian prior, private."""
    DPSGD = "dpsgd"
    """Private stochastic gradient descent (Abadi et al.): no prior, no dropout."""
    NONE = "none"
    """Ordinary training, without privacy."""


class Scale(StrEnum):
    """Where the scale ζ of the weights' posterior comes from."""

    PRIVACY = "privacy"
    """Tied to the privacy noise of each step: Algorithm 1."""
    LEARNED = "learned"
    """Trained by stochastic variational inference, privately, one for each weight."""
    FIXED = "fixed"
    """Gaussian dropout with a given rate."""
    NONE = "none"
    """No scale: weights are points."""


@dataclass(frozen=True)
class NetworkSpec:
    """A fully connected ReLU network with one hidden layer, and the noise on its weights.

    Args:
        features: number of inputs.
        hidden: hidden units.
        classes: outputs.
        scale: where the posterior's scale comes from.
        rate: dropout rate of the fixed scale.
        prior: name of the prior of the KL term.
        input_norm: L2 norm that each example's inputs are scaled to, by themselves; None leaves them as they are.
        centred: whether the mean of an example's inputs is taken off before that.
    """

    features: int
    hidden: int
    classes: int
    scale: Scale = Scale.NONE
    rate: float = 0.1
    prior: str = "log-uniform"
    input_norm: float | None = None
    centred: bool = False

    def __post_init__(self) -> None:
        positive_int(features=self.features, hidden=self.hidden, classes=self.classes)
        object.__setattr__(self, "scale", choice(self.scale, Scale, "scale"))

    def build(self, seed: int = 0) -> nn.Module:
        """The network with its initial weights, which follow from the seed alone.

        Raises:
            DpvdError: if it does not fit into memory.
        """
        generator = torch.Generator().manual_seed(seed)
        try:
            first, last = _empty_linear(self.features, self.hidden), _empty_linear(self.hidden, self.classes)
        except (RuntimeError, TypeError) as error:  # torch's ways to say "too large"
            raise DpvdError(f"a network of {self.parameters:,} parameters does not fit into memory") from error
        with torch.no_grad():
            first.weight.normal_(0, self._first_std(), generator=generator)
            last.weight.zero_()  # the first steps then move the outputs only by what the data says
            first.bias.zero_()
            last.bias.zero_()
        plain = nn.Sequential(first, nn.ReLU(), last)
        match self.scale:
            case Scale.PRIVACY:
                return variational(plain, "additive", rates="layer", learned=False, prior=self.prior)
            case Scale.LEARNED:
                return variational(plain, "additive", prior=self.prior)
            case Scale.FIXED:
                return variational(plain, "gaussian", rate=self.rate)
            case Scale.NONE:
                return plain

    def _first_std(self) -> float:
        """Inputs of one norm give pre-activations of one standard deviation, whatever the number of features."""
        return self.features**-0.5 if self.input_norm is None else PRE_ACTIVATION / self.input_norm

    def inputs(self, x: Tensor) -> Tensor:
        """Raw examples [n, ...] as the network takes them: [n, features]. Each row depends on its example alone."""
        rows = flatten(x if x.is_floating_point() else x.float())
        if rows.shape[1] != self.features:
            raise DpvdError(f"the network takes {self.features} features for each example, got {rows.shape[1]}")
        if self.centred:
            rows = centred(unit_norm(rows))  # large values are brought into range first: their mean could overflow
        return rows if self.input_norm is None else unit_norm(rows) * self.input_norm

    def describe_inputs(self) -> str:
        """What is done to each example, in words."""
        parts = ["centred on its own mean"] if self.centred else []
        parts += [] if self.input_norm is None else [f"scaled to L2 norm {self.input_norm:g}"]
        return f"each example by itself {' and '.join(parts)}" if parts else "used as it is"

    @property
    def parameters(self) -> int:
        """How many weights and biases there are."""
        return (self.features + 1) * self.hidden + (self.hidden + 1) * self.classes

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"scale": str(self.scale)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "NetworkSpec":
        known = {f.name for f in fields(cls)}
        if set(values) != known:
            raise DpvdError(f"not a network: fields {sorted(set(values) ^ known)} are missing or unknown")
        return cls(**values)


def _empty_linear(inputs: int, outputs: int) -> nn.Linear:
    """A dense layer without values yet: torch's own initial values would draw from the global generator."""
    return nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
