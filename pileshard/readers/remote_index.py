"""Indexes of remote shards: only what a read needs of them, in bounded memory.

A read needs the rows `tokens` and `offsets` of a few records, 16 bytes a record. Where these rows of all shards fit in
`INDEX_BYTES` together (4 M records), each shard's are fetched in one go and kept. Larger ones are fetched by blocks of
2,048 records of one row, the last used ones kept. The block is found by interpolation: documents stand in random order,
so record number and tokens are nearly proportional, and every block that was ever fetched is remembered as a place
that is known (24 bytes each, at most 2 for every block). Typically one or two blocks of `tokens` and one of `offsets`
are fetched for a chunk: some 50 KB, whatever the number of ranks and the size of the index.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from pileshard.format.index import HEADER_BYTES
from pileshard.format.manifest import ShardEntry
from pileshard.order.chunks import I64

INDEX_BYTES = 64 << 20
BLOCK_RECORDS = 2048

_TOKENS, _OFFSETS = 0, 1

#: Fetches bytes [begin, end) of a shard's index file.
FetchIndex = Callable[[ShardEntry, int, int], bytes]


class DamagedIndex(Exception):  # noqa: N818
    """What an index says cannot be."""


class RemoteIndexes:
    """The rows `tokens` and `offsets` of the indexes of a list of shards. Several threads may use it at once."""

    def __init__(
        self, shards: Sequence[ShardEntry], *, limit: int = INDEX_BYTES, block_records: int = BLOCK_RECORDS
    ) -> None:
        """Nothing is fetched yet.

        Args:
          shards: the manifest's entries.
          limit: bytes kept.
          block_records: columns of a block.
        """
        self._shards = shards
        self._limit = limit
        self._block = block_records
        self._whole = sum(16 * (shard.records + 1) for shard in shards) <= limit
        self._kept: OrderedDict[tuple[int, int, int], I64] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}
        self._known: dict[int, list[tuple[int, int]]] = {}  # (tokens before, column) of each shard, ascending

    def span(self, shard: int, first: int, end: int, fetch: FetchIndex) -> tuple[I64, I64, int]:
        """The records that hold the tokens [first, end) of a shard.

        Returns:
          Tokens before each of them and before the next, and their offsets: int64 [records + 1] each, to be left as
          they are; and the number of the first.

        Raises:
          DamagedIndex: it does not fit the manifest or itself.
        """
        with self._locked(shard):
            if self._whole:
                rows = self._rows(shard, fetch)
                low = int(rows[_TOKENS].searchsorted(first, side="right")) - 1
                high = int(rows[_TOKENS].searchsorted(end, side="left"))
                return rows[_TOKENS, low : high + 1], rows[_OFFSETS, low : high + 1], low
            low = self._column(shard, first, fetch)
            high = self._column(shard, end - 1, fetch) + 1
            return self._slice(shard, _TOKENS, low, high, fetch), self._slice(shard, _OFFSETS, low, high, fetch), low

    def record_of(self, shard: int, token: int, fetch: FetchIndex) -> int:
        """The record that holds a token of a shard; raises what `span` does."""
        with self._locked(shard):
            if self._whole:
                return int(self._rows(shard, fetch)[_TOKENS].searchsorted(token, side="right")) - 1
            return self._column(shard, token, fetch)

    def tokens_before(self, shard: int, first: int, last: int, fetch: FetchIndex) -> I64:
        """Tokens before each of the records first to last of a shard, as `span` gives them."""
        with self._locked(shard):
            if self._whole:
                return self._rows(shard, fetch)[_TOKENS, first : last + 1]
            return self._slice(shard, _TOKENS, first, last, fetch)

    def forget(self, shard: int) -> None:
        """Drops what is kept of a shard's index, so that it is fetched anew."""
        with self._locked(shard):
            self._known.pop(shard, None)
            with self._lock:
                for key in [key for key in self._kept if key[0] == shard]:
                    self._kept_bytes -= self._kept.pop(key).nbytes

    def _locked(self, shard: int) -> threading.Lock:
        """Several chunks of a shard at once would fetch the same."""
        with self._lock:
            return self._locks.setdefault(shard, threading.Lock())

    def _rows(self, shard: int, fetch: FetchIndex) -> I64:
        """Both rows of a whole index: int64 [2, records + 1]."""
        found = self._get((shard, -1, 0))
        if found is None:
            entry = self._shards[shard]
            columns = entry.records + 1
            data = fetch(entry, HEADER_BYTES, HEADER_BYTES + 16 * columns)
            found = np.frombuffer(data, dtype="<i8").reshape(2, columns)
            for row in (_TOKENS, _OFFSETS):
                self._check(entry, row, 0, found[row])
            self._keep((shard, -1, 0), found)
        return found

    def _column(self, shard: int, token: int, fetch: FetchIndex) -> int:
        """The record that holds a token."""
        entry = self._shards[shard]
        known = self._known.setdefault(shard, [(0, 0), (entry.tokens, entry.records)])
        while True:
            at = bisect_right(known, (token, entry.records + 1))
            if not 0 < at < len(known):
                raise DamagedIndex
            (before, low), (after, high) = known[at - 1], known[at]
            if high - low <= 1:
                return low
            guess = low + (token - before) * (high - low) // (after - before)
            number = min(max(guess, low + 1), high - 1) // self._block
            block = self._block_of(shard, _TOKENS, number, fetch)
            begin = number * self._block
            for column in (begin, begin + len(block) - 1):
                place = (int(block[column - begin]), column)
                spot = bisect_right(known, place)
                if known[spot - 1] != place:
                    if (spot and known[spot - 1][1] >= column) or (spot < len(known) and known[spot][1] <= column):
                        raise DamagedIndex
                    insort(known, place)
            if block[0] <= token < block[-1]:
                return begin + int(block.searchsorted(token, side="right")) - 1

    def _slice(self, shard: int, row: int, low: int, high: int, fetch: FetchIndex) -> I64:
        """Columns low to high of a row, high included."""
        parts = []
        for number in range(low // self._block, high // self._block + 1):
            begin = number * self._block
            block = self._block_of(shard, row, number, fetch)
            parts.append(block[max(0, low - begin) : high + 1 - begin])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block_of(self, shard: int, row: int, number: int, fetch: FetchIndex) -> I64:
        found = self._get((shard, row, number))
        if found is None:
            entry = self._shards[shard]
            columns = entry.records + 1
            begin = number * self._block
            end = min(columns, begin + self._block)
            at = HEADER_BYTES + 8 * row * columns
            found = np.frombuffer(fetch(entry, at + 8 * begin, at + 8 * end), dtype="<i8")
            self._check(entry, row, begin, found)
            self._keep((shard, row, number), found)
        return found

    def _check(self, entry: ShardEntry, row: int, begin: int, block: I64) -> None:
        """That numbers ascend, and begin and end as the manifest says."""
        total = entry.tokens if row == _TOKENS else entry.size
        sound = (
            (block[1:] > block[:-1]).all()
            and (block[0] == 0 if begin == 0 else block[0] > 0)
            and (block[-1] == total if begin + len(block) == entry.records + 1 else block[-1] < total)
        )
        if not sound:
            raise DamagedIndex

    def _get(self, key: tuple[int, int, int]) -> I64 | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: tuple[int, int, int], block: I64) -> None:
        with self._lock:
            self._kept[key] = block
            self._kept_bytes += block.nbytes
            while self._kept_bytes > self._limit and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
