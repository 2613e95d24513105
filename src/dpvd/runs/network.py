"""The networks that runs train: layers, initial weights, noise on the weights, inputs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.data import centred, flatten, unit_norm
from dpvd.errors import DpvdError, choice, positive_int
from dpvd.nn import variational
from dpvd.runs.architectures import NetworkKind, check_image, convolutional, dense
from dpvd.training import PRE_ACTIVATION, NetworkRule, convolutional_rule, dense_rule

__all__ = ["Method", "NetworkSpec", "Scale"]

MICRO_BATCH = 256


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
    scale: Scale = Scale.NONE
    rate: float = 0.1
    prior: str = "log-uniform"
    input_norm: float | None = None
    centred: bool = False
    kind: NetworkKind = NetworkKind.MLP
    image: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        positive_int(features=self.features, hidden=self.hidden, classes=self.classes)
        object.__setattr__(self, "scale", choice(self.scale, Scale, "scale"))
        object.__setattr__(self, "kind", choice(self.kind, NetworkKind, "network"))
        object.__setattr__(self, "image", None if self.image is None else tuple(self.image))
        if self.kind is NetworkKind.CNN:
            check_image(self.features, self.image)

    def build(self, seed: int = 0) -> nn.Module:
        """The network with its initial weights, which follow from the seed alone.

        Raises:
            DpvdError: if it does not fit into memory.
        """
        try:
            plain = self._layers().to_empty(device="cpu")
        except (RuntimeError, TypeError) as error:  # torch's ways to say "too large"
            raise DpvdError(
                f"a network with {self.hidden:,} hidden units does not fit into memory"
            ) from error
        self._initialise(plain, torch.Generator().manual_seed(seed))
        model = self._with_noise(plain)
        # The layout in which convolutions and maxima are fast on processors; it changes no value.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's hints do not know of it
        return model

    def _layers(self) -> nn.Sequential:
        if self.kind is NetworkKind.CNN:
            assert self.image is not None  # checked at construction
            height, width = self.image
            return convolutional((height, width), self.hidden, self.classes)
        return dense(self.features, self.hidden, self.classes)

    @torch.no_grad()
    def _initialise(self, plain: nn.Sequential, generator: torch.Generator) -> None:
        layers = [layer for layer in plain if isinstance(layer, nn.Linear | nn.Conv2d)]
        for layer in layers:
            assert layer.bias is not None
            layer.bias.zero_()
            if self.kind is NetworkKind.CNN:
                reach = layer.weight[0].numel() ** -0.5
                layer.weight.uniform_(-reach, reach, generator=generator)
            else:
                layer.weight.normal_(0, self._first_std(), generator=generator)
        layers[
            -1
        ].weight.zero_()  # the first steps then move the outputs only by what the data says

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

    def _first_std(self) -> float:
        """Inputs of one norm give pre-activations of one standard deviation, whatever the number of
        features.
        """
        return self.features**-0.5 if self.input_norm is None else PRE_ACTIVATION / self.input_norm

    def inputs(self, x: Tensor) -> Tensor:
        """Raw examples [n, ...] as the network takes them: [n, features]. Each row depends on its
        example alone.
        """
        rows = flatten(x if x.is_floating_point() else x.float())
        if rows.shape[1] != self.features:
            raise DpvdError(
                f"the network takes {self.features} features for each example, got {rows.shape[1]}"
            )
        if self.centred:
            rows = centred(
                unit_norm(rows)
            )  # large values are brought into range first: their mean could overflow
        return rows if self.input_norm is None else unit_norm(rows) * self.input_norm

    def describe_inputs(self) -> str:
        """What is done to each example, in words."""
        parts = ["centred on its own mean"] if self.centred else []
        parts += [] if self.input_norm is None else [f"scaled to L2 norm {self.input_norm:g}"]
        return f"each example by itself {' and '.join(parts)}" if parts else "used as it is"

    @property
    def parameters(self) -> int:
        """How many weights and biases there are."""
        return sum(parameter.numel() for parameter in self._layers().parameters())

    @property
    def rule(self) -> NetworkRule:
        """What the default rule knows of this network."""
        return convolutional_rule() if self.kind is NetworkKind.CNN else dense_rule(self.hidden)

    @property
    def micro_batch(self) -> int | None:
        """How many examples go through it at once in training: convolutions are faster in parts
        that fit a cache.
        """
        return MICRO_BATCH if self.kind is NetworkKind.CNN else None

    def to_dict(self) -> dict[str, Any]:
        image = None if self.image is None else list(self.image)
        return asdict(self) | {"scale": str(self.scale), "kind": str(self.kind), "image": image}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "NetworkSpec":
        complete = {"kind": NetworkKind.MLP, "image": None} | dict(
            values
        )  # older records know of one kind only
        known = {f.name for f in fields(cls)}
        if set(complete) != known:
            raise DpvdError(
                f"not a network: fields {sorted(set(complete) ^ known)} are missing or unknown"
            )
        return cls(**complete)
