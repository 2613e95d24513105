"""Algorithm 1 with a switch for each point that can be read in more than one way: for measuring,
not for use.

Most settings of the switches are not private, which is what is to be shown; the package itself has
no such switches.
The network is the paper's, one hidden layer of ReLU units, with gradients written out by hand.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor
from torch.nn import functional as F

from dpvd.nn import LogUniform
from dpvd.nn.kl_term.gradient import add_mean_gradient
from dpvd.runs import PreparedRun
from dpvd.training.schedules import Decay, Schedule

__all__ = ["KL", "Interpretation", "Outcome", "gradients", "learning_rates", "train"]


class KL(StrEnum):
    """Where the KL term is."""

    NONE = "none"
    """Nowhere: with α held it does not depend on the weights."""
    OUTSIDE = "outside"
    """Added to the update, as it is."""
    INSIDE = "inside"
    """Part of every example's gradient, and clipped with it."""


@dataclass(frozen=True)
class Interpretation:
    """One way to read the algorithm.

    Args:
        learning_rate, gamma: η₀ and γ of η₀/t^γ, t the number of the epoch.
        sum_noise: standard deviation of the noise on the sum of clipped gradients.
        weight_noise: standard deviation of noise that is added to the weights in every step,
            whatever η and S.
        carried: whether the next step starts from the noisy value. If not, the noise that a step
            would have carried is added to what comes out at the end, and nowhere else.
        forward: whether the forward pass samples weights with the noise of the update, ζ = η ·
            sum_noise / S.
        kl: where the KL term to the log-uniform prior is.
        clip_norm: C of each layer.
    """

    learning_rate: float
    gamma: float
    sum_noise: float = 0.0
    weight_noise: float = 0.0
    carried: bool = True
    forward: bool = False
    kl: KL = KL.NONE
    clip_norm: float = 2.0


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        accuracy: on the test data, of what is released.
        weights: what the last step left: W₁, b₁, W₂, b₂; without the noise of a release at the end.
        zetas: ζ of the first and the last step.
        clipped: by layer, the share of gradients that were clipped, over the run.
        factor: by layer, what gradients were multiplied by on average.
        kl_gradient: by layer, the norm of the KL gradient over N, over the run.
    """

    accuracy: float
    weights: list[Tensor]
    zetas: tuple[float, float]
    clipped: list[float]
    factor: list[float]
    kl_gradient: list[float]


def train(
    run: PreparedRun, interpretation: Interpretation, *, without: int | None = None
) -> Outcome:
    """Train the network of a prepared run on its batches, as the interpretation says.

    Args:
        run: data, network, batches and seed; its noise and recipe are not used.
        interpretation: how.
        without: the row of an example to leave out of every batch: a neighbouring data set.
    """
    plan = run.plan
    seed = plan_seed(run)
    generator = torch.Generator().manual_seed(seed)
    model = run.network.build(seed)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    rows = torch.arange(plan.examples)
    data = (run.network.inputs(run.dataset.train_x), run.dataset.train_y, rows)
    totals = torch.zeros(3, 2)  # share clipped, clip factor, norm of the KL gradient; by layer
    zetas = []
    rates = learning_rates(run, interpretation)
    for (x, y, drawn), rate in zip(plan.batches(data), rates, strict=True):
        kept = torch.ones_like(drawn, dtype=torch.bool)
        if without is not None:
            kept = drawn != without
        zeta = rate * interpretation.sum_noise / plan.batch_size
        zetas.append(zeta)
        step = _Step(interpretation, rate, zeta, plan.batch_size, plan.examples, generator)
        totals += step.take(weights, x[kept], y[kept])
    released = weights
    if not interpretation.carried:
        noise = zetas[-1] + interpretation.weight_noise
        released = [w + noise * torch.randn(w.shape, generator=generator) for w in weights]
    clipped, factor, kl_norms = (totals / plan.steps).tolist()
    return Outcome(
        accuracy=_accuracy(run, released, generator),
        weights=weights,
        zetas=(zetas[0], zetas[-1]),
        clipped=clipped,
        factor=factor,
        kl_gradient=kl_norms,
    )


@dataclass(frozen=True)
class _Step:
    """One step of Algorithm 1, as an interpretation has it."""

    interpretation: Interpretation
    rate: float
    zeta: float
    batch_size: int
    examples: int
    generator: torch.Generator

    def take(self, weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Change the weights; return what happened in each layer: [3, 2]."""
        where = self.interpretation.kl
        clip_norm = self.interpretation.clip_norm
        kl_gradients: list[Tensor | None] = [None, None]
        if where is not KL.NONE:
            kl_gradients = _kl_gradients(weights, self.zeta, self.examples)
        sampled = self.zeta if self.interpretation.forward else 0.0
        layers = gradients(weights, x, y, sampled, self.generator)
        seen = torch.zeros(3, 2)
        for layer, (inputs, outputs) in enumerate(layers):
            kl_gradient = kl_gradients[layer]
            inside = kl_gradient if where is KL.INSIDE else None
            factors, norms = _clip(inputs, outputs, inside, clip_norm)
            # An empty batch has no mean.
            seen[0, layer] = (norms > clip_norm).float().mean().nan_to_num(0.0)
            seen[1, layer] = factors.mean().nan_to_num(1.0)
            seen[2, layer] = 0.0 if kl_gradient is None else kl_gradient.norm()
            scaled = factors[:, None] * outputs
            weight_sum = scaled.T @ inputs
            if inside is not None:
                weight_sum += factors.sum() * inside
            weight, bias = weights[2 * layer : 2 * layer + 2]
            if where is KL.OUTSIDE and kl_gradient is not None:
                weight.sub_(self.rate * kl_gradient)
            self._move(weight, weight_sum)
            self._move(bias, scaled.sum(0))
        return seen

    def _move(self, parameter: Tensor, total: Tensor) -> None:
        """Step along a sum of clipped gradients, with noise if it is carried on."""
        parameter.sub_(self.rate / self.batch_size * total)
        if self.interpretation.carried:
            for std in (self.zeta, self.interpretation.weight_noise):
                parameter.add_(std * torch.randn(parameter.shape, generator=self.generator))


