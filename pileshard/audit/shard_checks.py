"""Checks of one shard and its index, from their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pileshard.audit.report import Fault, FaultKind
from pileshard.errors import DatasetError
from pileshard.format.identity import document_keys, hex64, identity_hashes, sum64
from pileshard.format.index import Index, load_index
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, RECORD_TOKENS, masked_crc, parse_example
from pileshard.format.storage import Storage

#: Faults listed for one file; a file that is damaged all over needs no more.
MOST_FAULTS = 100

_READ_BYTES = 16 << 20
_BATCH_RECORDS = 8192


def check_files(storage: Storage, shard: ShardEntry) -> tuple[list[Fault], Index | None]:
    """Both files are there with their sizes, and the index agrees with the manifest.

    Returns:
      The faults, and the index where it can be used.
    """
    faults = []
    for path, size in ((shard.path, shard.size), (shard.index_path, shard.index_size)):
        try:
            found = storage.size(path)
        except FileNotFoundError:
            faults.append(Fault(kind=FaultKind.MISSING_FILE, path=path, message="is not there"))
            continue
        except OSError as error:
            faults.append(Fault(kind=FaultKind.UNREADABLE, path=path, message=str(error)))
            continue
        if found != size:
            message = f"has {found:,} bytes, the manifest says {size:,}"
            faults.append(Fault(kind=FaultKind.WRONG_SIZE, path=path, message=message))
    if any(fault.path == shard.index_path for fault in faults):
        return faults, None
    try:
        index = load_index(storage, shard.index_path)
    except DatasetError as error:
        return [*faults, Fault(kind=FaultKind.INDEX, path=shard.index_path, message=str(error))], None
    found_totals = (index.records, index.total_tokens, int(index.offsets[-1]), int(index.text_bytes.sum()))
    wanted = (shard.records, shard.tokens, shard.size, shard.text_bytes)
    if found_totals != wanted:
        names = ("records", "tokens", "shard bytes", "text bytes")
        message = "; ".join(
            f"{name} {found:,}, the manifest says {want:,}"
            for name, found, want in zip(names, found_totals, wanted, strict=True)
            if found != want
        )
        faults.append(Fault(kind=FaultKind.INDEX, path=shard.index_path, message=message))
    return faults, index


def check_index_sha256(storage: Storage, shard: ShardEntry) -> list[Fault]:
    """The index has the manifest's hash."""
    try:
        data = storage.read_bytes(shard.index_path)
    except OSError as error:
        return [Fault(kind=FaultKind.UNREADABLE, path=shard.index_path, message=str(error))]
    if hashlib.sha256(data).hexdigest() != shard.index_sha256:
        return [
            Fault(kind=FaultKind.WRONG_SHA256, path=shard.index_path, message="its bytes are not those of the build")
        ]
    return []


