"""Parts of a shard's index, and single records found by it, read without reading more: local or remote alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.audit.heads import LONGEST_HEAD
from pileshard.errors import DatasetError
from pileshard.format.identity import U64
from pileshard.format.index import HEADER_BYTES as INDEX_HEADER_BYTES
from pileshard.format.index import npy_header
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, RECORD_TOKENS, parse_example
from pileshard.format.storage import Storage

TOKENS, OFFSETS, TEXT_BYTES = 0, 1, 2


class StoredRecord(NamedTuple):
    """A record, or the begin of one.

    Attributes:
      input: number of its document's input.
      line: the document's line there.
      part: its number in the document.
      tokens: how many it has.
      ids: the first of them, as many as were asked for.
    """

    input: int
    line: int
    part: int
    tokens: int
    ids: npt.NDArray[Any]


class Places:
    """Reads parts of a shard's index.

    Args:
      storage: the dataset's root.
      shard: whose.

    Raises:
      DatasetError: the file is no index of so many records.
    """

    def __init__(self, storage: Storage, shard: ShardEntry) -> None:
        self._storage = storage
        self._shard = shard
        self._columns = shard.records + 1
        header = self._read(0, INDEX_HEADER_BYTES)
        if header != npy_header(self._columns):
            raise self._damaged(f"its header is not that of an index of {shard.records:,} records")

    def row(self, row: int, first: int, last: int) -> U64:
        """Columns [first, last) of a row: uint64 [last - first]."""
        begin = INDEX_HEADER_BYTES + 8 * (row * self._columns + first)
        return np.frombuffer(self._read(begin, begin + 8 * (last - first)), dtype="<u8")

    def _read(self, begin: int, end: int) -> bytes:
        try:
            data = self._storage.read_range(self._shard.index_path, begin, end)
        except FileNotFoundError:
            raise self._damaged("is not there") from None
        if len(data) != end - begin:
            raise self._damaged(f"ends before byte {end:,}")
        return data

    def _damaged(self, fault: str) -> DatasetError:
        return damaged(self._storage, self._shard.index_path, fault)

    def documents(self, first: int, last: int) -> tuple[npt.NDArray[np.int64], U64]:
        """The records of [first, last) that begin a document: their numbers, and the bytes of the documents' texts."""
        text_bytes = self.row(TEXT_BYTES, first, last)
        heads = np.flatnonzero(text_bytes)
        return heads + first, text_bytes[heads]


def read_record(
    storage: Storage, manifest: Manifest, shard: ShardEntry, begin: int, end: int, most: int = RECORD_TOKENS
) -> StoredRecord:
    """The record of the bytes [begin, end) of a shard.

    Args:
      storage: the dataset's root.
      manifest: of the dataset.
      shard: that holds it.
      begin: the record's offset.
      end: that of the next one.
      most: tokens to read of it.

    Raises:
      DatasetError: no record of this dataset is there.
    """
    width = manifest.token_dtype.itemsize
    size = end - begin - HEADER_BYTES - FOOTER_BYTES
    if not 0 <= size <= LONGEST_HEAD + RECORD_TOKENS * width or end > shard.size:
        raise damaged(storage, shard.index_path, f"it leads to bytes {begin:,} to {end:,}, where no record can be")
    start = begin + HEADER_BYTES
    wanted = min(size, LONGEST_HEAD + most * width)
    try:
        data = storage.read_range(shard.path, start, start + wanted)
    except FileNotFoundError:
        raise damaged(storage, shard.path, "is not there") from None
    try:
        # Tokens that were not read are put as zeros: their number counts, which is checked, and not their values.
        example = parse_example(data + bytes(size - wanted))
        if len(data) < wanted or example.input >= len(manifest.inputs):
            raise ValueError("the shard ends" if len(data) < wanted else f"there is no input {example.input:,}")
    except ValueError as error:
        raise damaged(storage, shard.path, f"no record at byte {begin:,} ({error})") from None
    tokens = (size - example.tokens_at) // width
    begin_ids = data[example.tokens_at : example.tokens_at + min(most, tokens) * width]
    ids = np.frombuffer(begin_ids[: len(begin_ids) // width * width], dtype=manifest.token_dtype)
    return StoredRecord(example.input, example.line, example.part, tokens, ids)


def damaged(storage: Storage, path: str, fault: str) -> DatasetError:
    """What is raised where a file is not as it should be."""
    return DatasetError(f"{storage.url_of(path)}: {fault}; run `pileshard verify {storage.url}`")
