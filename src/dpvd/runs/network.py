"""The networks that runs train: layers, noise on the weights, inputs."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from dpvd.data import centred, flatten, unit_norm
from dpvd.errors import Choice, DpvdError, exact_fields, positive, positive_int
from dpvd.features import FeatureSpec, extract
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
        front: features that need no data, of which the layers are the head; None for layers that
            take the inputs themselves.

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
    front: FeatureSpec | None = None

    def __post_init__(self) -> None:
        positive_int(features=self.features, classes=self.classes)
        if self.input_norm is not None:
            positive(input_norm=self.input_norm)
            object.__setattr__(self, "input_norm", float(self.input_norm))
        if self.kind not in NETWORKS:
            raise DpvdError(
                f"the kind of a network must be one of {', '.join(NETWORKS)}, got {self.kind}"
            )
        if self.kind is not NetworkKind.LINEAR:
            positive_int(hidden=self.hidden)
        if self.front is not None and self.front.inputs != self.features:
            raise DpvdError(
                f"features of images of shape {self.front.image} do not fit examples of"
                f" {self.features} numbers"
            )
        if self.image is not None:
            object.__setattr__(self, "image", tuple(self.image))
        _ = self.recipe  # refuses examples that the kind of network cannot take

    @property
    def recipe(self) -> NetworkRecipe:
        """Layers, initial weights and the numbers of the default rule."""
        kind = NETWORKS[self.kind]
        inputs = self.features if self.front is None else self.front.outputs
        return kind(inputs, self.hidden, self.classes, self.image)

    def build(self, seed: int = 0, *, loaded: bool = False) -> nn.Module:
        """The network with its initial weights, which follow from the seed alone.

        With features, it is a sequence of two: ``features`` and ``head``. Under torch's meta device
        it has shapes and no values.

        Args:
            seed: of the weights.
            loaded: whether values will be loaded; features then have none yet, which saves seconds.

        Raises:
            DpvdError: if it does not fit into memory.
        """
        try:
            is_meta = torch.get_default_device().type == "meta"
            plain = self.recipe.layers().to_empty(device="meta" if is_meta else "cpu")
        except (RuntimeError, TypeError) as error:  # torch's ways to say "too large"
            raise DpvdError(
                f"a network with {self.hidden:,} hidden units does not fit into memory"
            ) from error
        generator = torch.Generator().manual_seed(seed)
        self.recipe.initialise(plain, self.input_norm, generator)
        model = self._with_noise(plain)
        # The layout in which convolutions and maxima are fast on processors; it changes no value.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's hints do not know of it
        if self.front is None:
            return model
        front = self.front.empty() if loaded else self.front.build()
        return nn.Sequential(OrderedDict(features=front, head=model))

    def trained(self, model: nn.Module) -> nn.Module:
        """The part of a network as `build` returned it that is trained: its head, or all of it."""
        if self.front is None:
            return model
        return model.get_submodule("head")

    def head_inputs(
        self,
        model: nn.Module,
        x: Tensor,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Raw examples [n, ...] as the trained part takes them.

        Args:
            model: as `build` returned it.
            x: raw examples.
            on_progress: called with the examples of which features are made, and with all.
        """
        if self.front is None:
            return self.inputs(x)
        self._check_numbers(x)
        front = model.get_submodule("features")
        return extract(lambda part: front(self.inputs(part)), x, self.front.outputs, on_progress)

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
        self._check_numbers(rows)
        if self.centred:
            # Large values are brought into range first: their mean could overflow.
            rows = centred(unit_norm(rows))
        if self.input_norm is None:
            return rows
        return unit_norm(rows) * self.input_norm

    def _check_numbers(self, x: Tensor) -> None:
        numbers = x.shape[1:].numel()
        if numbers != self.features:
            raise DpvdError(
                f"the network takes {self.features} features for each example, got {numbers}"
            )

    def describe_inputs(self) -> str:
        """What is done to each example, in words."""
        if self.front is not None:
            return f"each example by itself {self.front.describe()}"
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
        del plain["front"]
        if self.front is not None:
            plain["front"] = self.front.to_dict()
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "NetworkSpec":
        """Read what ``to_dict`` wrote; older records know of one kind of network only."""
        plain = exact_fields(values, cls, "a network", optional=("kind", "image", "front"))
        if plain.get("front") is not None:
            plain["front"] = FeatureSpec.from_dict(plain["front"])
        return cls(**plain)
