"""Key stream and normal draws, compiled where there was a C compiler and by NumPy where not, with the same results."""

from dpvd.native.implementation import (
    BLOCK_BYTES,
    BLOCK_DRAWS,
    Implementation,
    bytes_for,
    draw_from_bytes,
    draw_from_key,
    implementation_in_use,
    write_key_stream,
)

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_DRAWS",
    "Implementation",
    "bytes_for",
    "draw_from_bytes",
    "draw_from_key",
    "implementation_in_use",
    "write_key_stream",
]
