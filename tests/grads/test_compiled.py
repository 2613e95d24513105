"""Models that torch.compile has seen give what they give without it.

The backend "eager" traces as any other does and compiles nothing, so no compiler is needed and the test is quick.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvd.grads import Clipping, Engine, clipped_grad


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize(
    "engine",
    [
        Engine.AUTO,
        pytest.param(
            Engine.FACTORED,
            marks=pytest.mark.xfail(
                reason="what was traced without our hooks runs without them: the layers are not seen", strict=True
            ),
        ),
    ],
)
def test_a_compiled_model_that_has_run_before_equals_the_oracle(engine, generator):
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3)).double()
    x = torch.randn(4, 2, 4, generator=generator, dtype=torch.float64)
    batch = x, torch.randint(3, (4,), generator=generator)
    truth = clipped_grad(model, loss, batch, clipping=Clipping(clip_norm=0.5), engine=Engine.LOOP)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    result = clipped_grad(compiled, loss, batch, clipping=Clipping(clip_norm=0.5), engine=engine)
    for name, expected in truth.grads.items():
        torch.testing.assert_close(result.grads[f"_orig_mod.{name}"], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result.norms, truth.norms, rtol=1e-9, atol=1e-9)
