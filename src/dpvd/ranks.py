"""The processes that train one model together, and what they tell each other.

Every process runs the same program, started by ``torchrun`` or another launcher of torch, and is
one *rank* of a process group. A process by itself is a group of one, for which nothing here sends
anything: the same code trains with one process and with many.
"""

import hashlib
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

from dpvd.errors import DpvdError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "ALONE",
    "Ranks",
    "StoppedByAnother",
    "backend_for",
    "processes_around",
    "refuse_untold_group",
]

_DIGEST = 32  # bytes


class StoppedByAnother(DpvdError):
    """What a rank raises because another one did, whose message says why."""


class Ranks:
    """A process group as the steps of a plan use it.

    Guarantees:
        All ranks call the same methods in the same order. What one of them raises inside
        `together`, all of them raise: none waits for an answer that never comes.

    Args:
        group: of torch; None is this process alone.

    >>> Ranks(None).part_of(10)
    range(0, 10)
    """

    def __init__(self, group: "ProcessGroup | None") -> None:
        self.group = group
        self.rank = 0
        self.size = 1
        if group is not None:
            self.rank = distributed.get_rank(group)
            self.size = distributed.get_world_size(group)
        if self.rank < 0:
            raise DpvdError("this process is not a member of the group: give a group that it is in")

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes files and prints."""
        return self.rank == 0

    @property
    def are_several(self) -> bool:
        return self.size > 1

    def part_of(self, count: int, rank: int | None = None) -> range:
        """The consecutive things, of ``count``, that belong to a rank; this one if not given.

        Every thing belongs to exactly one rank, whatever ``count`` is; parts differ by at most one.
        """
        which = self.rank if rank is None else rank
        return range(count * which // self.size, count * (which + 1) // self.size)

    @contextmanager
    def together(self) -> Generator[None, None, None]:
        """What one rank raises in this block, all ranks raise at its end."""
        if not self.are_several:
            yield
            return
        try:
            yield
        except BaseException:
            # Nobody is left waiting; what the others raise there is no news here.
            self._all_fine(False)
            raise
        if not self._all_fine(True):
            raise StoppedByAnother(
                f"another process of the group stopped this step, and so does rank {self.rank}: its"
                " own message says why"
            )

    def _all_fine(self, is_fine: bool) -> bool:
        flag = self._numbers([int(is_fine)])
        distributed.all_reduce(flag, op=distributed.ReduceOp.MIN, group=self.group)
        return bool(flag.item())

    def largest(self, value: int) -> int:
        """The largest of the ranks' values."""
        if not self.are_several:
            return value
        flag = self._numbers([value])
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=self.group)
        return int(flag.item())

    def check_same(self, facts: Mapping[str, str], remedy: str) -> None:
        """Raise, on every rank, unless all ranks have the same facts.

        Args:
            facts: by what they are, texts of any length; all ranks have the same names.
            remedy: what to do about a difference.

        Raises:
            DpvdError: naming the first fact that differs.
        """
        if not self.are_several or not facts:
            return
        digests = [hashlib.sha256(text.encode()).digest() for text in facts.values()]
        own = self._numbers(list(b"".join(digests)))
        everybody = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(everybody, own, group=self.group)
        table = torch.stack(everybody).view(self.size, len(facts), _DIGEST)
        same = (table == table[:1]).all(dim=2)  # [ranks, facts]
        for index, name in enumerate(facts):
            others = (~same[:, index]).nonzero().flatten().tolist()
            if others:
                raise DpvdError(
                    f"the processes of the group disagree about {name} (rank 0 and rank"
                    f" {others[0]}), so they would not train one model: {remedy}"
                )

    def sum_of_parts(self, vectors: Sequence[Tensor], parts: Sequence[Sequence[range]]) -> None:
        """Reduce and scatter: this rank's part of each vector becomes the sum of all ranks' parts.

        They are added in the order of the ranks, so the result does not depend on who was faster.
        Each rank sends all of its vectors but its own parts.

        Args:
            vectors: changed in place, in this rank's parts.
            parts: for each vector, the entries that belong to each rank.
        """
        own = [_cut(vector, of[self.rank]) for vector, of in zip(vectors, parts, strict=True)]
        incoming = {rank: [torch.empty_like(part) for part in own] for rank in self._others}
        self._exchange(
            [
                (rank, _cut(vector, of[rank]))
                for rank in self._others
                for vector, of in zip(vectors, parts, strict=True)
            ],
            [(rank, part) for rank in self._others for part in incoming[rank]],
        )
        for index, here in enumerate(own):
            terms = [
                here if rank == self.rank else incoming[rank][index] for rank in range(self.size)
            ]
            total = terms[0]
            for part in terms[1:]:
                total += part
            if total is not here:
                here.copy_(total)
        for buffers in incoming.values():
            for part in buffers:
                part.zero_()  # sums of other ranks, without noise

    def whole_of_parts(self, vectors: Sequence[Tensor], parts: Sequence[Sequence[range]]) -> None:
        """Gather: each rank's parts of the vectors, as that rank has them, go to all others."""
        pairs = list(zip(vectors, parts, strict=True))
        self._exchange(
            [(rank, _cut(vector, of[self.rank])) for rank in self._others for vector, of in pairs],
            [(rank, _cut(vector, of[rank])) for rank in self._others for vector, of in pairs],
        )

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _exchange(
        self, sent: Sequence[tuple[int, Tensor]], received: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send tensors to ranks and fill others from ranks, all at once; empty ones are left out.

        Between two ranks they arrive in the order in which they were sent.
        """
        assert self.group is not None  # several ranks are a group
        leaving = [(rank, self._sendable(tensor)) for rank, tensor in sent if len(tensor)]
        filled = [(rank, tensor) for rank, tensor in received if len(tensor)]
        landing = [(rank, self._sendable(tensor)) for rank, tensor in filled]
        operations = []
        for function, messages in ((distributed.isend, leaving), (distributed.irecv, landing)):
            for rank, tensor in messages:
                peer = distributed.get_global_rank(self.group, rank)
                operations.append(distributed.P2POp(function, tensor, peer, self.group))
        works = distributed.batch_isend_irecv(operations) if operations else []
        for work in works:
            work.wait()
        for (_, tensor), (_, landed) in zip(filled, landing, strict=True):
            _take_over(landed, tensor)

    def add_up(self, total: Tensor) -> None:
        """Replace a tensor by the sum of all ranks' tensors."""
        if self.are_several:
            message = self._sendable(total)
            distributed.all_reduce(message, group=self.group)
            _take_over(message, total)

    def take_from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of the first rank."""
        if self.are_several:
            message = self._sendable(tensor)
            distributed.broadcast(message, group_src=0, group=self.group)
            _take_over(message, tensor)

    def bytes_of_first(self, own: bytes) -> bytes:
        """The bytes of the first rank, such as a key that it drew."""
        if not self.are_several:
            return own
        length = self._numbers([len(own)])
        self.take_from_first(length)
        message = self._numbers(list(own) if self.is_first else [0] * int(length.item()))
        self.take_from_first(message)
        return bytes(message.tolist())

    def _numbers(self, values: list[int]) -> Tensor:
        """A message of whole numbers, where the group's backend can send it."""
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _sendable(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or a copy, where and as the group's backend can send it."""
        return tensor.detach().to(self._device).contiguous()

    @property
    def _device(self) -> str:
        """Where the group's backend takes messages from."""
        return "cuda" if distributed.get_backend(self.group) == "nccl" else "cpu"


def backend_for(device: torch.device | str) -> str:
    """The backend of torch for groups whose models are on a device."""
    return "nccl" if torch.device(device).type == "cuda" else "gloo"


@torch.no_grad()
def _take_over(message: Tensor, tensor: Tensor) -> None:
    """Write what came as a message into the tensor that it is for, unless it is there already."""
    if message.data_ptr() != tensor.data_ptr():
        tensor.copy_(message)


def _cut(vector: Tensor, part: range) -> Tensor:
    return vector[part.start : part.stop]


ALONE = Ranks(None)
"""This process, which trains by itself."""


def processes_around() -> int:
    """How many processes were started together with this one, itself included.

    Those of torch's process group; where none was made yet, those that a launcher such as torchrun
    says it started.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def refuse_untold_group(ranks: Ranks) -> None:
    """Raise where several processes train and the step was not told: each would train its own.

    Raises:
        DpvdError: naming what to give.
    """
    if ranks.are_several:
        return
    size = processes_around()
    if size > 1:
        raise DpvdError(
            f"this is one of {size} processes, and the step was not told: each would train a model"
            " of its own under the whole budget. Give group=torch.distributed.group.WORLD to the"
            " step and to plan.batches or plan.loader, or train in one process"
        )
