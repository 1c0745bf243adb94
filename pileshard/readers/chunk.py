"""Tokens of a shard: one range read, framing dropped.

    tokens [a, b) of a shard    ..|frame|tokens of a document|frame|tokens|frame|to..
                                          ^ byte of token a                      ^ byte of token b

The index tells the records that hold them, and a record's token bytes end 4 bytes before the next record begins. One
read fetches everything between, and the tokens are copied together from it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.errors import DatasetError
from pileshard.format.identity import U64
from pileshard.format.index import Index, load_index
from pileshard.format.manifest import ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES
from pileshard.format.storage import Storage
from pileshard.order.chunks import I64
from pileshard.readers.cache import BlockCache
from pileshard.readers.pieces import copy_pieces, locate_pieces
from pileshard.readers.remote_shards import RemoteShards

#: Shards kept open. Each holds up to two descriptors, of which systems allow 1,024 or more, and the pages of its index
#: that searches have touched: about a megabyte that the system takes back at need.
OPEN_SHARDS = 128

#: Bytes of whole indexes of remote shards kept, or one if it is larger.
_REMOTE_INDEX_BYTES = 256 << 20

#: Readers that a forked process inherited: what their threads held stays locked there.
_inherited: list[RemoteShards] = []

#: Most records in one scattered read: systems take 1,024 pieces, and each record makes two.
_MOST_SCATTERED = 512


class _OpenShard:
    """A shard's index and, where it is a local file, its descriptor."""

    def __init__(self, storage: Storage, entry: ShardEntry, number: int) -> None:
        self.descriptor = -1
        self.number = number
        self.entry = entry
        self.index = load_index(storage, entry.index_path)
        # As signed numbers, which mix with Python's; plain arrays, since a memmap's own slices are slow.
        self.tokens = np.asarray(self.index.tokens).view(np.int64)
        self.offsets = np.asarray(self.index.offsets).view(np.int64)
        url = storage.url_of(entry.path)
        has = (self.index.records, self.index.total_tokens, int(self.offsets[-1]))
        if has != (entry.records, entry.tokens, entry.size):
            raise DatasetError(
                f"{storage.url_of(entry.index_path)}: tells of {has[0]:,} records, {has[1]:,} tokens, {has[2]:,} bytes "
                f"where the manifest has {entry.records:,}, {entry.tokens:,} and {entry.size:,}; {remedy(storage)}"
            )
        local = storage.local_path(entry.path)
        if local is not None:
            try:
                self.descriptor = os.open(local, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                size = os.fstat(self.descriptor).st_size
            except OSError as error:
                raise DatasetError(f"{url}: cannot be read ({error.strerror}); {remedy(storage)}") from None
            if size != entry.size:
                self.close()
                raise DatasetError(
                    f"{url}: has {size:,} bytes where the manifest has {entry.size:,}; {remedy(storage)}"
                )

    def close(self) -> None:
        """Gives the descriptor back; the index's mapping goes with its last reference."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


def remedy(storage: Storage) -> str:
    """What to do about a damaged dataset."""
    return f"run `pileshard verify {storage.url}`"


class ShardReader:
    """Reads ranges of tokens from a list of shards, opening each when it is first needed.

    Attributes:
      dtype: of a token on disk.
    """

    def __init__(
        self,
        storage: Storage,
        shards: Sequence[ShardEntry],
        dtype: npt.DTypeLike,
        *,
        open_shards: int = OPEN_SHARDS,
        cache: BlockCache | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """Opens nothing before the first read.

        Args:
          storage: of the dataset.
          shards: the manifest's entries of those to read.
          dtype: of a token on disk.
          open_shards: local files kept open.
          cache: for remote shards.
          vocab_size: ids at or above it are refused.
        """
        self._vocab_size = vocab_size
        self.storage = storage
        self.dtype = np.dtype(dtype)
        self._shards = shards
        self._limit = open_shards
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._cache = cache
        self._remote: RemoteShards | None = None
        self._aside = memoryview(bytearray(4096))
        self._scratch = np.empty(0, dtype=np.uint8)

    @cached_property
    def is_local(self) -> bool:
        """Whether the shards are files of this machine."""
        return self.storage.is_local

    def expect(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Says what will be read next, in order: (shard, first token, tokens) each; remote shards are read ahead."""
        if not self.is_local:
            self._far().expect(ranges)

    def index(self, shard: int) -> Index:
        """The index of a shard; of a remote one all of it, in memory."""
        return self._shard(shard).index

    def record_of(self, shard: int, token: int) -> int:
        """The record that holds a token of a shard."""
        if not self.is_local:
            return self._far().record_of(shard, token)
        return int(self._shard(shard).tokens.searchsorted(token, side="right")) - 1

    def tokens_before(self, shard: int, first: int, last: int) -> I64:
        """Tokens before each of the records first to last of a shard: int64 [last - first + 1].

        `last` may be the number of records.
        """
        if not self.is_local:
            return self._far().tokens_before(shard, first, last)
        return self._shard(shard).tokens[first : last + 1]

    def keys(self, shard: int) -> U64:
        """Keys of all records of a shard: uint64 [records]."""
        if not self.is_local:
            return self._far().keys(shard)
        return np.asarray(self._shard(shard).index.keys[:-1])

    def read(self, shard: int, first: int, out: npt.NDArray[Any]) -> None:
        """Fills an array with a shard's tokens from `first` on.

        Args:
          shard: its number in the list.
          first: number of the first token in the shard.
          out: contiguous, of the tokens' dtype, [tokens wanted].

        Raises:
          DatasetError: the shard or its index is missing, too short or does not fit the manifest, or an id is none of
            the vocabulary.
        """
        self._read(shard, first, out)
        # A whole check takes `pileshard verify`; this one costs a hundredth of the read, and no id may leave the
        # model's embedding.
        if self._vocab_size is not None and len(out) and int(out.max()) >= self._vocab_size:
            at = first + int(np.argmax(out >= self._vocab_size))
            entry = self._shards[shard]
            raise DatasetError(
                f"{self.storage.url_of(entry.path)}: damaged: token {at:,} is the id {int(out[at - first]):,}, and the "
                f"vocabulary has {self._vocab_size:,}; {remedy(self.storage)}"
            )

    def _read(self, shard: int, first: int, out: npt.NDArray[Any]) -> None:
        if not self.is_local:
            self._far().read(shard, first, out)
            return
        opened = self._shard(shard)
        starts, ends = self._pieces(opened, first, first + len(out))
        if self._scattered(opened, starts, ends, out):
            return
        begin, end = int(starts[0]), int(ends[-1])
        copy_pieces(self._bytes(opened, begin, end), starts - begin, ends - begin, out)

    def record_head(self, shard: int, record: int) -> bytes:
        """The Example of a record up to its tokens."""
        opened = self._shard(shard)
        begin, end = int(opened.offsets[record]), int(opened.offsets[record + 1])
        count = int(opened.tokens[record + 1] - opened.tokens[record]) * self.dtype.itemsize
        head_end = end - FOOTER_BYTES - count
        if not 0 <= begin <= begin + HEADER_BYTES <= head_end <= opened.entry.size:
            raise self._damaged(opened, begin, "does not lie where the index says")
        return self._bytes(opened, begin, head_end)[HEADER_BYTES:].tobytes()

    def close(self) -> None:
        """Closes all files. Reading on opens them again."""
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def _far(self) -> RemoteShards:
        remote = self._remote
        if remote is None or remote.pid != os.getpid():
            if remote is not None:
                _inherited.append(remote)
            remote = self._remote = RemoteShards(self.storage, self._shards, self.dtype, self._cache)
        return remote

    def _shard(self, number: int) -> _OpenShard:
        opened = self._open.get(number)
        if opened is None:
            entry = self._shards[number]
            while self._open and (
                len(self._open) >= self._limit
                or (not self.is_local and self._index_bytes() + entry.index_size > _REMOTE_INDEX_BYTES)
            ):
                self._open.popitem(last=False)[1].close()
            opened = self._open[number] = _OpenShard(self.storage, entry, number)
        self._open.move_to_end(number)
        return opened

    def _index_bytes(self) -> int:
        return sum(opened.entry.index_size for opened in self._open.values())

    def _pieces(self, opened: _OpenShard, first: int, end: int) -> tuple[I64, I64]:
        """Where the wanted tokens lie in the file: start and end byte of each record's part of them."""
        low = int(opened.tokens.searchsorted(first, side="right")) - 1
        high = int(opened.tokens.searchsorted(end, side="left"))
        tokens, offsets = opened.tokens[low : high + 1], opened.offsets[low : high + 1]
        pieces = locate_pieces(tokens, offsets, first, end, self.dtype.itemsize, opened.entry.size)
        if pieces is None:
            raise self._damaged(opened, int(offsets[0]), "has records that do not lie where the index says")
        return pieces

    def _scattered(self, opened: _OpenShard, starts: I64, ends: I64, out: npt.NDArray[Any]) -> bool:
        """Lets the system put each record's tokens where they belong, and the framing aside; False: not done."""
        if not 1 <= len(starts) <= _MOST_SCATTERED:
            return False
        target, aside = out.view(np.uint8).data, self._aside
        begin = position = int(starts[0])
        at = 0
        parts = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if start != position:
                parts.append(aside[: start - position])
            parts.append(target[at : at + end - start])
            at += end - start
            position = end
        # A short read, or more framing than there is room for, is left to the plain way and its checks.
        return os.preadv(opened.descriptor, parts, begin) == position - begin

    def _bytes(self, opened: _OpenShard, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Bytes [begin, end) of a shard, in memory that the next call reuses."""
        size = end - begin
        if opened.descriptor < 0:
            return self._far().bytes(opened.number, begin, end)
        if len(self._scratch) < size:
            self._scratch = np.empty(size + size // 4, dtype=np.uint8)
        raw = self._scratch[:size]
        got = 0
        while got < size:
            count = os.preadv(opened.descriptor, [raw.data[got:]], begin + got)
            if not count:
                raise self._damaged(opened, begin + got, "ends")
            got += count
        return raw

    def _damaged(self, opened: _OpenShard, offset: int, fault: str) -> DatasetError:
        url = self.storage.url_of(opened.entry.path)
        return DatasetError(f"{url}: damaged: {fault} at byte {offset:,}; {remedy(self.storage)}")
