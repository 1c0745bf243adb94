"""Where documents begin in a shard, from its index alone.

Records of one document stand together and have one key. Nearly every record is a document of its own; what is kept of a
shard are the few records that continue one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pileshard.format.damage import DamageError
from pileshard.format.manifest import ShardEntry
from pileshard.order.chunks import I64
from pileshard.readers.chunk import ShardReader


class Boundaries:
    """Documents' bounds in a list of shards.

    Args:
      reader: of the shards.
      shards: the manifest's entries of them.
    """

    def __init__(self, reader: ShardReader, shards: Sequence[ShardEntry]) -> None:
        self._reader = reader
        self._shards = shards
        self._continuing: dict[int, I64] = {}

    def numbered(self, shard: int, first: int, last: int) -> I64:
        """Tokens before each of the documents first to last of a shard: int64 [last - first + 1].

        `last` may be the number of documents; then all tokens of the shard stand there.
        """
        numbers = np.arange(first, last + 1, dtype=np.int64)
        continuing = self._continuing_records(shard)
        # Before document j stand as many continuing records as have at most j others before them.
        others = continuing - np.arange(len(continuing))
        records = numbers + np.searchsorted(others, numbers, side="right")
        low, high = int(records[0]), int(records[-1])
        return self._reader.tokens_before(shard, low, high)[records - low]

    def across(self, shard: int, begin: int, end: int) -> I64:
        """Bounds of the documents that tokens [begin, end) of a shard touch: int64 [documents + 1], ascending."""
        low, high = self._reader.record_of(shard, begin), self._reader.record_of(shard, end - 1) + 1
        continuing = self._continuing_records(shard)
        first = low - int(np.searchsorted(continuing, low, side="right"))  # number of the document
        last = high - int(np.searchsorted(continuing, high, side="left"))
        return self.numbered(shard, first, last)

    def _continuing_records(self, shard: int) -> I64:
        found = self._continuing.get(shard)
        if found is None:
            entry = self._shards[shard]
            found = np.empty(0, dtype=np.int64)
            if entry.documents != entry.records:
                keys = self._reader.keys(shard)
                found = np.flatnonzero(keys[1:] == keys[:-1]) + 1
                documents = entry.records - len(found)
                if documents != entry.documents:
                    fault = f"tells of {documents:,} documents where the manifest has {entry.documents:,}"
                    storage = self._reader.storage
                    raise DamageError(storage.url_of(entry.index_path), fault, storage.url)
            self._continuing[shard] = found
        return found
