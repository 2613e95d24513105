"""Every kind of dense layer, for tests that all of them must pass."""

from collections.abc import Callable

import torch
from torch import Tensor

from dpvd.nn import (
    AdditiveLinear,
    BinaryDropoutLinear,
    GaussianDropoutLinear,
    MultiplicativeLinear,
    VariationalLayer,
)

Factory = Callable[[int, int], VariationalLayer]
_F64 = {"dtype": torch.float64}

ON_OUTPUTS: dict[str, Factory] = {
    "additive-weight": lambda i, o: AdditiveLinear(i, o, log_sigma2=-1.0, **_F64),
    "additive-neuron": lambda i, o: AdditiveLinear(i, o, rates="neuron", log_sigma2=-1.0, **_F64),
    "additive-layer": lambda i, o: AdditiveLinear(i, o, rates="layer", log_sigma2=-1.0, **_F64),
    "additive-tied": lambda i, o: AdditiveLinear(
        i, o, rates="layer", learned=False, log_sigma2=-1.0, **_F64
    ),
    "additive-gaussian-prior": lambda i, o: AdditiveLinear(
        i, o, log_sigma2=-1.0, prior="gaussian", **_F64
    ),
    "B-weight": lambda i, o: MultiplicativeLinear(i, o, log_alpha=-0.5, **_F64),
    "B-neuron": lambda i, o: MultiplicativeLinear(i, o, rates="neuron", log_alpha=-0.5, **_F64),
    "B-layer": lambda i, o: MultiplicativeLinear(i, o, rates="layer", log_alpha=-0.5, **_F64),
    "B-layer-fixed": lambda i, o: MultiplicativeLinear(
        i, o, rates="layer", learned=False, log_alpha=-0.5, **_F64
    ),
}
ON_INPUTS: dict[str, Factory] = {
    "A-layer": lambda i, o: MultiplicativeLinear(
        i, o, kind="A", rates="layer", prior="ard", **_F64
    ),
    "A-neuron": lambda i, o: MultiplicativeLinear(
        i, o, kind="A", rates="neuron", prior="gaussian", log_alpha=-0.5, **_F64
    ),
    "binary": lambda i, o: BinaryDropoutLinear(i, o, rate=0.3, **_F64),
    "gaussian": lambda i, o: GaussianDropoutLinear(i, o, rate=0.3, **_F64),
}
ALL: dict[str, Factory] = ON_OUTPUTS | ON_INPUTS


def make(
    name: str, generator: torch.Generator, inputs: int = 4, outputs: int = 3
) -> VariationalLayer:
    """A layer of this kind with random means and with noise rates that differ from one another."""
    layer = ALL[name](inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(normal(layer.weight.shape, generator))
        layer.bias.copy_(normal(layer.bias.shape, generator))
        for noise_name in layer.noise_state:
            rates: Tensor = getattr(layer, noise_name)
            rates += 0.5 * normal(rates.shape, generator)
    return layer


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
