"""Where layers get their randomness, and how it is put on their outputs.

Every layer asks :func:`draw` for noise; who answers is decided by the caller of the model, with a
context manager: torch's global generator (the default), a given generator, or a tape that replays
recorded noise. A layer call draws exactly once when it samples and not at all otherwise, and every
draw has the batch as its first dimension: one example's noise is one row.

Local reparameterisation (:func:`add_noise_`) puts it on the outputs instead of on the weights.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.native import draw_from_key

__all__ = [
    "VARIANCE_FLOOR",
    "Distribution",
    "NoiseTape",
    "add_noise_",
    "draw",
    "gaussian_sample",
    "inside_transform",
    "is_sampling",
    "noise_from",
    "noise_std",
    "sampling",
    "tape_from",
]

Distribution: TypeAlias = Literal["normal", "uniform"]
"""``normal`` is N(0, 1); ``uniform`` is U[0, 1), from which dropout masks are made."""

VARIANCE_FLOOR = 1e-20
"""Variances up to this are no noise at all. Its root, 1e-10, is below the resolution of float32."""

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


def noise_std(var: Tensor) -> Tensor:
    """The standard deviation √var, whose gradient is finite everywhere.

    Guarantees: where var ≤ ``VARIANCE_FLOOR`` the result is exactly 0 and so is its gradient (that
    of √var is infinite at 0); elsewhere both are those of √var.

    Args:
        var: variances, at least 0, of any shape.

    >>> import torch
    >>> var = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> std = noise_std(var)
    >>> std.sum().backward()
    >>> std.tolist(), var.grad.tolist()
    ([0.0, 2.0], [0.0, 0.25])
    """
    root = var.clamp_min(VARIANCE_FLOOR).sqrt()
    return root.masked_fill(var <= VARIANCE_FLOOR, 0.0)


def gaussian_sample(mean: Tensor, var: Tensor) -> Tensor:
    """Sample N(mean, var) as mean + √var·ε, ε drawn independently for every entry of ``mean``.

    Guarantees: one draw, of the shape of ``mean``, with √var as its auxiliary tensor; where var = 0
    the result equals ``mean`` bit for bit.

    Args:
        mean: [B, ...], the batch first.
        var: at least 0, of a shape that broadcasts to that of ``mean``.

    References: Kingma, Salimans and Welling (arXiv:1506.02557v2), the local
    reparameterisation trick.
    """
    sample = mean.clone()
    return add_noise_(sample, var)


def add_noise_(mean: Tensor, var: Tensor) -> Tensor:
    """:func:`gaussian_sample`, written over ``mean``.

    Outputs are large, and nobody else has seen a layer's own yet.

    Guarantees: the values and gradients of mean + noise_std(var)·ε; differentiable once outside of
    transforms.
    """
    if inside_transform():
        std = noise_std(var)
        noise = draw(mean.shape, mean, aux=std)
        return torch.addcmul(mean, std, noise)
    std = torch.threshold(var.detach(), VARIANCE_FLOOR, 0.0)
    std = std.sqrt_()
    noise = draw(mean.shape, mean, aux=std)
    differentiable = torch.is_grad_enabled() and var.requires_grad
    if not differentiable:
        return mean.addcmul_(std, noise)
    result: Tensor = _AddNoise.apply(mean, var, std, noise)  # type: ignore[no-untyped-call]
    return result


class _AddNoise(torch.autograd.Function):
    """mean + std·noise with std = √var, in as few passes over the outputs as torch allows.

    Autograd through :func:`noise_std` takes more than twice the time, most of it for masks and
    copies.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        ctx.save_for_backward(std, noise)
        if mean._is_view():
            # Undoing a write over a part of a tensor costs autograd several copies.
            return torch.addcmul(mean, std, noise)
        ctx.mark_dirty(mean)
        return mean.addcmul_(std, noise)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        std, noise = ctx.saved_tensors
        # ∂/∂var = noise / (2√var); where there is no variance, dividing by infinity gives the 0
        # that it has to be.
        divisor = torch.threshold(std, 0.0, math.inf).mul_(2)
        of_std = (grad * noise).sum_to_size(std.shape)
        of_var = of_std.div_(divisor)
        of_mean = grad if ctx.needs_input_grad[0] else None
        return of_mean, of_var, None, None


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
