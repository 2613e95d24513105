"""Per-example gradient norms by Opacus, from the weights and batches in a folder. Runs in Opacus'
own environment.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy
import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPRNN
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from benchmarks.norm_cases import CASES, Case, FirstOutput, loss

__all__ = ["main"]

LONGEST_REASON = 80


def hooks(model: nn.Module, x: Tensor, batch_first: bool) -> Tensor:
    """From gradients that Opacus' hooks have formed for every example."""
    wrapped = GradSampleModule(model, batch_first=batch_first, loss_reduction="sum")
    loss(wrapped, x).sum().backward()
    norms = []
    for parameter in model.parameters():
        gradients = parameter.grad_sample.flatten(1)
        norms.append(gradients.norm(dim=1))
    return torch.stack(norms).norm(dim=0)


def ghost(model: nn.Module, x: Tensor, batch_first: bool) -> Tensor:
    """From Opacus' ghost clipping, which forms no gradients where it has a formula."""
    wrapped = GradSampleModuleFastGradientClipping(
        model,
        batch_first=batch_first,
        max_grad_norm=1.0,
        use_ghost_clipping=True,
        loss_reduction="sum",
    )
    loss(wrapped, x).sum().backward()
    return wrapped.get_norm_sample()


WAYS = {"hooks": hooks, "ghost": ghost}


def main(folder: Path) -> int:
    found: dict[str, Any] = {}
    for place, (name, case) in enumerate(CASES.items()):
        found[name] = {way: _norms(way, case, folder / f"{place}.npz") for way in WAYS}
    print(json.dumps(found))
    return 0


def _norms(way: str, case: Case, file: Path) -> list[float] | str:
    """The norms, or the reason why there are none."""
    with numpy.load(file) as arrays:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    x = tensors.pop("inputs")
    weights = {name.removeprefix("model."): value for name, value in tensors.items()}
    model = case.build().double()
    model.load_state_dict(weights)
    outputs = model(x)
    try:
        replaced = _replaced(model)
        if not torch.allclose(replaced(x), outputs, rtol=1e-9):
            return "its layer computes other outputs than torch's"
        norms = WAYS[way](replaced, x, case.batch_first)
    except Exception as error:  # whatever it is, the table says it
        return f"{type(error).__name__}: {error}".splitlines()[0][:LONGEST_REASON]
    return norms.tolist()


def _replaced(model: nn.Module) -> nn.Module:
    """The model with Opacus' own layers for those of torch it does not take, and with the same
    weights.

    Opacus' own replacement makes float32 of float64, and leaves ``nn.RNN`` out.
    """
    if not isinstance(model, FirstOutput):
        return model
    layer = model.layer
    if isinstance(layer, nn.RNN):
        model.layer = DPRNN(layer.input_size, layer.hidden_size, batch_first=layer.batch_first)
    else:
        model.layer = ModuleValidator.fix(layer)
    model.layer.double().load_state_dict(layer.state_dict())
    return model


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
