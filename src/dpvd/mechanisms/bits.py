"""Where random bits come from: the operating system by default, a seed only when asked for by name.

Both sources are the key stream of AES-256 in counter mode; they differ in the key. A privacy
guarantee holds against everybody who does not know the key, so the key of `SystemBits` never leaves
the process, and `SeededBits` says of itself that it is not private.

References:
    NIST SP 800-38A (2001), section 6.5: counter mode.
    Bellare and Rogaway (2006), "The security of triple encryption and a framework for code-based
    game-playing proofs", the PRP/PRF switching lemma: beyond the cipher's own weakness, n blocks of
    key stream differ from random bits by less than n² / 2^129.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from dpvd.errors import DpvdError, positive_int
from dpvd.native import write_key_stream

__all__ = ["BitSource", "KeyedBits", "SeededBits", "SystemBits", "Window", "random_words"]

# Bytes per key: 2^26 blocks, so the bound in the module's docstring is 2^-77.
_REKEY_AFTER = 1 << 30
# Bytes of a seeded stream; its counter of 16-byte blocks stays below 2^60.
_POSITION_LIMIT = 1 << 64

_fork_count = 0


class BitSource(Protocol):
    """A stream of independent, uniformly random bytes that never repeats itself."""

    @property
    def description(self) -> str:
        """The words in which a privacy guarantee names this source."""
        ...

    @property
    def private(self) -> bool:
        """Whether nobody can know the bits."""
        ...

    def fill(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Overwrite a contiguous buffer with random bytes, or raise."""
        ...


@dataclass(frozen=True)
class Window:
    """Bytes of a key stream that were given out, once: those from ``start`` to ``start + size``."""

    key: bytes = field(repr=False)
    start: int
    size: int


