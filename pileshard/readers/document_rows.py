"""Rows of one document each, cut at seq_len + 1 tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pileshard.format.manifest import ShardEntry
from pileshard.order.chunks import I64
from pileshard.order.even import EvenChunks
from pileshard.readers.boundaries import Boundaries
from pileshard.readers.chunk import ShardReader
from pileshard.readers.packed import PackedRows, Parts

#: What a document has beyond its row is not read, unless it is so few tokens that another read would cost more.
_READ_THROUGH = 4096


class DocumentRows(PackedRows):
    """Makes the rows of chunks from the chunks' documents."""

    def __init__(
        self, chunks: EvenChunks, reader: ShardReader, shards: Sequence[ShardEntry], eod_id: int, remember: int
    ) -> None:
        super().__init__(chunks, reader, eod_id, remember)
        self._boundaries = Boundaries(reader, shards)

    def parts(self, chunk: int) -> tuple[int, Parts]:
        """The shard of a chunk, and what its rows are made of."""
        shard, first, last = (int(part) for part in self._chunks.bounds(chunk))
        bounds = self._boundaries.numbered(shard, first, last)
        row = np.arange(last - first, dtype=np.int64)
        return shard, Parts(row, np.zeros_like(row), bounds[:-1], np.minimum(np.diff(bounds), self.places))

    def _runs(self, parts: Parts) -> tuple[I64, I64, I64]:
        ends = parts.token + parts.length
        apart = parts.token[1:] - ends[:-1] > _READ_THROUGH
        firsts = np.flatnonzero(np.append(True, apart))
        lasts = np.append(firsts[1:], len(ends)) - 1
        return parts.token[firsts], ends[lasts] - parts.token[firsts], np.cumsum(np.append(0, apart))
