"""JAX-Privacy, compiled as a whole. Runs in its own environment; its noise is JAX's threefry
stream.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import optax
from jax import lax
from torch import nn

from benchmarks.plain import LEARNING_RATE, plain
from benchmarks.workloads import LastStep, Step, Workload

__all__ = ["SYSTEMS"]

CLIP_NORM = NOISE_MULTIPLIER = 1.0

Layer = Callable[[dict[str, Any], Any], Any]
"""A layer's parameters and its inputs [B, ...] to its outputs."""


def private(work: Workload) -> Step:
    network = work.network()
    layers = _layers(network)
    parameters = [
        {name: jnp.asarray(p.detach().numpy()) for name, p in m.named_parameters()}
        for m in _parts(network)
    ]
    x, y = (jnp.asarray(tensor.numpy()) for tensor in work.data())

    def loss(values: list[dict[str, Any]], one_x: Any, one_y: Any) -> Any:
        for layer, own in zip(layers, values, strict=True):
            one_x = layer(own, one_x)
        return optax.softmax_cross_entropy_with_integer_labels(one_x, one_y).mean()

    summed = jax_privacy.clipped_grad(
        loss, l2_clip_norm=CLIP_NORM, batch_argnums=(1, 2), normalize_by=work.batch
    )
    privatizer = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=NOISE_MULTIPLIER * CLIP_NORM / work.batch, prng_key=0
    )
    optimizer = optax.chain(privatizer, optax.sgd(LEARNING_RATE))

    @jax.jit
    def update(values: Any, state: Any) -> Any:
        changes, state = optimizer.update(summed(values, x, y), state)
        return optax.apply_updates(values, changes), state

    carried = parameters, optimizer.init(parameters)

    def step() -> None:
        nonlocal carried
        carried = jax.block_until_ready(update(*carried))

    return step


SYSTEMS: dict[str, Callable[[Workload], Step]] = {"plain": plain, "jax-privacy": private}


def _parts(network: nn.Module) -> list[nn.Module]:
    if isinstance(network, LastStep):
        return [network.lstm, network.head]
    return list(network.children())


def _layers(network: nn.Module) -> list[Layer]:
    """The network's layers in JAX, in torch's own layout of weights and images."""
    return [_layer(part) for part in _parts(network)]


def _layer(module: nn.Module) -> Layer:
    match module:
        case nn.Linear():
            return lambda p, x: x @ p["weight"].T + p["bias"]
        case nn.ReLU():
            return lambda _, x: jax.nn.relu(x)
        case nn.Tanh():
            return lambda _, x: jnp.tanh(x)
        case nn.Flatten():
            return lambda _, x: x.reshape(len(x), -1)
        case nn.LSTM():
            return _last_output
        case nn.Conv2d():
            padding = [(size, size) for size in module.padding]
            return lambda p, x: (
                lax.conv_general_dilated(x, p["weight"], module.stride, padding)
                + p["bias"][:, None, None]
            )
        case nn.MaxPool2d():
            window = (1, 1, module.kernel_size, module.kernel_size)
            stride = (1, 1, module.stride, module.stride)
            return lambda _, x: lax.reduce_window(x, -jnp.inf, lax.max, window, stride, "VALID")
    raise TypeError(f"no form of {type(module).__name__} in JAX here")


def _last_output(p: dict[str, Any], x: Any) -> Any:
    """An LSTM's output after the last step; gates in torch's order."""
    recurrent = p["weight_hh_l0"]
    projections = x @ p["weight_ih_l0"].T + p["bias_ih_l0"] + p["bias_hh_l0"]
    inputs = projections.swapaxes(0, 1)  # [T, B, 4 H]
    zeros = jnp.zeros((len(x), recurrent.shape[1]))
    sigmoid = jax.nn.sigmoid

    def cell(state: Any, projected: Any) -> Any:
        h, c = state
        gates = projected + h @ recurrent.T
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        kept = sigmoid(f) * c
        added = sigmoid(i) * jnp.tanh(g)
        c = kept + added
        h = sigmoid(o) * jnp.tanh(c)
        return (h, c), None

    (h, _), _ = lax.scan(cell, (zeros, zeros), inputs)
    return h
