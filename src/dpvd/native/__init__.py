"""Key stream, normal draws, noise on a grid, Dawson function, sums of squares.

Compiled where there was a C compiler, and by NumPy where not.
"""

from dpvd.native.draws import (
    BLOCK_BYTES,
    BLOCK_DRAWS,
    EXACT_BLOCK_BYTES,
    EXACT_BLOCK_DRAWS,
    MOST_UNITS_PER_STD,
    GridScale,
    bytes_for,
    draw_from_bytes,
    draw_from_key,
    exact_bytes_for,
    exact_normals,
    release_from_bytes,
    release_from_key,
    write_key_stream,
)
from dpvd.native.kernels import (
    Implementation,
    add_dawson,
    implementation_in_use,
    row_squares,
)

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_DRAWS",
    "EXACT_BLOCK_BYTES",
    "EXACT_BLOCK_DRAWS",
    "MOST_UNITS_PER_STD",
    "GridScale",
    "Implementation",
    "add_dawson",
    "bytes_for",
    "draw_from_bytes",
    "draw_from_key",
    "exact_bytes_for",
    "exact_normals",
    "implementation_in_use",
    "release_from_bytes",
    "release_from_key",
    "row_squares",
    "write_key_stream",
]
