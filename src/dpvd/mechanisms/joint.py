"""The noise of several processes: each draws for its own part of the sums, once in total."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvd.mechanisms.bits import BitSource, SeededBits
from dpvd.mechanisms.noise import (
    Chunk,
    GridNoise,
    Randomness,
    check_noise,
    chunks_of,
    flat,
    give_back,
    release,
    secure,
)
from dpvd.native import EXACT_BLOCK_DRAWS, GridScale, exact_bytes_for
from dpvd.ranks import Ranks

__all__ = ["release_jointly"]


@dataclass(frozen=True)
class _Piece:
    """Entries ``begin`` to ``end`` of a chunk, which one rank draws the noise for."""

    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.begin


@torch.no_grad()
def release_jointly(
    sums: Mapping[str, Tensor],
    noise: GridNoise,
    bits: BitSource,
    *,
    scales: Mapping[str, float],
    parameters: Mapping[str, Tensor],
    ranks: Ranks,
) -> None:
    """As `release_sums`, of the sums of all ranks together; every rank gets the same result.

    The entries are dealt out to the ranks. Each adds up what all ranks have for its part (reduce
    and scatter), adds the noise of that part, and hands it to all others (gather). So noise of the
    planned variance enters once, whatever the number of ranks, and a rank makes and sends 1/W of
    it.

    Guarantees:
        No sum is passed on without its noise, except to the ranks of the group. Afterwards, and
        after an exception, no memory that was allocated here holds one.
        A seeded source gives the noise that one process would draw, entry by entry: parts begin at
        whole blocks of draws, and each knows its place in the stream.

    Args:
        ranks: several; the others are those of `release_sums`.
    """
    check_noise(noise, sums)
    chunks = chunks_of(sums, scales, parameters)
    secured = _secure_pieces(chunks, bits, ranks)
    for dtype in dict.fromkeys(chunk.sums[0].dtype for chunk in chunks):
        of_type = [
            (chunk, randomness)
            for chunk, randomness in zip(chunks, secured, strict=True)
            if chunk.sums[0].dtype == dtype
        ]
        _release_chunks(of_type, noise, ranks)


def _release_chunks(chunks: list[tuple[Chunk, Randomness]], noise: GridNoise, ranks: Ranks) -> None:
    """Chunks of one type: one exchange, the noise of this rank's pieces, one gathering."""
    device = chunks[0][0].sums[0].device
    vectors = [flat(chunk.sums) for chunk, _ in chunks]
    pieces = [_pieces(chunk.count, ranks) for chunk, _ in chunks]
    sizes = [sum(of_chunk[rank].count for of_chunk in pieces) for rank in range(ranks.size)]
    outgoing = torch.cat(
        [
            vector[of_chunk[rank].begin : of_chunk[rank].end]
            for rank in range(ranks.size)
            for vector, of_chunk in zip(vectors, pieces, strict=True)
        ]
    ).to(device)
    mine = outgoing.new_empty(0)
    try:
        mine = ranks.sum_of_parts(outgoing, sizes).cpu()
        begin = 0
        for (chunk, randomness), of_chunk in zip(chunks, pieces, strict=True):
            part = mine[begin : begin + of_chunk[ranks.rank].count]
            scale = GridScale(noise.unit, noise.std, chunk.scale)
            release(part, None, scale, randomness)
            begin += len(part)
        ranks.whole_of_parts(mine.to(device), sizes, out=outgoing)
        _write_back(outgoing.cpu(), chunks, vectors, pieces, ranks)
    finally:  # whatever happens, no sum without noise is left in this memory
        mine.zero_()
        outgoing.zero_()


def _write_back(
    noisy: Tensor,
    chunks: list[tuple[Chunk, Randomness]],
    vectors: list[Tensor],
    pieces: list[list[_Piece]],
    ranks: Ranks,
) -> None:
    """Noisy sums from the order of the ranks into that of the chunks, and on to the parameters."""
    begin = 0
    for rank in range(ranks.size):
        for vector, of_chunk in zip(vectors, pieces, strict=True):
            piece = of_chunk[rank]
            vector[piece.begin : piece.end] = noisy[begin : begin + piece.count]
            begin += piece.count
    for (chunk, _), vector in zip(chunks, vectors, strict=True):
        give_back(vector, chunk.sums)
        if chunk.parameters:
            torch._foreach_add_(chunk.parameters, chunk.sums)
            torch._foreach_zero_(chunk.sums)


def _pieces(count: int, ranks: Ranks) -> list[_Piece]:
    """The entries of a chunk, dealt out in whole blocks of draws."""
    blocks = -(-count // EXACT_BLOCK_DRAWS)
    dealt = [ranks.part_of(blocks, rank) for rank in range(ranks.size)]
    return [
        _Piece(
            min(count, part.start * EXACT_BLOCK_DRAWS), min(count, part.stop * EXACT_BLOCK_DRAWS)
        )
        for part in dealt
    ]


def _secure_pieces(chunks: list[Chunk], bits: BitSource, ranks: Ranks) -> list[Randomness]:
    """Random bytes for this rank's piece of each chunk, before any tensor is touched."""
    secured = []
    for chunk in chunks:
        piece = _pieces(chunk.count, ranks)[ranks.rank]
        begin = bits.position if isinstance(bits, SeededBits) else 0
        if isinstance(bits, SeededBits):
            bits.position = begin + exact_bytes_for(piece.begin)
        secured.append(secure(exact_bytes_for(piece.count), bits))
        if isinstance(bits, SeededBits):
            bits.position = begin + exact_bytes_for(chunk.count)
    return secured
