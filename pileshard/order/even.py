"""Chunks that hold all of a shard: the shard is divided evenly, and every chunk gives the same number of rows.

    shard   T units                    tokens (`best_fit`), or documents (`document`)
    chunk   c of its n: the units [c * T // n, (c + 1) * T // n)      and always K rows, a few of them not filled

Nothing is cut off a shard's end, and a position still tells its chunk and row without a look at the data. The price is
rows that are not filled; K is chosen so that they are few.

`best_fit`: a chunk packs the pieces (documents, cut at every seq_len + 1 tokens) that begin in its span of the tokens.
The last of them may end seq_len tokens after the span, so where a shard has more than one chunk a span is at most
(K - 1) * (seq_len + 1) + 1 tokens: what begins in it always fits into K rows, and the row that is spared for the worst
case is, on average, what packing whole documents needs as play.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pileshard.errors import OptionError
from pileshard.order.chunks import CHUNK_TOKENS, I64, MAX_CUT

#: Most tokens and most rows of a chunk of packed rows. The more rows, the better documents fit and the fewer are cut.
PACK_TOKENS = 1 << 20
PACK_ROWS = 256

#: How many more rows than the fewest a larger chunk may cost.
_MORE_ROWS = 1.01


@dataclass(frozen=True, eq=False)
class EvenChunks:
    """The chunks of a list of shards, numbered 0, 1, 2, ... shard after shard.

    Attributes:
      seq_len: tokens that a row predicts; it holds one more.
      chunk_samples: rows of a chunk (K).
      first: int64 [shards + 1], the number of each shard's first chunk; the last is the number of all chunks.
      units: int64 [shards], what each shard is divided by: its tokens or documents.
      tokens: tokens of all shards.
      cut_tokens: those that are in no row: 0, or None where only the documents' lengths tell.
      sample_stride: units from a row to the next: 1 where a row is a document, 0 where rows share the chunk's span.
    """

    seq_len: int
    chunk_samples: int
    first: I64
    units: I64
    tokens: int
    cut_tokens: int | None
    sample_stride: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return int(self.first[-1])

    def bounds(self, chunks: npt.ArrayLike) -> tuple[I64, I64, I64]:
        """Shard, first unit and unit after the last of each chunk: three int64 arrays of the same shape."""
        numbers = np.asarray(chunks, dtype=np.int64)
        shards = np.searchsorted(self.first, numbers, side="right") - 1
        place, count = numbers - self.first[shards], self.first[shards + 1] - self.first[shards]
        units = self.units[shards]
        # Units and chunks of a shard are below 2^31 each: their product fits.
        return shards, place * units // count, (place + 1) * units // count

    def locate(self, chunks: npt.ArrayLike) -> tuple[I64, I64]:
        """Shard and first unit of each chunk: two int64 arrays of the same shape."""
        return self.bounds(chunks)[:2]


def _firsts(counts: I64) -> I64:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def spans(tokens: npt.ArrayLike, seq_len: int) -> EvenChunks:
    """Chunks for packing documents whole into rows of seq_len + 1 tokens.

    K is the largest power of two, at most `PACK_ROWS` and `PACK_TOKENS`, whose epoch has at most 1% more rows than the
    shortest one, so it shrinks where shards are small.

    Args:
      tokens: tokens of each shard, in the shards' order.
      seq_len: tokens that a row predicts, at least 1.

    Raises:
      OptionError: there are no tokens.
    """
    shard_tokens = np.asarray(tokens, dtype=np.int64)
    if not shard_tokens.any():
        raise OptionError("the shards hold no tokens")
    row = seq_len + 1
    most = max(2, min(PACK_ROWS, PACK_TOKENS // seq_len))
    sizes = [1 << bits for bits in range(most.bit_length())]
    found = {}
    for size in sizes:
        span = (size - 1) * row + 1
        counts = np.where(shard_tokens <= size * row, shard_tokens > 0, -(-shard_tokens // span))
        found[size] = size * int(counts.sum()), counts
    fewest = min(rows for rows, _ in found.values())
    size = max(size for size, (rows, _) in found.items() if rows <= _MORE_ROWS * fewest)
    return EvenChunks(
        seq_len=seq_len,
        chunk_samples=size,
        first=_firsts(found[size][1]),
        units=shard_tokens,
        tokens=int(shard_tokens.sum()),
        cut_tokens=0,
        sample_stride=0,
    )


def documents(shard_documents: npt.ArrayLike, shard_tokens: npt.ArrayLike, seq_len: int) -> EvenChunks:
    """Chunks of consecutive documents, one a row.

    K is the largest power of two with which a chunk's rows hold at most `CHUNK_TOKENS` tokens and less than `MAX_CUT`
    of all rows are empty, or 1, where none is.

    Args:
      shard_documents: documents of each shard, in the shards' order.
      shard_tokens: tokens of each.
      seq_len: tokens that a row predicts, at least 1.

    Raises:
      OptionError: there are no documents.
    """
    held = np.asarray(shard_documents, dtype=np.int64)
    total = int(held.sum())
    if not total:
        raise OptionError("the shards hold no documents")
    size = 1 << max(0, (CHUNK_TOKENS // seq_len).bit_length() - 1)
    while True:
        counts = -(-held // size)
        if size == 1 or size * int(counts.sum()) - total < MAX_CUT * total:
            break
        size //= 2
    return EvenChunks(
        seq_len=seq_len,
        chunk_samples=size,
        first=_firsts(counts),
        units=held,
        tokens=int(np.asarray(shard_tokens, dtype=np.int64).sum()),
        cut_tokens=None,
        sample_stride=1,
    )