def _accuracy(run: PreparedRun, weights: list[Tensor], generator: torch.Generator) -> float:
    """On the test data, without noise in the forward pass."""
    test_x = run.network.inputs(run.dataset.test_x)
    _, outputs = _outputs(weights, test_x, 0.0, generator)
    right = outputs.argmax(1) == run.dataset.test_y
    return right.double().mean().item()


def learning_rates(run: PreparedRun, interpretation: Interpretation) -> Iterator[float]:
    """η of every step."""
    in_epoch = max(1, round(run.plan.examples / run.plan.batch_size))
    schedule = Schedule(
        interpretation.learning_rate, Decay.POWER, interpretation.gamma, in_epoch, run.plan.steps
    )
    return map(schedule, range(run.plan.steps))


def gradients(
    weights: list[Tensor], x: Tensor, y: Tensor, zeta: float, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """By layer, its inputs and the gradients of each example's loss by its outputs: [B, in] and [B,
    out].

    An example's gradient by the weight is the outer product of its two rows, and by the bias the
    second of them.
    """
    with torch.enable_grad():
        hidden, outputs = _outputs(weights, x, zeta, generator, watched=True)
        loss = F.cross_entropy(outputs, y, reduction="sum")
        by_hidden, by_outputs = torch.autograd.grad(loss, [hidden, outputs])
    return [(x, by_hidden), (hidden.detach().relu(), by_outputs)]


def plan_seed(run: PreparedRun) -> int:
    """The seed of initial weights, batches and noise."""
    assert run.plan.seed is not None
    return run.plan.seed


def _outputs(
    weights: list[Tensor], x: Tensor, zeta: float, generator: torch.Generator, watched: bool = False
) -> tuple[Tensor, Tensor]:
    """Outputs of both layers, each a sample for weights of variance ζ²."""
    first, first_bias, second, second_bias = weights
    hidden = _sampled(F.linear(x, first, first_bias), x, zeta, generator).requires_grad_(watched)
    active = hidden.relu()
    return hidden, _sampled(F.linear(active, second, second_bias), active, zeta, generator)


def _sampled(mean: Tensor, inputs: Tensor, zeta: float, generator: torch.Generator) -> Tensor:
    if zeta == 0:
        return mean
    return mean + zeta * inputs.norm(dim=1, keepdim=True) * torch.randn(
        mean.shape, generator=generator
    )


def _clip(
    inputs: Tensor, outputs: Tensor, kl_gradient: Tensor | None, clip_norm: float
) -> tuple[Tensor, Tensor]:
    """Clip factor and norm of each example's gradient of a layer, plus the KL gradient if given."""
    squares = outputs.square().sum(1) * (inputs.square().sum(1) + 1)
    if kl_gradient is not None:
        squares = (
            squares + 2 * ((outputs @ kl_gradient) * inputs).sum(1) + kl_gradient.square().sum()
        )
    norms = squares.clamp_min(0.0).sqrt()
    return (clip_norm / norms).clamp_max(1.0), norms


def _kl_gradients(weights: list[Tensor], zeta: float, examples: int) -> list[Tensor | None]:
    """∇KL/N of the two weights, whose posterior is N(w, ζ²)."""
    kl_gradients = []
    for weight in weights[::2]:
        kl_gradient = torch.zeros_like(weight)
        if zeta > 0 and math.isfinite(zeta):
            add_mean_gradient(LogUniform(), kl_gradient, weight, zeta, 1 / examples)
        kl_gradients.append(kl_gradient)
    return kl_gradients
