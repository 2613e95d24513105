"""Private steps on recurrent layers whose noise is tied to the privacy noise."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads import Clipping, ClippingMode, Engine, clipped_grad
from dpvd.nn import AdditiveGRU, AdditiveLinear, AdditiveLSTM, AdditiveRNN, noise_from
from dpvd.plan import PrivacyPlan
from dpvd.training import PrivateStep

TIED = {"rates": "layer", "learned": False, "dtype": torch.float64}
STEPS, INPUTS, HIDDEN, CLASSES = 5, 3, 16, 3
Z, CLIP, BATCH, LEARNING_RATE = 3.0, 0.05, 20, 0.5
PLAN = PrivacyPlan(
    100, BATCH, steps=40, noise_multiplier=Z, clipping=Clipping(ClippingMode.FLAT, CLIP)
)
ZETA = LEARNING_RATE * Z * CLIP / BATCH


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = kind(INPUTS, HIDDEN, batch_first=True, **TIED)
            self.head = AdditiveLinear(HIDDEN, CLASSES, **TIED)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def make_batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, STEPS, INPUTS, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (BATCH,), generator=generator)


def make_step(kind: type[nn.RNNBase]) -> PrivateStep:
    model = Reader(kind)
    return PrivateStep(
        model, loss, PLAN, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), batches="declared"
    )


def seeded(engine: Engine, model: nn.Module, batch: tuple[Tensor, Tensor]):
    with noise_from(torch.Generator().manual_seed(1)):
        return clipped_grad(model, loss, batch, clipping=PLAN.clipping, engine=engine)


@pytest.mark.parametrize("kind", [AdditiveRNN, AdditiveGRU, AdditiveLSTM])
def test_the_scale_follows_the_privacy_noise_and_the_clip_holds(kind, generator):
    """ζ = ηzC/S in the layer; at that ζ the sum is the oracle's, and no example exceeds the clip
    norm.
    """
    step, batch = make_step(kind), make_batch(generator)
    step(batch)
    assert step.zeta == pytest.approx(ZETA, rel=1e-3)
    assert step.model.layer.log_sigma2.exp().sqrt().item() == pytest.approx(step.zeta)
    ours, truth = (seeded(engine, step.model, batch) for engine in (Engine.FACTORED, Engine.LOOP))
    torch.testing.assert_close(ours.norms, truth.norms, rtol=1e-9, atol=1e-9)
    assert truth.norms.min() > CLIP  # every example is clipped
    for name, gradient in truth.grads.items():
        torch.testing.assert_close(ours.grads[name], gradient, rtol=1e-9, atol=1e-9)
    for i in range(3):
        alone = clipped_grad(
            step.model, loss, tuple(part[i : i + 1] for part in batch), clipping=PLAN.clipping
        )
        assert torch.cat([g.flatten() for g in alone.grads.values()]).norm() <= CLIP


def test_an_update_carries_noise_of_that_scale(generator):
    """What the step moved the weights by, less the clipped sum under the same draws: ζ, to six
    standard errors.
    """
    step, batch = make_step(AdditiveLSTM), make_batch(generator)
    step(batch)
    before = torch.cat([p.detach().flatten().clone() for p in step.model.parameters()])
    clean = torch.cat(
        [g.flatten() for g in seeded(Engine.FACTORED, step.model, batch).grads.values()]
    )
    with noise_from(torch.Generator().manual_seed(1)):
        step(batch)
    moved = torch.cat([p.detach().flatten() for p in step.model.parameters()]) - before
    noise = moved + LEARNING_RATE * clean / BATCH
    assert len(noise) > 1000
    assert abs(noise.std().item() / ZETA - 1) < 6 / math.sqrt(2 * len(noise))


def test_the_layer_samples_with_that_scale(generator):
    """Equal rows spread in the forward pass, and three times as far at three times the scale."""
    x, y = make_batch(generator)
    step = make_step(AdditiveLSTM)
    step((x, y))
    same = x[:1].expand(4000, -1, -1)
    with torch.no_grad():
        spreads = []
        for zeta in (step.zeta, 3 * step.zeta):
            step.model.layer.set_scale(zeta)
            spreads.append(step.model.layer(same)[0][:, 0].std(0))
    torch.testing.assert_close(
        spreads[1] / spreads[0], torch.full_like(spreads[0], 3.0), rtol=0.1, atol=0
    )
