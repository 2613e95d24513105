"""Where layers get their randomness.

Every layer asks :func:`draw` for noise; who answers is decided by the caller of the model, with a
context manager: torch's global generator (the default), a given generator, or a tape that replays
recorded noise. A layer call draws exactly once when it samples and not at all otherwise, and every
draw has the batch as its first dimension: one example's noise is one row.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.native import draw_from_key

__all__ = [
    "Distribution",
    "NoiseTape",
    "draw",
    "is_sampling",
    "noise_from",
    "sampling",
    "tape_from",
]

Distribution: TypeAlias = Literal["normal", "uniform"]
"""``normal`` is N(0, 1); ``uniform`` is U[0, 1), from which dropout masks are made."""

_LARGE = 1 << 14  # normals: from here on a key stream, its key from the generator, is faster

_Shape: TypeAlias = Sequence[int]
_Source: TypeAlias = Callable[[_Shape, Tensor, Distribution, Tensor | None], Tensor]
Rows: TypeAlias = slice | int | list[int] | Tensor


def draw(
    shape: _Shape,
    like: Tensor,
    kind: Distribution = "normal",
    *,
    aux: Tensor | None = None,
) -> Tensor:
    """Draw noise of the given shape from the source in force.

    Args:
        shape: shape of the noise; the first dimension is the batch.
        like: a tensor whose dtype and device the noise takes.
        kind: the distribution.
        aux: what a reader of the recording needs beside the noise (a layer passes its output's
            standard deviation). Kept, detached, by a :class:`NoiseTape` that records; ignored
            otherwise.

    Returns:
        A tensor that does not require gradients.

    >>> with noise_from(torch.Generator().manual_seed(0)):
    ...     first = draw((2, 3), torch.empty(0))
    >>> with noise_from(torch.Generator().manual_seed(0)):
    ...     second = draw((2, 3), torch.empty(0))
    >>> torch.equal(first, second)
    True
    """
    source = _source.get()
    return source(shape, like, kind, aux)


@contextmanager
def noise_from(generator: torch.Generator) -> Iterator[None]:
    """Take all noise drawn inside from this generator.

    Edge cases: a generator that lives on another device than the model is used where it lives and
    its values are moved, so that one CPU generator gives the same noise on every device.
    """
    with _serving(_generator_source(generator)):
        yield


@contextmanager
def sampling(enabled: bool = True) -> Iterator[None]:
    """Make layers sample in eval mode too, or, with ``False``, never.

    Without it layers sample in training mode and use the mean in eval mode.
    """
    token = _sampling.set(enabled)
    try:
        yield
    finally:
        _sampling.reset(token)


def is_sampling(module: nn.Module) -> bool:
    """Whether a layer is to add noise now."""
    forced = _sampling.get()
    return module.training if forced is None else forced


class NoiseTape:
    """Records the noise of a forward pass and serves it again, for all or some examples.

    Attributes:
        draws: the recorded noise, in order of drawing.
        aux: for each draw the auxiliary tensor that the layer passed, detached, or None.

    >>> tape, example = NoiseTape(), torch.empty(0)
    >>> with tape.recording():
    ...     whole = draw((4, 2), example)
    >>> with tape.replaying(slice(1, 2)):
    ...     one = draw((1, 2), example)
    >>> torch.equal(one, whole[1:2])
    True
    """

    def __init__(self) -> None:
        self.draws: list[Tensor] = []
        self.aux: list[Tensor | None] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Start afresh: pass draws through from the source outside and keep them."""
        outer = _source.get()
        self.draws = []
        self.aux = []

        def record(shape: _Shape, like: Tensor, kind: Distribution, aux: Tensor | None) -> Tensor:
            noise = outer(shape, like, kind, aux)
            constant = None if aux is None else aux.detach()
            self.draws.append(noise)
            self.aux.append(constant)
            return noise

        with _serving(record):
            yield

    @contextmanager
    def replaying(self, rows: Rows | None = None) -> Iterator[None]:
        """Serve the recorded draws again from the first on, of these rows (examples) only.

        Args:
            rows: a slice, an index or several indices into the batch dimension; None for all rows.
                An index keeps the dimension: ``replaying(3)`` is ``replaying(slice(3, 4))``.
        """
        if rows is None:
            rows = slice(None)
        elif isinstance(rows, int):
            rows = [rows]
        with _serving(_replay([noise[rows] for noise in self.draws])):
            yield


