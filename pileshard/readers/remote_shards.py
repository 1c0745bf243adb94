"""Tokens of remote shards: by range reads, ahead of their use, through a local cache if there is one.

    expect -> threads -> index blocks, one range of the shard -> local cache -> retries -> fsspec

Memory of a reader beside its rows: AHEAD_BYTES of tokens that were read ahead (never more than the chunks of the next
windows), INDEX_BYTES of indexes, and for each thread the bytes of one chunk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pileshard.format.damage import DamageError
from pileshard.format.identity import U64
from pileshard.format.index import HEADER_BYTES
from pileshard.format.manifest import ShardEntry
from pileshard.format.storage import Storage
from pileshard.order.chunks import I64
from pileshard.readers.ahead import Ahead
from pileshard.readers.cache import BlockCache
from pileshard.readers.checks import AFTER, BEFORE, sound
from pileshard.readers.open_shards import missing
from pileshard.readers.pieces import copy_pieces, locate_pieces
from pileshard.readers.remote_index import DamagedIndex, FetchIndex, RemoteIndexes
from pileshard.readers.salvage import Entries

#: Bytes of tokens read ahead: a window of 768 chunks of uint16 tokens is 201 MB.
AHEAD_BYTES = 256 << 20

#: Range reads at once: with 100 ms of latency they bring 5 M tokens/s from S3 in chunks of 65,536, and 0.4 one by one.
THREADS = 16

T = TypeVar("T")

_Wait = Callable[[float], bool]


class RemoteShards:
    """Reads ranges of tokens from shards that are not files of this machine. Belongs to the process that made it.

    Attributes:
      pid: of that process.
    """

    def __init__(
        self,
        storage: Storage,
        shards: Sequence[ShardEntry],
        dtype: np.dtype[Any],
        cache: BlockCache | None = None,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        threads: int = THREADS,
        checksums: bool = True,
    ) -> None:
        """Opens nothing before the first read. With threads=0 nothing is read ahead."""
        self.pid = os.getpid()
        self._source = _Source(storage, shards, dtype, cache, checksums)
        self._ahead = (
            Ahead(self._source.tokens, dtype.itemsize, threads=threads, limit=ahead_bytes) if threads else None
        )

    def expect(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Says what will be read next, in order: (shard, first token, tokens) each."""
        if self._ahead is not None:
            self._ahead.expect(ranges)

    def read(self, shard: int, first: int, out: npt.NDArray[Any]) -> None:
        """Fills a contiguous array with a shard's tokens from `first` on.

        Raises:
          DamageError: the shard or its index is missing or damaged.
          DatasetError: it cannot be had.
        """
        ready = None if self._ahead is None else self._ahead.take(shard, first, len(out))
        if ready is None:
            self._source.fill(shard, first, out)
        else:
            out[:] = ready

    def look_again(self, shard: int, first: int, count: int) -> Found:
        """Fetches the records of so many tokens from `first` on, and what the index has of them, past every cache.

        Raises:
          DamageError: the shard or its index is missing, or the index does not fit the manifest.
          DatasetError: it cannot be had.
        """
        return self._source.look_again(shard, first, count)

    def refresh(self, shard: int) -> None:
        """Lets the index of a shard be fetched anew, past every cache."""
        self._source.refresh(shard)

    def record_of(self, shard: int, token: int) -> int:
        """The record that holds a token of a shard."""
        return self._source.ask(shard, lambda indexes, fetch: indexes.record_of(shard, token, fetch))

    def tokens_before(self, shard: int, first: int, last: int) -> I64:
        """Tokens before each of the records first to last of a shard: int64 [last - first + 1]."""
        return self._source.ask(shard, lambda indexes, fetch: indexes.tokens_before(shard, first, last, fetch))

    def keys(self, shard: int) -> U64:
        """Keys of all records of a shard: uint64 [records]."""
        entry = self._source.shards[shard]
        begin = HEADER_BYTES + 3 * 8 * (entry.records + 1)
        data = self._source.ask(shard, lambda _, fetch: fetch(entry, begin, begin + 8 * entry.records))
        return np.frombuffer(data, dtype="<u8")

    def bytes(self, shard: int, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Bytes [begin, end) of a shard."""
        return np.frombuffer(self._source.shard_bytes(self._source.shards[shard], begin, end), dtype=np.uint8)

    def close(self) -> None:
        """Ends the threads."""
        if self._ahead is not None:
            self._ahead.close()


class Found(NamedTuple):
    """What was fetched for a second look.

    Attributes:
      entries: of the index.
      read: bytes [a, b) of the shard, fewer where it ends.
      size: of the shard in bytes.
    """

    entries: Entries
    read: Callable[[int, int], bytes]
    size: Callable[[], int]


class _Source:
    """Fetches tokens; several threads may at once."""

    def __init__(
        self,
        storage: Storage,
        shards: Sequence[ShardEntry],
        dtype: np.dtype[Any],
        cache: BlockCache | None,
        checksums: bool,
    ) -> None:
        self.storage = storage
        self.shards = shards
        self._dtype = dtype
        self._cache = cache
        self._checksums = checksums
        self._indexes = RemoteIndexes(shards)

    def tokens(self, shard: int, first: int, count: int, stopped: _Wait) -> npt.NDArray[Any]:
        """So many tokens of a shard from `first` on."""
        out = np.empty(count, dtype=self._dtype)
        self.fill(shard, first, out, stopped)
        return out

    def fill(self, shard: int, first: int, out: npt.NDArray[Any], stopped: _Wait | None = None) -> None:
        entry = self.shards[shard]
        end = first + len(out)
        tokens, offsets, low = self.ask(shard, lambda indexes, fetch: indexes.span(shard, first, end, fetch), stopped)
        pieces = locate_pieces(tokens, offsets, first, end, self._dtype.itemsize, entry.size)
        if pieces is None:
            what = "damaged: its entries do not fit the shard's records"
            raise self._damage(entry.index_path, what, HEADER_BYTES + 8 * low)
        starts, ends = pieces
        if not self._checksums:
            begin = int(starts[0])
            raw = np.frombuffer(self.shard_bytes(entry, begin, int(ends[-1]), stopped), dtype=np.uint8)
            copy_pieces(raw, starts - begin, ends - begin, out)
            return
        begin, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        memory = np.empty(BEFORE + size + AFTER, dtype=np.uint8)
        data = self.shard_bytes(entry, begin, begin + size, stopped)
        memory[BEFORE : BEFORE + size] = np.frombuffer(data, dtype=np.uint8)
        if not sound(memory, offsets, (tokens[1:] - tokens[:-1]) * self._dtype.itemsize):
            raise self._damage(entry.path, "damaged: the bytes of records are not those that were written", begin)
        copy_pieces(memory, starts - (begin - BEFORE), ends - (begin - BEFORE), out)

    def look_again(self, shard: int, first: int, count: int) -> Found:
        entry = self.shards[shard]
        self.refresh(shard)
        span = self.ask(shard, lambda indexes, fetch: indexes.span(shard, first, first + count, fetch))
        entries = Entries(*span)
        offsets = entries.offsets
        begin, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        begin, end = max(0, begin), min(end, entry.size)
        data = self._fetch(entry.path, entry.size, begin, end, short=True)
        if self._cache is not None:
            # What is kept of it may be what was wrong.
            self._cache.forget(entry.sha256, begin, end)

        def read(low: int, high: int) -> bytes:
            return data[low - begin : high - begin]

        return Found(entries, read, lambda: self.storage.size(entry.path))

    def refresh(self, shard: int) -> None:
        self._indexes.forget(shard)
        if self._cache is not None:
            entry = self.shards[shard]
            self._cache.forget(entry.index_sha256, 0, entry.index_size)

    def ask(
        self,
        shard: int,
        question: Callable[[RemoteIndexes, FetchIndex], T],
        stopped: _Wait | None = None,
    ) -> T:
        """What the index of a shard tells."""
        entry = self.shards[shard]

        def index_bytes(entry: ShardEntry, begin: int, end: int) -> bytes:
            return self._bytes(entry.index_path, entry.index_sha256, entry.index_size, begin, end, stopped)

        if entry.index_size != HEADER_BYTES + 32 * (entry.records + 1):
            raise self._damage(entry.index_path, "damaged: has no size that fits its records")
        try:
            return question(self._indexes, index_bytes)
        except DamagedIndex:
            raise self._damage(entry.index_path, "damaged: tells what does not fit the manifest") from None

    def shard_bytes(self, entry: ShardEntry, begin: int, end: int, stopped: _Wait | None = None) -> bytes:
        return self._bytes(entry.path, entry.sha256, entry.size, begin, end, stopped)

    def _bytes(
        self,
        path: str,
        sha256: str,
        size: int,
        begin: int,
        end: int,
        stopped: _Wait | None = None,
    ) -> bytes:
        def fetch(begin: int, end: int) -> bytes:
            return self._fetch(path, size, begin, end, stopped)

        if self._cache is None:
            return fetch(begin, end)
        return self._cache.read(sha256, size, begin, end, fetch)

    def _fetch(
        self, path: str, size: int, begin: int, end: int, stopped: _Wait | None = None, short: bool = False
    ) -> bytes:
        """Bytes of a file from the storage itself; with `short`, fewer where it ends."""
        try:
            data = self.storage.read_range(path, begin, end, stopped=stopped)
        except FileNotFoundError:
            raise missing(self.storage, path) from None
        if len(data) != end - begin and not short:
            place = begin + len(data)
            raise self._damage(path, f"damaged: ends at byte {place:,} where the manifest has {size:,} bytes", place)
        return data

    def _damage(self, path: str, fault: str, offset: int | None = None) -> DamageError:
        return DamageError(self.storage.url_of(path), fault, self.storage.url, offset)
