"""Finds the document of a line in the shards, by its key."""

from __future__ import annotations

import shutil
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.errors import DatasetError
from pileshard.format.identity import U64
from pileshard.format.index import Index, load_index
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, masked_crc, parse_example
from pileshard.format.storage import Storage

#: Indexes held open at a time; each one takes a file descriptor.
_MOST_OPEN = 128

Group = tuple[str, str]


@dataclass(frozen=True)
class StoredDocument:
    """A document as a shard holds it.

    Attributes:
      input: number of its input.
      line: its line.
      tokens: uint16 or uint32 [n], with the end-of-document id.
      spans: for each of its records, (tokens before it, byte offset of its tokens in the shard).
      record: number of its first record.
      text_bytes: what the index says of its text.
      damaged: whether a record of it does not have its checksum.
    """

    input: int
    line: int
    tokens: npt.NDArray[Any]
    spans: list[tuple[int, int]]
    record: int
    text_bytes: int
    damaged: bool

    def offset(self, token: int) -> int:
        """Byte offset in the shard of one of its tokens."""
        before, at = next(span for span in reversed(self.spans) if span[0] <= token)
        return at + (token - before) * self.tokens.itemsize


class Documents:
    """The documents of a dataset by source, split and key.

    Indexes are mapped as they are needed; those of a remote dataset are copied to a temporary directory first (some
    1% of the dataset, if all are needed).
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self._storage = storage
        self._dtype = manifest.token_dtype
        groups: dict[Group, list[ShardEntry]] = {}
        for shard in manifest.shards:
            groups.setdefault((shard.source, shard.split), []).append(shard)
        self._shards = groups
        self._firsts: dict[Group, U64] = {
            name: np.array([int(shard.key_first, 16) for shard in shards], dtype=np.uint64)
            for name, shards in groups.items()
        }
        self._open: OrderedDict[str, Index | None] = OrderedDict()
        self._copies: tempfile.TemporaryDirectory[str] | None = None

    def shards_of(self, group: Group, keys: U64) -> list[ShardEntry | None]:
        """The shard that is to hold each key of a group: [n]; None where the group has no shard."""
        if group not in self._firsts:
            return [None] * len(keys)
        numbers = np.searchsorted(self._firsts[group], keys, "right") - 1
        return [self._shards[group][max(0, number)] for number in numbers.tolist()]

    def find(self, shard: ShardEntry, key: int) -> list[StoredDocument] | None:
        """The documents of a shard that have a key: one as a rule, more where texts' keys are equal by chance.

        Returns:
          The documents, [] if there is none, or None where the shard or its index cannot be used.
        """
        index = self._index(shard)
        if index is None:
            return None
        keys = index.keys[:-1]
        first, last = (int(np.searchsorted(keys, np.uint64(key), side)) for side in ("left", "right"))
        if first == last:
            return []
        try:
            return self._read(shard, index, first, last)
        except (DatasetError, OSError, ValueError):
            return None

    def hidden(self, group: Group, key: int) -> bool:
        """Whether a shard of another group might hold a document of this key, and damage hides whether it does."""
        for name in self._shards:
            [shard] = self.shards_of(name, np.array([key], dtype=np.uint64))
            if name != group and shard is not None:
                found = self.find(shard, key)
                if found is None or any(document.damaged for document in found):
                    return True
        return False

    def elsewhere(self, group: Group, key: int) -> ShardEntry | None:
        """A shard of another group that holds a document of this key."""
        for name in self._shards:
            if name != group:
                [shard] = self.shards_of(name, np.array([key], dtype=np.uint64))
                if shard is not None and self.find(shard, key):
                    return shard
        return None

    def columns(self, shard: ShardEntry) -> int:
        """Columns of a shard's index."""
        index = self._index(shard)
        return 0 if index is None else int(index.table.shape[1])

    def _read(self, shard: ShardEntry, index: Index, first: int, last: int) -> list[StoredDocument]:
        offsets = index.offsets[first : last + 1].astype(np.int64).tolist()
        begin, end = offsets[0], offsets[-1]
        if not 0 <= begin <= end <= shard.size:
            raise ValueError("the index leads outside the shard")
        data = self._storage.read_range(shard.path, begin, end)
        found: list[StoredDocument] = []
        pieces: list[npt.NDArray[Any]] = []
        spans: list[tuple[int, int]] = []
        head: tuple[int, int, int] | None = None  # input, line, number of the first record
        count, damaged = 0, False

        def close() -> None:
            if head is not None:
                text_bytes = int(index.text_bytes[head[2]])
                tokens = np.concatenate(pieces)
                found.append(StoredDocument(head[0], head[1], tokens, list(spans), head[2], text_bytes, damaged))

        for number, (low, high) in enumerate(pairwise(offsets)):
            record = data[low - begin + HEADER_BYTES : high - begin - FOOTER_BYTES]
            example = parse_example(record)
            if example.part == 0:
                close()
                head, count, damaged = (example.input, example.line, first + number), 0, False
                pieces.clear()
                spans.clear()
            tokens = np.frombuffer(record[example.tokens_at :], dtype=self._dtype)
            spans.append((count, low + HEADER_BYTES + example.tokens_at))
            pieces.append(tokens)
            count += len(tokens)
            checksum = int.from_bytes(data[high - begin - FOOTER_BYTES : high - begin], "little")
            damaged |= masked_crc(record) != checksum
        close()
        return found

    def _index(self, shard: ShardEntry) -> Index | None:
        path = shard.index_path
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        try:
            index: Index | None = load_index(*self._local(path))
        except (DatasetError, OSError):
            index = None
        self._open[path] = index
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return index

    def _local(self, path: str) -> tuple[Storage, str]:
        if self._storage.is_local:
            return self._storage, path
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="pileshard-verify-")
        copies = Storage(self._copies.name)
        if not copies.exists(path):
            with self._storage.open(path) as source, copies.create(path) as target:
                shutil.copyfileobj(source, target, 8 << 20)
        return copies, path
