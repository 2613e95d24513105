"""Every kind of variational convolution and embedding, with the torch layer it stands for and an
input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import dpvd.nn as dn
from tests.nn.cases import normal


@dataclass(frozen=True)
class Case:
    """A variational class, the arguments it shares with torch's, and its inputs without the
    batch.
    """

    cls: Callable[..., dn.VariationalLayer]
    plain: Callable[..., nn.Module]
    args: tuple[Any, ...]
    options: dict[str, Any]
    shape: tuple[int, ...]

    def make(self, generator: torch.Generator, **noise: Any) -> dn.VariationalLayer:
        """The layer in float64 with random means and with noise rates that differ from one
        another.
        """
        layer = self.cls(*self.args, **self.options, **noise, dtype=torch.float64)
        with torch.no_grad():
            for value in (layer.weight, *([] if layer.bias is None else [layer.bias])):
                value.copy_(normal(value.shape, generator))
            for name in layer.noise_state:
                rates: Tensor = getattr(layer, name)
                rates.copy_(-1 + 0.5 * normal(rates.shape, generator))
        return layer

    def make_plain(self, layer: dn.VariationalLayer) -> nn.Module:
        """Torch's layer with the means of the variational one."""
        plain = self.plain(*self.args, **self.options, dtype=torch.float64)
        plain.load_state_dict({key: layer.state_dict()[key] for key in plain.state_dict()})
        return plain

    def inputs(self, count: int, generator: torch.Generator) -> Tensor:
        if self.plain is nn.Embedding:
            return torch.randint(5, (count, *self.shape), generator=generator)
        return normal((count, *self.shape), generator)


CASES: dict[str, Case] = {
    "conv1d": Case(
        dn.AdditiveConv1d, nn.Conv1d, (2, 4, 3), {"padding": 2, "padding_mode": "circular"}, (2, 5)
    ),
    "conv1d first": Case(dn.AdditiveConv1d, nn.Conv1d, (2, 4, 3), {"stride": 2}, (2, 8)),
    "conv2d first": Case(
        dn.AdditiveConv2d, nn.Conv2d, (2, 3, (2, 3)), {"stride": (1, 2)}, (2, 3, 5)
    ),
    "conv3d first": Case(
        dn.AdditiveConv3d, nn.Conv3d, (1, 2, (1, 2, 3)), {"bias": False}, (1, 2, 3, 4)
    ),
    "conv2d": Case(dn.AdditiveConv2d, nn.Conv2d, (2, 3, 2), {"padding": 1, "stride": 2}, (2, 3, 4)),
    "conv2d reflect": Case(
        dn.AdditiveConv2d,
        nn.Conv2d,
        (1, 2, 3),
        {"padding": 1, "padding_mode": "reflect"},
        (1, 3, 3),
    ),
    "conv2d groups": Case(
        dn.AdditiveConv2d, nn.Conv2d, (4, 6, 2), {"groups": 2, "bias": False}, (4, 3, 3)
    ),
    "conv3d": Case(
        dn.AdditiveConv3d,
        nn.Conv3d,
        (1, 2, (1, 2, 3)),
        {"dilation": (1, 2, 1), "padding": "same"},
        (1, 2, 3, 2),
    ),
    "transposed": Case(
        dn.AdditiveConvTranspose2d,
        nn.ConvTranspose2d,
        (2, 4, 3),
        {"stride": 2, "output_padding": 1, "groups": 2},
        (2, 2, 2),
    ),
    "embedding": Case(dn.AdditiveEmbedding, nn.Embedding, (5, 3), {}, (4,)),
    "embedding padded": Case(dn.AdditiveEmbedding, nn.Embedding, (5, 3), {"padding_idx": 1}, (4,)),
    "B conv1d": Case(dn.MultiplicativeConv1d, nn.Conv1d, (2, 4, 3), {"padding": 1}, (2, 5)),
    "B conv2d": Case(dn.MultiplicativeConv2d, nn.Conv2d, (4, 2, 2), {"groups": 2}, (4, 3, 3)),
    "B conv3d": Case(dn.MultiplicativeConv3d, nn.Conv3d, (1, 2, 2), {}, (1, 2, 3, 2)),
}
