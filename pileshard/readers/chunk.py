"""Tokens of a shard: one range read, records checked, framing dropped.

    tokens [a, b) of a shard    ..|frame|tokens of a document|frame|tokens|frame|to..
                                          ^ byte of token a                      ^ byte of token b

The index tells the records that hold them, and a record's token bytes end 4 bytes before the next record begins. One
read fetches these records whole, their checksums are compared (`checks`), and the tokens are copied together. Where
something is wrong the files are opened and read once more, since they may have been repaired, and what is wrong then is
damage: an error, or, for a reader that skips it, tokens that are told to be lost (`salvage`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.format.damage import DamageError
from pileshard.format.identity import U64
from pileshard.format.index import HEADER_BYTES as INDEX_HEADER_BYTES
from pileshard.format.index import Index
from pileshard.format.manifest import ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, RECORD_TOKENS
from pileshard.format.remote import attempts
from pileshard.format.storage import Storage
from pileshard.order.chunks import I64
from pileshard.readers.cache import BlockCache
from pileshard.readers.checks import AFTER, BEFORE, sound
from pileshard.readers.left_out import LeftOut
from pileshard.readers.open_shards import OPEN_SHARDS, IndexHashes, OpenShard, OpenShards, cut_off
from pileshard.readers.pieces import close_up, copy_pieces, few, locate_pieces
from pileshard.readers.remote_shards import RemoteShards
from pileshard.readers.salvage import Entries, Loss, Ranges, salvage

#: Readers that a forked process inherited: what their threads held stays locked there.
_inherited: list[RemoteShards] = []

#: Most records in one scattered read: systems take 1,024 pieces, and each record makes two.
_MOST_SCATTERED = 512


class ShardReader:
    """Reads ranges of tokens from a list of shards, opening each when it is first needed.

    Attributes:
      storage: of the dataset.
      dtype: of a token on disk.
      left_out: where damage is taken down; None: it is raised.
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
        checksums: bool = True,
        left_out: LeftOut | None = None,
    ) -> None:
        """Opens nothing before the first read.

        Args:
          storage: of the dataset.
          shards: the manifest's entries of those to read.
          dtype: of a token on disk.
          open_shards: local files kept open.
          cache: for remote shards.
          vocab_size: ids at or above it are damage.
          checksums: whether the checksum of each record that is read is compared.
          left_out: takes down damage instead of its being raised.
        """
        self.storage = storage
        self.dtype = np.dtype(dtype)
        self.left_out = left_out
        self._vocab_size = vocab_size
        self._checksums = checksums
        self._shards = shards
        self._open = OpenShards(storage, shards, open_shards, lenient=left_out is not None)
        self._hashes = IndexHashes(storage)
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
        return self._open.get(shard).index

    def index_is_whole(self, shard: int) -> bool:
        """Whether the index of a shard is the manifest's, byte for byte. It is read for that."""
        return self._hashes.is_whole(self._shards[shard])

    def prove_index(self, shard: int) -> None:
        """Reads the index of a shard, and raises `DamageError` where it is not the manifest's."""
        if not self.index_is_whole(shard):
            raise self._index_damage(shard, 0)

    def refresh(self, shard: int) -> None:
        """Lets the files of a shard be read anew: they may have been repaired."""
        self._open.drop(shard)
        if not self.is_local:
            self._far().refresh(shard)

    def record_of(self, shard: int, token: int) -> int:
        """The record that holds a token of a shard.

        Raises:
          DamageError: the index is damaged there.
        """
        if not self.is_local:
            return self._far().record_of(shard, token)
        tokens = self._open.get(shard).tokens
        record = int(tokens.searchsorted(token, side="right")) - 1
        if record < 0 or not tokens[record] <= token < tokens[record + 1] <= tokens[record] + RECORD_TOKENS:
            raise self._index_damage(shard, record + 1)
        return record

    def tokens_before(self, shard: int, first: int, last: int) -> I64:
        """Tokens before each of the records first to last of a shard: int64 [last - first + 1].

        `last` may be the number of records.

        Raises:
          DamageError: the index is damaged there.
        """
        if not self.is_local:
            return self._far().tokens_before(shard, first, last)
        found = self._open.get(shard).tokens[first : last + 1]
        counts = np.diff(found)
        if len(counts) and not 0 < counts.min() <= counts.max() <= RECORD_TOKENS:
            raise self._index_damage(shard, first + 1 + int(np.argmax((counts <= 0) | (counts > RECORD_TOKENS))))
        return found

    def keys(self, shard: int) -> U64:
        """Keys of all records of a shard: uint64 [records]."""
        if not self.is_local:
            return self._far().keys(shard)
        return np.asarray(self._open.get(shard).index.keys[:-1])

    def read(self, shard: int, first: int, out: npt.NDArray[Any], room: npt.NDArray[np.uint8] | None = None) -> Ranges:
        """Fills an array with a shard's tokens from `first` on.

        Args:
          shard: its number in the list.
          first: number of the first token in the shard.
          out: contiguous, of the tokens' dtype, [tokens wanted].
          room: the memory of `out` and some behind it that may be written to: records that fit are read to there and
            closed up, which saves a copy from elsewhere.

        Returns:
          What is lost to damage, if that is left out: (begin, end) of the shard's tokens each. There `out` holds
          anything.

        Raises:
          DamageError: the shard or its index is missing, too short or damaged, and it is not left out.
          DatasetError: they cannot be read.
        """
        if not len(out):
            return []
        try:
            self._read(shard, first, out, room)
            self._check_ids(shard, first, out)
        except (DamageError, OSError):
            where = self.storage.url_of(self._shards[shard].path)
            return attempts(lambda: self._look_again(shard, first, out), lambda: where, self.storage.retry)
        return []

    def _read(self, shard: int, first: int, out: npt.NDArray[Any], room: npt.NDArray[np.uint8] | None) -> None:
        if not self.is_local:
            self._far().read(shard, first, out)
            return
        opened = self._open.get(shard)
        tokens, offsets = _span(opened, first, first + len(out))
        pieces = locate_pieces(tokens, offsets, first, first + len(out), self.dtype.itemsize, opened.entry.size)
        if pieces is None:
            raise self._index_damage(shard, 0)
        starts, ends = pieces
        if not self._checksums:
            if not self._scattered(opened, starts, ends, out):
                begin = int(starts[0])
                memory = self._memory(int(ends[-1]) - begin)
                self._fill(opened, begin, memory)
                copy_pieces(memory, starts - begin, ends - begin, out)
            return
        begin, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        needed = BEFORE + size + AFTER
        in_place = room is not None and needed <= len(room) and few(len(starts), len(out))
        memory = room[:needed] if in_place and room is not None else self._memory(needed)
        self._fill(opened, begin, memory[BEFORE : BEFORE + size])
        if not sound(memory, offsets, (tokens[1:] - tokens[:-1]) * self.dtype.itemsize):
            raise self._damage(opened.entry, "damaged: the bytes of records are not those that were written", begin)
        starts, ends = starts - (begin - BEFORE), ends - (begin - BEFORE)
        if in_place:
            close_up(memory, starts, ends)
        else:
            copy_pieces(memory, starts, ends, out)

    def _check_ids(self, shard: int, first: int, out: npt.NDArray[Any]) -> None:
        """No id may leave the model's embedding; this costs a hundredth of the read."""
        if self._vocab_size is not None and len(out) and int(out.max()) >= self._vocab_size:
            at = first + int(np.argmax(out >= self._vocab_size))
            raise self._damage(self._shards[shard], f"damaged: the id of token {at:,} is outside the vocabulary", None)

    def _look_again(self, shard: int, first: int, out: npt.NDArray[Any]) -> Ranges:
        """Reads once more, from files that are opened anew, and tells what is lost or raises why."""
        try:
            loss = self._salvage(shard, first, out)
        except DamageError as damage:
            loss = Loss([(first, first + len(out))], [damage])
        if loss.ranges:
            if self.left_out is None:
                raise loss.damages[0]
            self.left_out.met(loss.damages)
        return loss.ranges

    def _salvage(self, shard: int, first: int, out: npt.NDArray[Any]) -> Loss:
        entry = self._shards[shard]
        self._open.drop(shard)
        if not self.is_local:
            found = self._far().look_again(shard, first, len(out))
            entries, read, size = found.entries, found.read, found.size
        else:
            opened = self._open.get(shard)
            # All of the index: a wrong entry may lead a search astray.
            entries, read, size = Entries(opened.tokens, opened.offsets), opened.read, opened.size
        return salvage(
            *(self.storage, entry, entries, first, out, self._vocab_size),
            read=read,
            size=size,
            index_is_whole=lambda: self.index_is_whole(shard),
        )

    def record_head(self, shard: int, record: int) -> bytes:
        """The Example of a record up to its tokens."""
        opened = self._open.get(shard)
        begin, end = int(opened.offsets[record]), int(opened.offsets[record + 1])
        count = int(opened.tokens[record + 1] - opened.tokens[record]) * self.dtype.itemsize
        head_end = end - FOOTER_BYTES - count
        if not 0 <= begin <= begin + HEADER_BYTES <= head_end <= opened.entry.size:
            raise self._damage(opened.entry, "damaged: a record does not lie where the index says", begin)
        if not self.is_local:
            return self._far().bytes(shard, begin, head_end)[HEADER_BYTES:].tobytes()
        memory = self._memory(head_end - begin)
        self._fill(opened, begin, memory)
        return memory[HEADER_BYTES:].tobytes()

    def close(self) -> None:
        """Closes all files. Reading on opens them again."""
        self._open.close()
        if self._remote is not None:
            self._remote.close()
            self._remote = None

    def _far(self) -> RemoteShards:
        remote = self._remote
        if remote is None or remote.pid != os.getpid():
            if remote is not None:
                _inherited.append(remote)
            remote = self._remote = RemoteShards(
                self.storage, self._shards, self.dtype, self._cache, checksums=self._checksums
            )
        return remote

    def _scattered(self, opened: OpenShard, starts: I64, ends: I64, out: npt.NDArray[Any]) -> bool:
        """Lets the system put each record's tokens where they belong, and the framing aside; False: not done."""
        if not 1 <= len(starts) <= _MOST_SCATTERED or opened.descriptor < 0:
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

    def _memory(self, size: int) -> npt.NDArray[np.uint8]:
        """So many bytes, which the next call uses again."""
        if len(self._scratch) < size:
            self._scratch = np.empty(size + size // 4, dtype=np.uint8)
        return self._scratch[:size]

    def _fill(self, opened: OpenShard, begin: int, memory: npt.NDArray[np.uint8]) -> None:
        got = opened.read_into(memory, begin)
        if got < len(memory):
            raise cut_off(self.storage, opened.entry, begin + got)

    def _damage(self, entry: ShardEntry, fault: str, offset: int | None) -> DamageError:
        return DamageError(self.storage.url_of(entry.path), fault, self.storage.url, offset)

    def _index_damage(self, shard: int, column: int) -> DamageError:
        """Damage of an entry of an index's first row."""
        entry = self._shards[shard]
        offset = INDEX_HEADER_BYTES + 8 * min(column, entry.records)
        what = "damaged: its entries do not fit the shard's records"
        return DamageError(self.storage.url_of(entry.index_path), what, self.storage.url, offset)


def _span(opened: OpenShard, first: int, end: int) -> tuple[I64, I64]:
    """The index's entries of the records that hold tokens [first, end), and of the next record."""
    low = int(opened.tokens.searchsorted(first, side="right")) - 1
    high = int(opened.tokens.searchsorted(end, side="left"))
    return opened.tokens[low : high + 1], opened.offsets[low : high + 1]
