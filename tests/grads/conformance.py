"""The comparison that every rule goes through: the factored engine against the oracle, in
float64.
"""

import torch
from torch import Tensor, nn

from dpvd.grads import ClippedSum, Clipping, Engine, clipped_grad
from dpvd.grads.factored.rules import RULES
from dpvd.nn import noise_from

TOLERANCE = 1e-9


def squares(model: nn.Module, *batch: Tensor) -> Tensor:
    """A loss for outputs of any shape in which no two entries count alike."""
    out = model(*batch).flatten(1)
    return (out - torch.linspace(-1, 1, out.shape[1], dtype=out.dtype)).square().sum(1)


def run(
    engine: Engine, model: nn.Module, batch: tuple[Tensor, ...], clipping: Clipping, loss=squares
) -> ClippedSum:
    with noise_from(torch.Generator().manual_seed(1)):
        return clipped_grad(model, loss, batch, clipping=clipping, engine=engine)


def assert_rule_equals_oracle(
    model: nn.Module, *batch: Tensor, mode: str = "flat", loss=squares
) -> ClippedSum:
    """Norms, clipped sums and losses agree, and all modules with parameters have been treated by a
    rule.
    """
    owners = [
        m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))
    ]
    assert owners
    assert all(type(module) in RULES for module in owners)
    clipping = Clipping(mode, clip_norm=0.7)
    ours, truth = (
        run(engine, model, batch, clipping, loss) for engine in (Engine.FACTORED, Engine.LOOP)
    )
    for name, expected in truth.grads.items():
        assert ours.grads[name].shape == expected.shape, name
        scale = 1 + expected.abs().max() if expected.numel() else 1
        assert (ours.grads[name] - expected).abs().amax() <= TOLERANCE * scale, name
    torch.testing.assert_close(ours.norms, truth.norms, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(
        ours.losses, truth.losses, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    )
    assert (ours.count, ours.non_finite) == (truth.count, truth.non_finite)
    return ours


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def randomised(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The model in float64 with every parameter moved: a gain of 1 or a bias of 0 would hide
    errors.
    """
    model = model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * normal(parameter.shape, generator)
    return model
