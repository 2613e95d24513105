"""Key stream, normal draws, the Dawson function and sums of squares, compiled where there was a C compiler and by NumPy
where not, with the same results."""

from dpvd.native.dawson import add_dawson
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
from dpvd.native.squares import row_squares

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_DRAWS",
    "Implementation",
    "add_dawson",
    "bytes_for",
    "draw_from_bytes",
    "draw_from_key",
    "implementation_in_use",
    "row_squares",
    "write_key_stream",
]
