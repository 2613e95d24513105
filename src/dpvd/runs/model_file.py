"""The file of a model: tensors and nothing else, written with a checksum and read with a check."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dpvd.errors import DpvdError
from dpvd.files import read_within, write_atomically

__all__ = ["load_model", "save_model"]

_Model = TypeVar("_Model", bound=nn.Module)
_LARGEST = 4 << 30  # bytes: a thousand million weights, which no run here trains


def save_model(model: nn.Module, path: Path) -> str:
    """Write the model's tensors and return the SHA-256 of the file."""
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    content = save(state)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def load_model(
    build: Callable[[], _Model],
    path: Path,
    described: Mapping[str, object],
    *,
    unbounded: tuple[str, ...] = (),
) -> _Model:
    """Build the model that a record describes, and read its tensors from the file beside it.

    Guarantees:
        Nothing in the file is run. A file that is not the one the record describes, or with other
        shapes or numbers that are not finite, is refused. Shapes are compared before the model is
        built: a record cannot ask for more memory than its file has bytes for.

    Args:
        build: makes the model; under torch's meta device first, where tensors take no memory.
        path: the file.
        described: what the record says of the model; records of early versions have no
            ``checksum``.
        unbounded: names of tensors that may be infinite.

    Raises:
        DpvdError: naming the file and what is wrong with it.
    """
    state = _tensors(path, described)
    with torch.device("meta"):
        expected = build().state_dict()
    if _layout(state) != _layout(expected):
        raise DpvdError(f"the model {path} does not fit the network in the record beside it")
    for name, tensor in state.items():
        if name not in unbounded and not torch.isfinite(tensor).all():
            raise DpvdError(f"the model {path} holds numbers that are not finite, in {name}")
    model = build()
    model.load_state_dict(state)
    return model


def _layout(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _tensors(path: Path, described: Mapping[str, object]) -> dict[str, Tensor]:
    """What the file holds, which must be the one that is described."""
    try:
        content = read_within(path, _LARGEST)
    except OSError as error:
        raise DpvdError(f"the model {path} cannot be read: {error.strerror}") from error
    checksum = described.get("checksum")
    if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
        raise DpvdError(
            f"the model {path} cannot be read: it is not the file that the record beside it"
            " describes (its checksum differs); restore it from a copy"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise DpvdError(f"the model {path} cannot be read: {error}") from error