class KeyedBits(ABC):
    """A source whose bytes are the key stream of AES-256 in counter mode.

    It gives out windows of the stream, each byte once; whoever gets one computes its bytes, in
    chunks and threads of its own if it likes.

    Edge cases:
        One object serves one thread at a time. A second one that comes in between gets an
        exception, not the same bits; so does a child that was forked in between.
    """

    def __init__(self) -> None:
        self._lock = Lock()

    def windows(self, size: int, unit: int = 1) -> list[Window]:
        """Give out the next ``size`` bytes, in windows that only end between units, and at the end.

        Raises:
            RuntimeError: if another thread is just being served, or a key that is needed cannot be
                had.
        """
        with self._alone():
            return self._next_windows(size, unit)

    def fill(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Overwrite a contiguous buffer with random bytes, or raise."""
        target = _bytes_of(buffer)
        done = 0
        for window in self.windows(len(target)):
            write_key_stream(window.key, window.start, target[done : done + window.size])
            done += window.size

    @abstractmethod
    def _next_windows(self, size: int, unit: int) -> list[Window]: ...

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):  # waiting could last for ever in a forked child
            raise RuntimeError(
                "this source of random bits serves another thread: give each thread its own"
            )
        try:
            yield
        finally:
            self._lock.release()


class SystemBits(KeyedBits):
    """Random bytes from a cipher whose key comes from the operating system.

    Guarantees:
        Fails closed: when the operating system or the cipher fails, the failure is raised and no
        substitute is used. A forked child takes a key of its own, so parent and child never share a
        stream. A key is replaced before ``rekey_after`` bytes are exceeded, long before a counter
        could repeat.

    Edge cases:
        An empty buffer is legal. Copying and pickling are refused: two copies would give out the
        same bits. One object serves one thread at a time; a second thread that interrupts it gets
        an exception, not the same bits.

    Args:
        rekey_after: most bytes to draw from one key.

    Raises:
        DpvdError: if ``rekey_after`` is not a positive whole number or too little for what is
            asked, or a buffer cannot be filled.
        RuntimeError: if the operating system gives no randomness.

    >>> buffer = np.zeros(32, dtype=np.uint8)
    >>> SystemBits().fill(buffer)
    >>> bool(buffer.any())
    True
    """

    description = "the system's cryptographic generator"
    private = True

    def __init__(self, *, rekey_after: int = _REKEY_AFTER) -> None:
        super().__init__()
        positive_int(rekey_after=rekey_after)
        self._rekey_after = rekey_after
        self._take_new_key()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "SystemBits cannot be copied or pickled: its copy would give out the same bits"
        )

    def _next_windows(self, size: int, unit: int) -> list[Window]:
        if unit > self._rekey_after:
            raise DpvdError(
                f"rekey_after must be at least {unit} for these draws, got {self._rekey_after}"
            )
        windows = []
        while size > 0:
            if (
                self._rekey_after - self._used < min(size, unit)
                or self._owner != _process_identity()
            ):
                self._take_new_key()
            room = self._rekey_after - self._used
            taken = size if size <= room else room // unit * unit
            windows.append(Window(self._key, self._used, taken))
            self._used += taken
            size -= taken
        return windows

    def _take_new_key(self) -> None:
        self._key = _system_key()
        self._owner = _process_identity()
        self._used = 0


class SeededBits(KeyedBits):
    """Reproducible random bytes: the same seed and purpose give the same stream on every machine.

    For tests, demonstrations and debugging. Whoever knows the seed can subtract the noise, so
    nothing drawn from here protects anybody. Streams for different purposes under one seed are
    independent.

    Guarantees:
        ``position`` counts the bytes consumed; setting it continues the stream from exactly there,
        which is how a run is resumed.

    Edge cases:
        A forked child continues the parent's stream from the same position: reproducible is what
        was asked.

    Args:
        seed: any whole number of at least 0.
        purpose: what the stream is for, such as ``"noise"`` or ``"sampling"``.

    Raises:
        DpvdError: for a negative or fractional seed, or a position outside the stream.

    >>> first, second = np.empty(4, np.uint8), np.empty(4, np.uint8)
    >>> SeededBits(0, "noise").fill(first)
    >>> SeededBits(0, "noise").fill(second)
    >>> bool((first == second).all())
    True
    """

    description = "reproducible: not private against whoever knows the seed"
    private = False

    def __init__(self, seed: int, purpose: str) -> None:
        super().__init__()
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise DpvdError(f"seed must be a whole number of at least 0, got {seed!r}")
        # The decimal digits end at the first colon, so no two (seed, purpose) pairs share an
        # encoding.
        self._key = hashlib.sha256(f"dpvd seeded bits 1:{seed}:{purpose}".encode()).digest()
        self.position = 0

    @property
    def position(self) -> int:
        """Bytes consumed so far; set it to resume from there."""
        return self._position

    @position.setter
    def position(self, value: int) -> None:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 0 <= value < _POSITION_LIMIT
        ):
            raise DpvdError(f"position must be a whole number from 0 to 2^64 - 1, got {value!r}")
        self._position = value

    def _next_windows(self, size: int, unit: int) -> list[Window]:
        if self._position + size > _POSITION_LIMIT:
            raise DpvdError("the seeded stream ends after 2^64 bytes: take another seed or purpose")
        window = Window(self._key, self._position, size)
        self._position += size
        return [window]


def random_words(count: int, bits: BitSource) -> npt.NDArray[np.uint64]:
    """Return ``count`` independent uniform 64-bit words.

    >>> random_words(3, SystemBits()).dtype
    dtype('uint64')
    """
    words = np.empty(count, dtype=np.uint64)
    bits.fill(words.view(np.uint8))
    return words


def _system_key() -> bytes:
    try:
        return os.urandom(32)
    except (OSError, NotImplementedError) as error:
        raise RuntimeError(
            "the operating system gave no randomness, so nothing private can be drawn; nothing was"
            " drawn in its place"
        ) from error


def _bytes_of(buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if buffer.dtype != np.uint8 or not buffer.flags.c_contiguous or not buffer.flags.writeable:
        raise DpvdError(
            "a buffer for random bytes must be a writeable, contiguous array of uint8; got"
            f" {buffer.dtype} with strides {buffer.strides}: allocate it with np.empty(size,"
            " np.uint8)"
        )
    return buffer.reshape(-1)


def _process_identity() -> tuple[int, int]:
    """Return what changes when the process forks: the count sees a reused process number, too."""
    return os.getpid(), _fork_count


def _count_fork() -> None:
    global _fork_count
    _fork_count += 1


if hasattr(os, "register_at_fork"):  # absent where processes cannot fork
    os.register_at_fork(after_in_child=_count_fork)
