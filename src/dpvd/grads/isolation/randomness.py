"""Random streams: kept where they are, begun anew, or made the same for every example."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpvd.nn import noise_from, sampling

__all__ = [
    "EqualDraws",
    "dropout_off",
    "equal_draws",
    "has_dropout",
    "seeded",
    "stream_positions",
    "streams_restored",
]

# Names of the dropout argument of torch's operations that do more than draw.
_DROPOUT = ("dropout_p", "dropout")


@contextmanager
def streams_restored() -> Iterator[None]:
    """Leave the global generators of torch, Python and NumPy as they were found."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - models may use NumPy's global generator
    devices = list(range(torch.cuda.device_count())) if _uses_cuda() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Begin every global stream, and the noise of dpvd's layers, at this seed."""
    torch.default_generator.manual_seed(seed)
    if _uses_cuda():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    with noise_from(torch.Generator(device).manual_seed(seed)):
        yield


def stream_positions() -> tuple[Any, ...]:
    """Where the global streams stand. Equal before and equal after: as much was drawn."""
    numpy_state: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    _, numpy_keys, numpy_place, *_ = numpy_state
    on_cuda = torch.cuda.get_rng_state_all() if _uses_cuda() else []
    torch_states = [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_cuda)]
    return torch_states, random.getstate(), numpy_keys.tobytes(), numpy_place


@contextmanager
def equal_draws(model: nn.Module) -> Iterator["EqualDraws"]:
    """No dropout, no sampling by dpvd's layers, and otherwise equal draws for every example."""
    draws = EqualDraws()
    with dropout_off(model), sampling(False), draws:
        yield draws


_DROPPING = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)
_DROPPING_INSIDE = (nn.RNNBase, nn.MultiheadAttention)


def has_dropout(model: nn.Module) -> bool:
    """Whether there is something for :func:`dropout_off` to switch off."""
    return any(
        (type(module) in _DROPPING and module.training)
        or (isinstance(module, _DROPPING_INSIDE) and bool(module.dropout) and module.training)
        for module in model.modules()
    )


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Switch off torch's own dropout, and what else draws for each example and never couples two.

    How much of it is drawn may depend on the data: a mask on the longest sequence of a batch, a
    slope for each negative input. An example would then get other draws beside other examples,
    which is no mixing and must not look like it.
    """
    with ExitStack() as stack:
        for module in model.modules():
            if type(module) in _DROPPING and module.training:
                stack.callback(setattr, module, "training", True)
                module.training = False
            elif isinstance(module, _DROPPING_INSIDE):
                stack.callback(setattr, module, "dropout", module.dropout)
                module.dropout = 0.0
        yield


class EqualDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every row of a random tensor the same draw, whichever generator it was asked of.

    Two runs on different numbers of examples then see the same randomness, as long as examples are
    the rows.

    Guarantees: an example's draws depend on the example and on the order of the calls, not on the
    other examples. A permutation is not the identity but moves all by one position, so that mixing
    through it still shows.

    Attributes:
        shapes: of each random tensor, the shape without its first dimension. Runs with other shapes
            cannot be compared.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[torch.Size] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; protection from it would load the compiler, for a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **options)
        if "generator" in options:
            options["generator"] = None
        where = [
            i for i, argument in enumerate(func._schema.arguments) if argument.name in _DROPOUT
        ]
        if where:  # attention and recurrent layers, which drop inside
            kept = [0.0 if i in where else value for i, value in enumerate(args)]
            return func(
                *kept,
                **{name: 0.0 if name in _DROPOUT else value for name, value in options.items()},
            )
        name = func._schema.name.removeprefix("aten::")
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "bernoulli_" and not isinstance(args[1] if len(args) > 1 else 0.5, Tensor):
            # Dropout that drops nothing, wherever the batch is in the tensor.
            return args[0].fill_(1)
        result = self._draw(func, args, options, name)
        first = result[0] if isinstance(result, tuple) else result
        self.shapes.append(first.shape[1:])
        return result

    def _draw(self, func: Any, args: Any, options: dict[str, Any], name: str) -> Any:
        if name == "randperm":
            return func(*args, **options).sort().values.roll(1)
        tensors = [value for value in args if isinstance(value, Tensor)]
        if not tensors:
            return self._created(func, args, options)
        if tensors[0].dim() == 0 or len(tensors[0]) == 0:
            return self._seeded(func, args, options)
        if len(tensors) == 1 and name.endswith("_like"):
            return self._seeded(func, (args[0][:1], *args[1:]), options).expand_as(args[0]).clone()
        return self._row_by_row(func, args, options, name)

    def _created(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        """A new tensor from a size, which is the argument that is a list."""
        sizes = [value for value in args if isinstance(value, list | tuple)]
        if not sizes or not sizes[0]:
            return self._seeded(func, args, options)
        (size,) = sizes
        one = [[1, *size[1:]] if value is size else value for value in args]
        return self._seeded(func, one, options).expand(size).clone()

    def _row_by_row(self, func: Any, args: Any, options: dict[str, Any], name: str) -> Any:
        """Rows are slices that share memory: a write in place reaches the whole."""
        count = len(args[0])
        found = [
            self._seeded(func, [_row(value, i, count) for value in args], options)
            for i in range(count)
        ]
        if name.endswith("_"):
            return args[0]
        if isinstance(found[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.cat(found)

    def _seeded(self, func: Any, args: Any, options: dict[str, Any]) -> Any:
        seed = len(self.shapes)
        torch.default_generator.manual_seed(seed)
        if _uses_cuda():
            torch.cuda.manual_seed_all(seed)
        return func(*args, **options)


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _row(value: Any, i: int, count: int) -> Any:
    has_rows = isinstance(value, Tensor) and value.dim() > 0 and len(value) == count
    if has_rows:
        return value[i : i + 1]
    return value
