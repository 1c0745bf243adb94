"""Cutting each shard's token stream into samples and chunks, the units of training and of reading.

    shard   t0 t1 t2 ...                                                    its documents' tokens, end to end
    sample  j of a shard = tokens [j * seq_len, (j + 1) * seq_len + 1)      neighbours share one token
    chunk   c of a shard = its samples [c * K, (c + 1) * K)                 K is `chunk_samples`

What is left over at a shard's end, less than a chunk, is cut off. K is the largest power of two with which a chunk has
at most `CHUNK_TOKENS` tokens and less than `MAX_CUT` of all tokens is cut off, or 1. It depends on the shards and
seq_len alone, so the order knows nothing of ranks and batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pileshard.errors import OptionError

I64 = npt.NDArray[np.int64]

#: Most tokens in a chunk of more than one sample: 256 KB of uint16, one range read.
CHUNK_TOKENS = 131072

#: Share of all tokens that partial chunks may cut off before chunks are made smaller.
MAX_CUT = 0.001


class ChunkTable(Protocol):
    """What an order asks of a split's chunks, however documents become rows."""

    @property
    def seq_len(self) -> int:
        """Tokens that a row predicts."""

    @property
    def chunk_samples(self) -> int:
        """Rows of a chunk (K)."""

    @property
    def first(self) -> I64:
        """Number of each shard's first chunk, and of all chunks: int64 [shards + 1]."""

    @property
    def count(self) -> int:
        """Number of chunks."""

    @property
    def tokens(self) -> int:
        """Tokens of all shards."""

    @property
    def cut_tokens(self) -> int | None:
        """Those that are in no row, where that is known without reading the indexes."""

    @property
    def sample_stride(self) -> int:
        """From where `locate` says that a chunk begins to the next row's begin."""

    def locate(self, chunks: npt.ArrayLike) -> tuple[I64, I64]:
        """Shard and begin of each chunk: two int64 arrays of the same shape."""


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of a list of shards, numbered 0, 1, 2, ... shard after shard.

    Attributes:
      seq_len: tokens that a sample predicts; it holds one more.
      chunk_samples: samples in a chunk (K).
      first: int64 [shards + 1], the number of each shard's first chunk; the last is the number of all chunks.
      tokens: tokens of all shards.
      cut_tokens: those that are in no sample.
      cut_samples: whole samples among them, which a smaller chunk would have kept.
    """

    seq_len: int
    chunk_samples: int
    first: I64
    tokens: int
    cut_tokens: int
    cut_samples: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return int(self.first[-1])

    @property
    def sample_stride(self) -> int:
        """Tokens from a sample's begin to the next one's."""
        return self.seq_len

    def locate(self, chunks: npt.ArrayLike) -> tuple[I64, I64]:
        """Shard and first token of each chunk: two int64 arrays of the same shape."""
        numbers = np.asarray(chunks, dtype=np.int64)
        shards = np.searchsorted(self.first, numbers, side="right") - 1
        return shards, (numbers - self.first[shards]) * (self.chunk_samples * self.seq_len)


def cut(tokens: npt.ArrayLike, seq_len: int) -> Chunks:
    """Cuts shards into chunks.

    Args:
      tokens: tokens of each shard, in the shards' order.
      seq_len: tokens that a sample predicts, at least 1.

    Raises:
      OptionError: no shard holds one sample of seq_len + 1 tokens.
    """
    shard_tokens = np.asarray(tokens, dtype=np.int64)
    if seq_len < 1:
        raise OptionError(f"seq_len is {seq_len}; it must be at least 1")
    samples = np.maximum(shard_tokens - 1, 0) // seq_len
    if not samples.any():
        longest = int(shard_tokens.max()) if shard_tokens.size else 0
        raise OptionError(
            f"no shard holds a sample of seq_len {seq_len:,} + 1 tokens (the largest of {shard_tokens.size} shards has "
            f"{longest:,}); take a smaller seq_len or build with larger shards"
        )
    total = int(shard_tokens.sum())
    size = 1 << max(0, (CHUNK_TOKENS // seq_len).bit_length() - 1)
    while True:
        counts = samples // size
        # A shard's last sample needs one token more than its inputs.
        used = counts * (size * seq_len) + (counts > 0)
        lost = total - int(used.sum())
        if size == 1 or lost < MAX_CUT * total:
            break
        size //= 2
    first = np.zeros(shard_tokens.size + 1, dtype=np.int64)
    np.cumsum(counts, out=first[1:])
    return Chunks(
        seq_len=seq_len,
        chunk_samples=size,
        first=first,
        tokens=total,
        cut_tokens=lost,
        cut_samples=int((samples - counts * size).sum()),
    )
