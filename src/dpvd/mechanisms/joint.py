"""The noise of several processes: each draws for its own part of the sums, once in total."""

from collections.abc import Mapping

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
    vectors = [flat(chunk.sums) for chunk in chunks]
    pieces = [_pieces(chunk.count, ranks) for chunk in chunks]
    try:
        ranks.sum_of_parts(vectors, pieces)
        for chunk, vector, of_chunk, randomness in zip(
            chunks, vectors, pieces, secured, strict=True
        ):
            own = of_chunk[ranks.rank]
            part = vector[own.start : own.stop]
            scale = GridScale(noise.unit, noise.std, chunk.scale)
            release(part, None, scale, randomness)
        ranks.whole_of_parts(vectors, pieces)
    except BaseException:
        for vector in vectors:
            vector.zero_()
        raise
    for chunk, vector in zip(chunks, vectors, strict=True):
        give_back(vector, chunk.sums)
        if chunk.parameters:
            torch._foreach_add_(chunk.parameters, chunk.sums)
            torch._foreach_zero_(chunk.sums)


def _pieces(count: int, ranks: Ranks) -> list[range]:
    """The entries of a chunk that each rank draws the noise for: whole blocks of draws."""
    blocks = -(-count // EXACT_BLOCK_DRAWS)
    dealt = [ranks.part_of(blocks, rank) for rank in range(ranks.size)]
    return [
        range(min(count, part.start * EXACT_BLOCK_DRAWS), min(count, part.stop * EXACT_BLOCK_DRAWS))
        for part in dealt
    ]


def _secure_pieces(chunks: list[Chunk], bits: BitSource, ranks: Ranks) -> list[Randomness]:
    """Random bytes for this rank's piece of each chunk, before any tensor is touched."""
    secured = []
    for chunk in chunks:
        piece = _pieces(chunk.count, ranks)[ranks.rank]
        begin = bits.position if isinstance(bits, SeededBits) else 0
        if isinstance(bits, SeededBits):
            bits.position = begin + exact_bytes_for(piece.start)
        secured.append(secure(exact_bytes_for(len(piece)), bits))
        if isinstance(bits, SeededBits):
            bits.position = begin + exact_bytes_for(chunk.count)
    return secured
