"""The idx file format of MNIST: a magic number, the sizes, then the bytes.

Reference:
    LeCun, Cortes, Burges, "The MNIST database of handwritten digits", section "File formats".
"""

import struct

import numpy as np
import torch
from torch import Tensor

from dpvd.errors import DpvdError

__all__ = ["parse_idx"]

_UNSIGNED_BYTE = 8  # the element type in the third byte of the magic number


def parse_idx(content: bytes, name: str) -> Tensor:
    """Return the array in an unzipped idx file of unsigned bytes.

    Args:
        content: the whole file.
        name: how messages name it.

    Raises:
        DpvdError: if this is no such file, or it is shorter or longer than its header says.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels")
    tensor([7, 9], dtype=torch.uint8)
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTE]):
        raise DpvdError(f"{name} is not an idx file of unsigned bytes: download it again")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DpvdError(f"{name} is truncated within its header: download it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DpvdError(
            f"{name} has {len(content)} bytes where its header says {expected}: download it again"
        )
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    writeable = values.reshape(shape).copy()
    return torch.from_numpy(writeable)
