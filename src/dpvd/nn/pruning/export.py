"""Pruned weights as sparse tensors, for storing and sending."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvd.nn.layer import VariationalLayer

__all__ = ["SparseState", "sparse_state"]


@dataclass(frozen=True)
class SparseState:
    """The state of a network's means, weights with enough zeros in compressed sparse rows.

    Attributes:
        tensors: by name, as in the state of the ordinary network; what is sparse is a matrix, whose
            rows are the output units (channels, of a convolution).
        shapes: the tensors' shapes in that state.
        dense_bytes: what the tensors take when all are dense.
        bytes: what they take as they are.
    """

    tensors: dict[str, Tensor]
    shapes: dict[str, torch.Size]
    dense_bytes: int
    bytes: int

    def to_dense(self) -> dict[str, Tensor]:
        """The state with all tensors dense, for ``load_state_dict``."""
        dense = {}
        for name, tensor in self.tensors.items():
            if tensor.layout is torch.sparse_csr:
                tensor = tensor.to_dense().reshape(self.shapes[name])
            dense[name] = tensor
        return dense

    def __str__(self) -> str:
        sparse = sum(tensor.layout is torch.sparse_csr for tensor in self.tensors.values())
        return (
            f"{sparse} of {len(self.tensors)} tensors sparse:"
            f" {self.dense_bytes:,} became {self.bytes:,} bytes"
        )


@torch.no_grad()
def sparse_state(model: nn.Module) -> SparseState:
    """Return the state of the model's means, sparse weights in CSR form with 32-bit indices.

    Guarantees: ``to_dense`` gives back the values bit for bit, and loads into the ordinary network
    and into the variational one. Only parameters are looked at, so a private model stays as private
    as it is.

    Edge cases: noise parameters and masks are left out. A weight that would be larger as a sparse
    matrix stays dense, and so do vectors. A convolution's weight [out, in, *kernel] is taken as the
    matrix [out, in · kernel].

    >>> layer = nn.Linear(100, 10)
    >>> _ = nn.init.eye_(layer.weight)
    >>> print(sparse_state(layer))
    1 of 2 tensors sparse: 4,040 became 164 bytes
    """
    noise = _noise_names(model)
    state = model.state_dict()
    dense = {name: value.detach().clone() for name, value in state.items() if name not in noise}
    tensors = {name: _smaller(value) for name, value in dense.items()}
    return SparseState(
        tensors=tensors,
        shapes={name: value.shape for name, value in dense.items()},
        dense_bytes=sum(_bytes(value) for value in dense.values()),
        bytes=sum(_bytes(value) for value in tensors.values()),
    )


def _noise_names(model: nn.Module) -> set[str]:
    """What the state of an ordinary network does not have: noise parameters and masks."""
    names = set()
    for prefix, layer in model.named_modules():
        if isinstance(layer, VariationalLayer):
            for name in (*layer.noise_state, "kept"):
                names.add(f"{prefix}.{name}".lstrip("."))
    return names


def _smaller(value: Tensor) -> Tensor:
    """The tensor [out, ...], or the matrix [out, rest] in compressed rows where that takes less."""
    if value.dim() < 2 or not value.numel():
        return value
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        matrix = value.flatten(1)
        wide = matrix.to_sparse_csr()  # its indices have 64 bits
        rows = torch.sparse_csr_tensor(
            wide.crow_indices().int(),
            wide.col_indices().int(),
            wide.values(),
            matrix.shape,
            check_invariants=True,
        )
    return rows if _bytes(rows) < _bytes(value) else value


def _bytes(value: Tensor) -> int:
    if value.layout is torch.sparse_csr:
        parts = (value.crow_indices(), value.col_indices(), value.values())
        return sum(part.nbytes for part in parts)
    return value.nbytes
