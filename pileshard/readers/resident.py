"""A whole split in memory, for datasets so small that their chunks are small too.

A chunk of a few samples is a poor unit of reading. Where all tokens of a split fit in the memory that a window of large
chunks would take, they are read once, in ranges of `CHUNK_TOKENS` as rows first need them, and rows are copied from
there for ever after.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.order.chunks import CHUNK_TOKENS, I64
from pileshard.readers.chunk import ShardReader

_TEMPORARY = 1 << 16  # bytes


class Resident:
    """All tokens of a list of shards, end to end, read on demand.

    Attributes:
      first: int64 [shards + 1], where each shard's tokens begin.
    """

    def __init__(self, shard_tokens: I64, shards: ShardReader, seq_len: int) -> None:
        self.first = np.zeros(len(shard_tokens) + 1, dtype=np.int64)
        np.cumsum(shard_tokens, out=self.first[1:])
        total = int(self.first[-1])
        self._shards = shards
        self._seq_len = seq_len
        self._tokens = np.empty(total, dtype=shards.dtype)
        item = shards.dtype.itemsize
        self._rows = np.lib.stride_tricks.as_strided(
            self._tokens, (total - seq_len, seq_len + 1), (item, item), writeable=False
        )
        self._lost: list[tuple[int, int]] = []  # of all tokens, apart from each other
        self._missing: npt.NDArray[np.bool_] | None = np.ones(-(-total // CHUNK_TOKENS), dtype=bool)

    def copy(self, firsts: I64, out: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Copies the rows whose first tokens are given: int64 [rows] into [rows, seq_len + 1].

        Returns:
          Which rows touch tokens that are lost to damage, None where nothing is lost.
        """
        if self._missing is not None and not self._read(firsts):
            self._missing = None
        # A few rows at a time: numpy makes an array of them first, and a large one costs more in page faults than it
        # holds.
        some = max(1, _TEMPORARY // (out.shape[1] * out.itemsize))
        for at in range(0, len(out), some):
            out[at : at + some] = self._rows[firsts[at : at + some]]
        if not self._lost:
            return None
        begins, ends = np.array(sorted(self._lost), dtype=np.int64).T
        following = ends.searchsorted(firsts, side="right")
        return np.append(begins, len(self._tokens))[following] <= firsts + self._seq_len

    def _read(self, firsts: I64) -> bool:
        """Reads what these rows need; returns whether anything is still missing."""
        assert self._missing is not None
        touched = np.zeros(len(self._missing) + 1, dtype=np.int64)
        np.add.at(touched, firsts // CHUNK_TOKENS, 1)
        np.add.at(touched, (firsts + self._seq_len) // CHUNK_TOKENS + 1, -1)
        needed = np.flatnonzero((np.cumsum(touched)[:-1] > 0) & self._missing)
        ranges = [part for number in needed.tolist() for part in self._parts(number)]
        if ranges:
            self._shards.expect([(shard, first, end - begin) for shard, first, begin, end in ranges])
        for shard, first, begin, end in ranges:
            for low, high in self._shards.read(shard, first, self._tokens[begin:end]) or ():
                self._lost.append((low - first + begin, high - first + begin))
        self._missing[needed] = False
        return bool(self._missing.any())

    def _parts(self, number: int) -> Iterator[tuple[int, int, int, int]]:
        """A range of `CHUNK_TOKENS` by shard: its number, the first token in it, begin and end in all tokens."""
        begin = number * CHUNK_TOKENS
        end = min(begin + CHUNK_TOKENS, len(self._tokens))
        shard = int(np.searchsorted(self.first, begin, side="right")) - 1
        while begin < end:
            upto = min(end, int(self.first[shard + 1]))
            if begin < upto:
                yield shard, begin - int(self.first[shard]), begin, upto
            begin, shard = upto, shard + 1