class ShardReading:
    """Reads a shard once, front to back, and checks every byte of it.

    Args:
      storage: the dataset's root.
      manifest: of the dataset.
      shard: to be read.
      index: the shard's, or None where it cannot be used.
      on_bytes: told of the bytes read, for progress.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        shard: ShardEntry,
        index: Index | None,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._shard = shard
        self._index = index
        self._on_bytes = on_bytes
        self._dtype = manifest.token_dtype
        self._eod_is_last = manifest.options.special_tokens != "token"
        self.faults: list[Fault] = []
        self.records = 0
        self.documents = 0
        self.tokens = 0
        self._identity_sum = 0
        self._open: tuple[int, int, int] | None = None  # input, line and next part of a document not ended
        self._last_key = -1
        self._starts: list[tuple[int, int, int, int, int]] = []  # of records not yet held against the index

    def run(self) -> list[Fault]:
        """Checks everything and returns the faults."""
        digest = hashlib.sha256()
        try:
            for offset, data in self._records(digest):
                self._take(offset, data)
                if len(self._starts) >= _BATCH_RECORDS:
                    self._settle()
        except OSError as error:
            self._fault(FaultKind.UNREADABLE, str(error))
            return self.faults
        self._settle()
        if self._open is not None:
            self._fault(FaultKind.END_OF_DOCUMENT, "the last document has no end", self._shard.size)
        if digest.hexdigest() != self._shard.sha256:
            self._fault(FaultKind.WRONG_SHA256, "its bytes are not those of the build")
        counted = (self.records, self.documents, self.tokens)
        wanted = (self._shard.records, self._shard.documents, self._shard.tokens)
        if counted != wanted:
            self._fault(FaultKind.TOTALS, f"records, documents, tokens are {counted}, the manifest says {wanted}")
        if hex64(self._identity_sum) != self._shard.identity_sum:
            self._fault(FaultKind.IDENTITY, "its documents are not those of the build: the sum of identities differs")
        return self.faults

    def _fault(self, kind: FaultKind, message: str, offset: int | None = None) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(kind=kind, path=self._shard.path, message=message, offset=offset))

    def _records(self, digest: Any) -> Iterator[tuple[int, memoryview]]:
        """Offset and Example of each record, up to a length that cannot be trusted; hashes to the end of the file."""
        base = 0
        held = b""
        walking = True
        with self._storage.open(self._shard.path) as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
                self._on_bytes(len(block))
                if not walking:
                    continue
                held = held + block if held else block
                view = memoryview(held)
                at = 0
                while len(held) - at >= HEADER_BYTES:
                    head = view[at : at + 8]
                    length = int.from_bytes(head, "little")
                    if masked_crc(head) != int.from_bytes(view[at + 8 : at + HEADER_BYTES], "little"):
                        message = "the length of a record is damaged; the records after it are not read"
                        self._fault(FaultKind.FRAMING, message, base + at)
                        walking = False
                        break
                    end = at + HEADER_BYTES + length + FOOTER_BYTES
                    if end > len(held):
                        break
                    data = view[at + HEADER_BYTES : end - FOOTER_BYTES]
                    if masked_crc(data) != int.from_bytes(view[end - FOOTER_BYTES : end], "little"):
                        self._fault(FaultKind.CRC, "the bytes of a record are damaged", base + at)
                    yield base + at, data
                    at = end
                base += at
                held = bytes(view[at:])
        if walking and held:
            self._fault(FaultKind.FRAMING, f"the file ends {len(held):,} bytes into a record", base)

    def _take(self, offset: int, data: memoryview) -> None:
        self.records += 1
        try:
            example = parse_example(data)
        except ValueError as error:
            self._fault(FaultKind.RECORD, str(error), offset)
            self._starts.append((offset, 0, 0, 0, -1))
            self._open = None
            return
        payload = data[example.tokens_at :]
        if len(payload) % self._dtype.itemsize:
            self._fault(FaultKind.RECORD, f"{len(payload)} bytes are no whole number of tokens", offset)
            payload = payload[: len(payload) // self._dtype.itemsize * self._dtype.itemsize]
        tokens = np.frombuffer(payload, dtype=self._dtype)
        self._check_part(offset, example.input, example.line, example.part)
        ended = self._check_tokens(offset, tokens)
        self._open = None if ended else (example.input, example.line, example.part + 1)
        self.documents += ended
        self._starts.append((offset, len(tokens), example.input, example.line, example.part))
        self.tokens += len(tokens)
        if not ended and len(tokens) != RECORD_TOKENS:
            message = f"a part that does not end its document has {len(tokens):,} tokens, not {RECORD_TOKENS:,}"
            self._fault(FaultKind.PARTS, message, offset)

    def _check_part(self, offset: int, input_number: int, line: int, part: int) -> None:
        if self._open is None:
            if part != 0:
                self._fault(FaultKind.PARTS, f"a document begins with part {part}", offset)
        elif self._open != (input_number, line, part):
            self._fault(FaultKind.PARTS, "the document before it has no end, or its parts are out of order", offset)

    def _check_tokens(self, offset: int, tokens: np.ndarray[Any, Any]) -> bool:
        """Checks the ids of a record; returns whether it ends its document."""
        if not len(tokens):
            self._fault(FaultKind.RECORD, "a record has no tokens", offset)
            return False
        if int(tokens.max()) >= self._manifest.vocab_size:
            message = f"the id {int(tokens.max()):,} is not below the vocabulary's {self._manifest.vocab_size:,}"
            self._fault(FaultKind.TOKEN_RANGE, message, offset)
        ends = int(np.count_nonzero(tokens == self._manifest.eod_id))
        last = int(tokens[-1]) == self._manifest.eod_id
        if self._eod_is_last:
            if ends - last:
                self._fault(FaultKind.END_OF_DOCUMENT, "the end-of-document id occurs inside a document", offset)
            return last
        # A text may hold the id as a token of its own: only a short record, or the next one's part, tells an end.
        return last and (len(tokens) < RECORD_TOKENS or self._next_begins_a_document())

    def _next_begins_a_document(self) -> bool:
        """Whether the record after the one just counted begins a document, by the index."""
        following = self.records
        if self._index is None or following >= self._index.records:
            return True
        return bool(self._index.keys[following] != self._index.keys[following - 1])

    def _settle(self) -> None:
        """Holds the records read since the last time against the index, and their keys and identities."""
        if not self._starts:
            return
        table = np.array(self._starts, dtype=np.int64)
        self._starts.clear()
        offsets, counts, inputs, lines, parts = table.T
        first = self.records - len(table)
        good = parts >= 0
        heads = good & (parts == 0)
        keys = None
        if self._manifest.options.dedup == "none":
            keys = document_keys(self._manifest.options.seed, inputs, lines)
        if self._index is not None:
            keys = self._check_index(first, offsets, counts, good, keys)
        if keys is not None:
            self._check_keys(keys[heads], offsets[heads])
        self._identity_sum = (self._identity_sum + sum64(identity_hashes(inputs[heads], lines[heads]))) & (2**64 - 1)

    def _check_index(self, first: int, offsets: Any, counts: Any, good: Any, keys: Any) -> Any:
        index = self._index
        assert index is not None
        last = first + len(offsets)
        if last > index.records:
            return keys  # the totals are wrong then, and said to be
        rows = (
            ("offsets", index.offsets[first:last], offsets.astype(np.uint64), good | True),
            ("tokens", np.diff(index.tokens[first : last + 1]), counts.astype(np.uint64), good),
        )
        for name, found, wanted, where in rows:
            wrong = np.flatnonzero((found != wanted) & where)
            if len(wrong):
                message = f"{name} of record {first + int(wrong[0]):,} are not the shard's"
                self._index_fault(message)
        if keys is not None:
            wrong = np.flatnonzero((index.keys[first:last] != keys) & good)
            if len(wrong):
                self._index_fault(f"the key of record {first + int(wrong[0]):,} is not its document's")
            return keys
        return np.asarray(index.keys[first:last])

    def _index_fault(self, message: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(kind=FaultKind.INDEX, path=self._shard.index_path, message=message))

    def _check_keys(self, keys: Any, offsets: Any) -> None:
        if not len(keys):
            return
        low, high = int(self._shard.key_first, 16), int(self._shard.key_last, 16)
        outside = np.flatnonzero((keys < np.uint64(low)) | (keys > np.uint64(high)))
        if len(outside):
            at = int(outside[0])
            message = f"the key {int(keys[at]):016x} is outside the shard's range"
            self._fault(FaultKind.KEY_RANGE, message, int(offsets[at]))
        descents = np.flatnonzero(keys[1:] <= keys[:-1])
        if int(keys[0]) <= self._last_key or len(descents):
            at = int(descents[0]) + 1 if len(descents) and int(keys[0]) > self._last_key else 0
            self._fault(FaultKind.KEY_ORDER, "a document is out of order, or there twice", int(offsets[at]))
        self._last_key = int(keys[-1])
