"""The comparison that every rule goes through: the factored engine against the oracle, in
float64.
"""

import torch
from torch import Tensor, nn

from dpvd.grads import ClippedSum, Clipping, Engine, GradientClipper, clipped_grad
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
    assert_sums_do_not_read_parameters(model, batch, loss)
    return ours


def assert_sums_do_not_read_parameters(
    model: nn.Module, batch: tuple[Tensor, ...], loss=squares
) -> None:
    """No term shares memory with a parameter: what was measured is what is added up later."""
    clipper = GradientClipper(
        model, loss, clipping=Clipping("flat", clip_norm=0.7), engine=Engine.FACTORED
    )
    with noise_from(torch.Generator().manual_seed(1)):
        (part,) = clipper(batch)
    shapes = {name: torch.zeros_like(p) for name, p in part.grouping.parameters.items()}
    before = {name: zeros.clone() for name, zeros in shapes.items()}
    after = {name: zeros.clone() for name, zeros in shapes.items()}
    part.add_to(before)
    jacobian = {name: values.clone() for name, values in part.jacobian.items()}
    values = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(torch.nan)
        for gradient in part.gradients.values():
            getattr(gradient, "saved", {}).clear()  # what was not saved is computed again
        part.add_to(after)
    finally:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), values, strict=True):
                parameter.copy_(value)
    for name in before:
        assert torch.equal(before[name], after[name]), f"a term of {name!r} reads a parameter"
    for name, expected in jacobian.items():
        assert torch.equal(part.jacobian[name], expected), name


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
