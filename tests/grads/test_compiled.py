"""Models that torch.compile has seen give what they give without it.

The backend "eager" traces as any other does and compiles nothing, so no compiler is needed and the
test is quick.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads import Clipping, Engine, GradientClipper, clipped_grad


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize("engine", [Engine.AUTO, Engine.FACTORED])
def test_a_compiled_model_that_has_run_before_equals_the_oracle(engine, generator):
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)).double()
    x = torch.randn(4, 2, 4, generator=generator, dtype=torch.float64)
    batch = x, torch.randint(3, (4,), generator=generator)
    truth = clipped_grad(model, loss, batch, clipping=Clipping(clip_norm=0.5), engine=Engine.LOOP)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    result = clipped_grad(compiled, loss, batch, clipping=Clipping(clip_norm=0.5), engine=engine)
    for name, expected in truth.grads.items():
        torch.testing.assert_close(
            result.grads[f"_orig_mod.{name}"], expected, rtol=1e-9, atol=1e-9
        )
    torch.testing.assert_close(result.norms, truth.norms, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", [Engine.AUTO, Engine.FACTORED])
@pytest.mark.parametrize("what", ["in place", "loss"])
def test_compiling_between_two_steps_changes_nothing(what, engine, generator):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batch = (
        torch.randn(4, 4, generator=generator, dtype=torch.float64),
        torch.randint(3, (4,), generator=generator),
    )
    loss_fn = torch.compile(loss, backend="eager") if what == "loss" else loss
    clipper = GradientClipper(model, loss_fn, clipping=Clipping(clip_norm=0.5), engine=engine)
    (before,) = clipper(batch)
    if what == "in place":
        model.compile(backend="eager")
    loss_fn(model, *batch)
    (after,) = clipper(batch)
    assert (
        set(after.gradients)
        == set(before.gradients)
        == {"0.weight", "0.bias", "2.weight", "2.bias"}
    )
    torch.testing.assert_close(after.norms, before.norms, rtol=1e-9, atol=1e-9)
