"""Shards that are open: a few at a time, each with its index and, where it is a local file, its descriptor."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pileshard.errors import DatasetError
from pileshard.format.damage import DamageError
from pileshard.format.index import load_index
from pileshard.format.manifest import ShardEntry
from pileshard.format.paths import MANIFEST
from pileshard.format.remote import attempts
from pileshard.format.storage import Storage

#: Shards kept open. Each holds up to two descriptors, of which systems allow 1,024 or more, and the pages of its index
#: that searches have touched: about a megabyte that the system takes back at need.
OPEN_SHARDS = 128

#: Bytes of whole indexes of remote shards kept, or one if it is larger.
_REMOTE_INDEX_BYTES = 256 << 20


class OpenShard:
    """A shard's index and, where it is a local file, its descriptor.

    Attributes:
      descriptor: of the file, -1 where it is remote.
      tokens: tokens before each record, and all: int64 [records + 1].
      offsets: byte offset of each record, and the size: int64 [records + 1].
    """

    def __init__(self, storage: Storage, entry: ShardEntry, lenient: bool) -> None:
        """Opens both files.

        Args:
          storage: of the dataset.
          entry: the manifest's.
          lenient: whether the shard may be of another size, or missing as long as nothing is read of it.

        Raises:
          DamageError: one is missing, or not as the manifest has it.
        """
        self.descriptor = -1
        self.entry = entry
        self._storage = storage
        try:
            self.index = load_index(storage, entry.index_path)
        except DamageError as damage:
            raise damage if storage.exists(MANIFEST) else gone(storage, entry.index_path) from None
        # As signed numbers, which mix with Python's; plain arrays, since a memmap's own slices are slow.
        self.tokens = np.asarray(self.index.tokens).view(np.int64)
        self.offsets = np.asarray(self.index.offsets).view(np.int64)
        has = (self.index.records, self.index.total_tokens, int(self.offsets[-1]))
        if has != (entry.records, entry.tokens, entry.size):
            fault = (
                f"tells of {has[0]:,} records, {has[1]:,} tokens, {has[2]:,} bytes where the manifest has "
                f"{entry.records:,}, {entry.tokens:,} and {entry.size:,}"
            )
            raise DamageError(storage.url_of(entry.index_path), fault, storage.url)
        local = storage.local_path(entry.path)
        if local is not None:
            try:
                self.descriptor = os.open(local, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            except FileNotFoundError:
                if lenient:
                    return
                raise missing(storage, entry.path) from None
            size = self.size()
            if size != entry.size and not lenient:
                self.close()
                if size < entry.size:
                    raise cut_off(storage, entry, size)
                fault = f"damaged: has {size:,} bytes where the manifest has {entry.size:,}"
                raise DamageError(storage.url_of(entry.path), fault, storage.url, entry.size)

    def size(self) -> int:
        """Of the file now, in bytes."""
        return os.fstat(self.descriptor).st_size

    def read_into(self, memory: npt.NDArray[np.uint8], begin: int) -> int:
        """Fills memory from a byte of the file on; returns how many bytes there were.

        Raises:
          DamageError: the file is missing.
        """
        if self.descriptor < 0:
            raise missing(self._storage, self.entry.path)
        got = 0
        while got < len(memory):
            count = os.preadv(self.descriptor, [memory.data[got:]], begin + got)
            if not count:
                break
            got += count
        return got

    def read(self, begin: int, end: int) -> bytes:
        """Bytes [begin, end), fewer where the file ends."""
        memory = np.empty(end - begin, dtype=np.uint8)
        return memory[: self.read_into(memory, begin)].tobytes()

    def close(self) -> None:
        """Gives the descriptor back; the index's mapping goes with its last reference."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __del__(self) -> None:
        self.close()


class OpenShards:
    """Those of a list of shards that are open: the last used."""

    def __init__(self, storage: Storage, shards: Sequence[ShardEntry], limit: int, lenient: bool) -> None:
        """Opens none yet."""
        self._storage = storage
        self._shards = shards
        self._limit = limit
        self._lenient = lenient
        self._open: OrderedDict[int, OpenShard] = OrderedDict()

    def get(self, number: int) -> OpenShard:
        """A shard by its number, opened if it is not.

        Raises:
          DamageError: it, or its index, is missing or not as the manifest has it.
          DatasetError: it cannot be opened.
        """
        opened = self._open.get(number)
        if opened is None:
            entry = self._shards[number]
            while self._open and (
                len(self._open) >= self._limit
                or (not self._storage.is_local and self._index_bytes() + entry.index_size > _REMOTE_INDEX_BYTES)
            ):
                self._open.popitem(last=False)[1].close()
            opened = self._open[number] = attempts(
                lambda: OpenShard(self._storage, entry, self._lenient),
                lambda: self._storage.url_of(entry.path),
                self._storage.retry,
            )
        self._open.move_to_end(number)
        return opened

    def drop(self, number: int) -> None:
        """Closes a shard, so that what lies there now is opened next."""
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Closes all."""
        for opened in self._open.values():
            opened.close()
        self._open.clear()

    def _index_bytes(self) -> int:
        return sum(opened.entry.index_size for opened in self._open.values())


class IndexHashes:
    """Whether indexes are the manifest's, byte for byte. Each file is read once, unless it changes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, tuple[object, bool]] = {}

    def is_whole(self, entry: ShardEntry) -> bool:
        """Of a shard's index; a missing one is not."""
        try:
            version = self._version(entry.index_path)
            known = self._known.get(entry.index_path)
            if known is None or known[0] != version:
                found = hashlib.sha256(self._storage.read_bytes(entry.index_path)).hexdigest()
                known = self._known[entry.index_path] = version, found == entry.index_sha256
        except FileNotFoundError:
            return False
        return known[1]

    def _version(self, path: str) -> object:
        local = self._storage.local_path(path)
        if local is None:
            return None
        found = os.stat(local)
        return found.st_ino, found.st_mtime_ns, found.st_size


def cut_off(storage: Storage, entry: ShardEntry, size: int) -> DamageError:
    """What is wrong where a shard ends too early."""
    fault = f"damaged: ends at byte {size:,} where the manifest has {entry.size:,} bytes"
    return DamageError(storage.url_of(entry.path), fault, storage.url, size)


def missing(storage: Storage, path: str) -> DatasetError:
    """What is wrong where a file of a dataset is not there: the file, or the whole storage under it."""
    return (
        DamageError(storage.url_of(path), "is missing", storage.url)
        if storage.exists(MANIFEST)
        else gone(storage, path)
    )


def gone(storage: Storage, path: str) -> DatasetError:
    """What is wrong where a file and the manifest are not there: no damage that a repair could mend."""
    return DatasetError(f"{storage.url}: the dataset is not there any more: {path} and {MANIFEST} are missing")
