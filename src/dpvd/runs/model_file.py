"""The file of a model: tensors and nothing else, written with a checksum and read with a check."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from dpvd.errors import DpvdError
from dpvd.files import write_atomically

__all__ = ["load_model", "save_model"]


def save_model(model: nn.Module, path: Path) -> str:
    """Write the model's tensors and return the SHA-256 of the file."""
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    content = save(state)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def load_model(
    model: nn.Module,
    path: Path,
    described: Mapping[str, object],
    *,
    unbounded: tuple[str, ...] = (),
) -> None:
    """Read tensors into a model that was built by the record beside them.

    Guarantees:
        Nothing in the file is run. A file that is not the one the record describes, or with other
        shapes or numbers that are not finite, is refused.

    Args:
        model: changed in place.
        path: the file.
        described: what the record says of the model; records of early versions have no
            ``checksum``.
        unbounded: names of tensors that may be infinite.

    Raises:
        DpvdError: naming the file and what is wrong with it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DpvdError(f"the model {path} cannot be read: {error.strerror}") from error
    checksum = described.get("checksum")
    if checksum is not None and hashlib.sha256(content).hexdigest() != checksum:
        raise DpvdError(
            f"the model {path} cannot be read: it is not the file that the record beside it"
            " describes (its checksum differs); restore it from a copy"
        )
    try:
        state = load(content)
        model.load_state_dict(state)
    except SafetensorError as error:
        raise DpvdError(f"the model {path} cannot be read: {error}") from error
    except RuntimeError as error:  # other names or shapes of parameters
        raise DpvdError(
            f"the model {path} does not fit the network in the record beside it"
        ) from error
    for name, tensor in state.items():
        if name not in unbounded and not torch.isfinite(tensor).all():
            raise DpvdError(f"the model {path} holds numbers that are not finite, in {name}")
