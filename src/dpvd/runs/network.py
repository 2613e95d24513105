"""The networks that runs train: layers, noise on the weights, inputs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.data import centred, flatten, unit_norm
from dpvd.errors import Choice, DpvdError, exact_fields, positive_int
from dpvd.nn import variational
from dpvd.runs.recipes import NETWORKS, NetworkKind, NetworkRecipe, NetworkRule

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
    """A network, the noise on its weights and how it takes its inputs.

    Args:
        features: number of inputs.
        hidden: units of the (last) hidden layer.
        classes: outputs.
        scale: where the posterior's scale comes from.
        rate: dropout rate of the fixed scale, which dense layers have and convolutions do not.
        prior: name of the prior of the KL term.
        input_norm: L2 norm that each example's inputs are scaled to, by themselves; None leaves
            them as they are.
        centred: whether the mean of an example's inputs is taken off before that.
        kind: the layers.
        image: height and width of an example, for convolutions.

    Raises:
        DpvdError: if a size is below one, or the network does not fit the examples.
    """

    features: int
    hidden: int
    classes: int
    scale: Choice[Scale] = Choice(Scale.NONE)
    rate: float = 0.1
    prior: str = "log-uniform"
    input_norm: float | None = None
    centred: bool = False
    kind: Choice[NetworkKind] = Choice(NetworkKind.MLP)
    image: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        positive_int(features=self.features, hidden=self.hidden, classes=self.classes)
        if self.kind not in NETWORKS:
            raise DpvdError(f"the kind of a network must be mlp or cnn, got {self.kind}")
        if self.image is not None:
            object.__setattr__(self, "image", tuple(self.image))
        _ = self.recipe  # refuses examples that the kind of network cannot take

    @property
    def recipe(self) -> NetworkRecipe:
        """Layers, initial weights and the numbers of the default rule."""
        kind = NETWORKS[self.kind]
        return kind(self.features, self.hidden, self.classes, self.image)

    def build(self, seed: int = 0) -> nn.Module:
        """The network with its initial weights, which follow from the seed alone.

        Raises:
            DpvdError: if it does not fit into memory.
        """
        try:
            plain = self.recipe.layers().to_empty(device="cpu")
        except (RuntimeError, TypeError) as error:  # torch's ways to say "too large"
            raise DpvdError(
                f"a network with {self.hidden:,} hidden units does not fit into memory"
            ) from error
        generator = torch.Generator().manual_seed(seed)
        self.recipe.initialise(plain, self.input_norm, generator)
        model = self._with_noise(plain)
        # The layout in which convolutions and maxima are fast on processors; it changes no value.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's hints do not know of it
        return model

    def _with_noise(self, plain: nn.Sequential) -> nn.Module:
        match self.scale:
            case Scale.PRIVACY:
                return variational(
                    plain, "additive", rates="layer", learned=False, prior=self.prior
                )
            case Scale.LEARNED:
                return variational(plain, "additive", prior=self.prior)
            case Scale.FIXED:
                return variational(plain, "gaussian", rate=self.rate)
            case Scale.NONE:
                return plain

    def inputs(self, x: Tensor) -> Tensor:
        """Raw examples [n, ...] as the network takes them: [n, features].

        Each row depends on its example alone.
        """
        numbers = x if x.is_floating_point() else x.float()
        rows = flatten(numbers)
        if rows.shape[1] != self.features:
            raise DpvdError(
                f"the network takes {self.features} features for each example, got {rows.shape[1]}"
            )
        if self.centred:
            # Large values are brought into range first: their mean could overflow.
            rows = centred(unit_norm(rows))
        if self.input_norm is None:
            return rows
        return unit_norm(rows) * self.input_norm

    def describe_inputs(self) -> str:
        """What is done to each example, in words."""
        parts = []
        if self.centred:
            parts.append("centred on its own mean")
        if self.input_norm is not None:
            parts.append(f"scaled to L2 norm {self.input_norm:g}")
        if not parts:
            return "used as it is"
        return f"each example by itself {' and '.join(parts)}"

    @property
    def parameters(self) -> int:
        """How many weights and biases there are."""
        layers = self.recipe.layers()
        return sum(parameter.numel() for parameter in layers.parameters())

    @property
    def rule(self) -> NetworkRule:
        """What the default rule knows of this network."""
        return self.recipe.rule()

    @property
    def micro_batch(self) -> int | None:
        """How many examples go through it at once in training; None for all."""
        return self.recipe.MICRO_BATCH

    @property
    def is_pruned_by_noise(self) -> bool:
        """Whether training finds weights that are noise: those whose scale is not fixed."""
        return self.scale in (Scale.PRIVACY, Scale.LEARNED)

    def to_dict(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["scale"] = str(self.scale)
        plain["kind"] = str(self.kind)
        plain["image"] = None if self.image is None else list(self.image)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "NetworkSpec":
        """Read what ``to_dict`` wrote; older records know of one kind of network only."""
        plain = exact_fields(values, cls, "a network", optional=("kind", "image"))
        return cls(**plain)
