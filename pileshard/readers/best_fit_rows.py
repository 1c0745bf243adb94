"""Rows of whole documents, packed by best fit (`pileshard.order.best_fit`).

A chunk packs the pieces that begin in its span of the shard's tokens. A piece is a document, or of a document of more
than seq_len + 1 tokens one of its runs of so many, counted from its begin; the last is what is left. Within a row the
pieces stand as they do in the shard, and a chunk's rows stand in an order of their own, since best fit puts the longest
pieces into the first ones and a window is read across its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pileshard.format.manifest import ShardEntry
from pileshard.format.record import RECORD_TOKENS
from pileshard.order.best_fit import assign
from pileshard.order.chunks import I64
from pileshard.order.even import EvenChunks
from pileshard.order.permutation import derive_key, mixed
from pileshard.readers.boundaries import Boundaries
from pileshard.readers.chunk import ShardReader
from pileshard.readers.packed import PackedRows, Parts


class BestFitRows(PackedRows):
    """Makes the rows of chunks by best fit."""

    _rows_depend = True

    def __init__(
        self,
        chunks: EvenChunks,
        reader: ShardReader,
        shards: Sequence[ShardEntry],
        eod_id: int,
        remember: int,
        seed: int,
    ) -> None:
        super().__init__(chunks, reader, eod_id, remember)
        self._boundaries = Boundaries(reader, shards)
        self._seed = seed

    def pieces(self, chunk: int) -> tuple[int, I64, I64]:
        """Shard of a chunk, and first tokens and lengths of its pieces."""
        shard, begin, end = (int(part) for part in self._chunks.bounds(chunk))
        if begin == end:
            nothing = np.empty(0, dtype=np.int64)
            return shard, nothing, nothing
        bounds = self._boundaries.across(shard, begin, end)
        # Where pieces of a long document are cut depends on its first record, of which perhaps nothing else is read.
        long = bounds[0] < begin and bounds[1] - bounds[0] > RECORD_TOKENS
        if long and self._reader.read(shard, int(bounds[0]), np.empty(1, dtype=self._reader.dtype)):
            self._reader.prove_index(shard)
        starts, ends, size = bounds[:-1], bounds[1:], self.places
        first = -(-np.maximum(begin - starts, 0) // size)
        counts = np.maximum(-(-(np.minimum(ends, end) - starts) // size) - first, 0)
        number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = np.repeat(starts + first * size, counts) + number * size
        return shard, tokens, np.minimum(np.repeat(ends, counts) - tokens, size)

    def parts(self, chunk: int) -> tuple[int, Parts]:
        """The shard of a chunk, and what its rows are made of."""
        shard, tokens, lengths = self.pieces(chunk)
        rows = self._chunks.chunk_samples
        packed = assign(lengths, rows, self.places)
        key = np.uint64(derive_key(self._seed, chunk, "rows"))
        shuffled = np.argsort(mixed(np.arange(rows, dtype=np.uint64) + key), kind="stable")
        row, token = shuffled[packed.row], tokens[packed.piece] + packed.offset
        order = np.lexsort((token, row))
        row, token, length = row[order], token[order], packed.length[order]
        before = np.cumsum(length) - length
        new = np.flatnonzero(np.diff(row, prepend=-1))
        place = before - np.repeat(before[new], np.diff(np.append(new, len(row))))
        return shard, Parts(row, place, token, length)

    def _runs(self, parts: Parts) -> tuple[I64, I64, I64]:
        begin, end = parts.token.min(), (parts.token + parts.length).max()
        return np.array([begin]), np.array([end - begin]), np.zeros_like(parts.row)