@contextmanager
def tape_from(draws: Sequence[Tensor]) -> Iterator[None]:
    """Serve these tensors in order, each a single example's draw without the batch dimension.

    For use inside ``torch.func.vmap`` over the recorded draws: the model then sees a batch of one,
    and the dimension that vmap took away is put back with size 1.
    """
    batches_of_one = [noise.unsqueeze(0) for noise in draws]
    with _serving(_replay(batches_of_one)):
        yield


def _replay(draws: Sequence[Tensor]) -> _Source:
    """A source that hands out these draws one by one and refuses a request that does not fit."""
    position = 0

    def serve(shape: _Shape, like: Tensor, kind: Distribution, aux: Tensor | None) -> Tensor:
        nonlocal position
        if position == len(draws):
            raise DpvdError(
                f"the model drew noise more than the {len(draws)} times that were recorded; "
                "replay the same model, in the same mode, as was recorded"
            )
        noise = draws[position]
        if tuple(noise.shape) != tuple(shape):
            raise DpvdError(
                f"draw {position} was recorded with shape {tuple(noise.shape)}, the model now asks "
                f"for {tuple(shape)}; replay the rows of the very examples that pass, through the "
                "model recorded"
            )
        position += 1
        return noise

    return serve


def _generator_source(generator: torch.Generator | None) -> _Source:
    """A source on a generator; None is torch's global one on the device of the model."""

    def serve(shape: _Shape, like: Tensor, kind: Distribution, aux: Tensor | None) -> Tensor:
        size = tuple(shape)
        device = like.device if generator is None else generator.device
        supported = like.dtype == torch.float32 and device.type == "cpu"
        if kind == "normal" and supported and _pays(size):
            noise = _large_normal(size, like, generator)
            return noise.to(like.device)
        make = torch.randn if kind == "normal" else torch.rand
        noise = make(size, generator=generator, dtype=like.dtype, device=device)
        return noise.to(like.device)

    return serve


def _pays(shape: _Shape) -> bool:
    """Whether the key stream is faster, and possible: transforms see only torch's own functions."""
    large = math.prod(shape) >= _LARGE
    return large and not inside_transform()


def inside_transform() -> bool:
    """Whether torch.compile or a transform of torch.func is at work."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._functorch.maybe_current_level() is not None


def _large_normal(
    shape: tuple[int, ...],
    like: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Normals from a key stream whose key the generator draws: as reproducible, and faster."""
    key = torch.randint(256, (32,), generator=generator, dtype=torch.uint8, device="cpu")
    key_bytes = key.numpy().tobytes()
    flat = torch.empty(math.prod(shape), dtype=torch.float32, device="cpu")
    threads = torch.get_num_threads()
    draw_from_key(flat.numpy(), 1.0, key_bytes, threads=threads)
    if not _has_channels_last(like, shape):
        return flat.view(shape)
    # What the noise is added to lies so, and two layouts in one pass cost several passes.
    count, channels, *positions = shape
    last = flat.view(count, *positions, channels)
    return last.movedim(-1, 1)


def _has_channels_last(like: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has its channels innermost in memory."""
    if like.shape != shape or len(shape) <= 2 or like.is_contiguous():
        return False
    channels_last = like.movedim(1, -1)
    lies_so: bool = channels_last.is_contiguous()
    return lies_so


@contextmanager
def _serving(source: _Source) -> Iterator[None]:
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


_default_source = _generator_source(None)
_source: ContextVar[_Source] = ContextVar("dpvd_noise_source", default=_default_source)
_sampling: ContextVar[bool | None] = ContextVar("dpvd_sampling", default=None)
