"""Checks of one shard from its bytes: every record, token, key and identity, and the index against them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.audit.framing import Batch, Ints, read_batches
from pileshard.audit.heads import LONGEST_HEAD, parse_heads
from pileshard.audit.report import MOST_FAULTS, Fault, FaultKind
from pileshard.audit.token_checks import TokenChecks
from pileshard.format.identity import document_keys, hex64, identity_hashes, sum64
from pileshard.format.index import Index
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.record import RECORD_TOKENS
from pileshard.format.storage import Storage


class _Records(NamedTuple):
    """What matters of records across batches, one row each."""

    offset: Ints
    good: npt.NDArray[np.bool_]
    input: Ints
    line: Ints
    part: Ints
    tokens: Ints
    ended: npt.NDArray[np.bool_]  # its last id is the end-of-document id

    def last(self) -> _Records:
        return _Records._make(column[-1:].copy() for column in self)


#: Before the first record: as if a document had just ended.
_BEGIN = _Records._make(np.array([value]) for value in (0, True, -1, -1, -1, 1, True))


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
        # A text may hold the id as a token of its own under this policy; then only the next record's part tells an end.
        self._eod_within = manifest.options.special_tokens == "token"
        self._ids = TokenChecks(manifest, self._fault)
        self._lines = manifest.input_lines
        self.faults: list[Fault] = []
        self.records = 0
        self.documents = 0
        self.tokens = 0
        self._identity_sum = 0
        self._previous = _BEGIN
        self._last_key: tuple[int, int, int] | None = None  # key, input, line of the document before

    def run(self) -> list[Fault]:
        """Checks everything and returns the faults."""
        digest = hashlib.sha256()

        def on_block(block: memoryview) -> None:
            digest.update(block)
            self._on_bytes(len(block))

        longest = LONGEST_HEAD + RECORD_TOKENS * self._dtype.itemsize
        try:
            with self._storage.open(self._shard.path) as file:
                offsets = self._index.offsets if self._index is not None else None
                for batch in read_batches(file, longest, on_block, self._fault, offsets, self._shard.size):
                    self._take(batch)
        except OSError as error:
            self._add(FaultKind.UNREADABLE, str(error))
            return self.faults
        self._check_ends(self._previous, np.array([False]))
        if digest.hexdigest() != self._shard.sha256:
            self._add(FaultKind.WRONG_SHA256, "its bytes are not those of the build")
        counted = (self.records, self.documents, self.tokens)
        wanted = (self._shard.records, self._shard.documents, self._shard.tokens)
        if counted != wanted:
            self._add(FaultKind.TOTALS, f"records, documents, tokens are {counted}, the manifest says {wanted}")
        if hex64(self._identity_sum) != self._shard.identity_sum:
            self._add(FaultKind.IDENTITY, "its documents are not those of the build: the sum of identities differs")
        return self.faults

    def _add(self, kind: FaultKind, message: str, offset: int | None = None, path: str | None = None) -> None:
        self.faults.append(Fault(kind=kind, path=path or self._shard.path, message=message, offset=offset))

    def _fault(self, kind: FaultKind, message: str, offset: int | None = None, path: str | None = None) -> None:
        if len(self.faults) < MOST_FAULTS:
            self._add(kind, message, offset, path)

    def _take(self, batch: Batch) -> None:
        heads = parse_heads(batch.data, batch.starts, batch.ends)
        offsets = batch.offsets
        for number, why in heads.why.items():
            self._fault(FaultKind.RECORD, why, int(offsets[number]))
        begins = batch.starts + heads.tokens_at
        size = batch.ends - begins
        for number in np.flatnonzero((size % self._dtype.itemsize != 0) & heads.good).tolist():
            message = f"{int(size[number]):,} bytes are no whole number of tokens"
            self._fault(FaultKind.RECORD, message, int(offsets[number]))
        counts = size // self._dtype.itemsize
        for number in np.flatnonzero((counts == 0) & heads.good).tolist():
            self._fault(FaultKind.RECORD, "a record has no tokens", int(offsets[number]))
        ended = self._ids.check(batch, begins, counts)
        records = _Records(offsets, heads.good, heads.input, heads.line, heads.part, counts, ended)
        self._check_parts(records)
        self._check_identities(records)
        keys = self._check_index(records)
        if keys is not None:
            self._check_keys(keys, records)
        starts_document = records.good & (records.part == 0)
        identities = identity_hashes(records.input[starts_document], records.line[starts_document])
        self._identity_sum = (self._identity_sum + sum64(identities)) & (2**64 - 1)
        self.records += len(offsets)
        self.documents += int(np.count_nonzero(starts_document))
        self.tokens += int(counts.sum())
        self._previous = records.last()

    def _check_parts(self, records: _Records) -> None:
        """Holds each record against the one before it: a part goes on, or a document begins where another has ended."""
        before = _Records._make(np.concatenate([a, b[:-1]]) for a, b in zip(self._previous, records, strict=True))
        follows = records.good & (records.part > 0)
        same = (before.input == records.input) & (before.line == records.line) & (before.part + 1 == records.part)
        same &= before.good & follows
        for number in np.flatnonzero(follows & ~same & before.good).tolist():
            message = f"part {int(records.part[number]):,} of a document does not follow the part before it"
            self._fault(FaultKind.PARTS, message, int(records.offset[number]))
        for number in np.flatnonzero(same & (before.tokens != RECORD_TOKENS)).tolist():
            message = (
                f"a part that another one follows has {int(before.tokens[number]):,} tokens, not {RECORD_TOKENS:,}"
            )
            self._fault(FaultKind.PARTS, message, int(before.offset[number]))
        if not self._eod_within:
            for number in np.flatnonzero(same & before.ended).tolist():
                message = "the end-of-document id occurs inside a document"
                self._fault(FaultKind.END_OF_DOCUMENT, message, int(before.offset[number]))
        for number in np.flatnonzero(records.good & (records.tokens > RECORD_TOKENS)).tolist():
            message = f"a record has {int(records.tokens[number]):,} tokens, more than {RECORD_TOKENS:,}"
            self._fault(FaultKind.PARTS, message, int(records.offset[number]))
        self._check_ends(before, follows | ~records.good)

    def _check_ends(self, records: _Records, open_ended: npt.NDArray[np.bool_]) -> None:
        """Each record that ends its document (whatever follows begins another) has the end-of-document id."""
        for number in np.flatnonzero(records.good & ~records.ended & ~open_ended).tolist():
            offset = int(records.offset[number])
            if int(records.tokens[number]) == RECORD_TOKENS:
                self._fault(FaultKind.PARTS, "the part that is to follow this one is missing", offset)
            else:
                self._fault(FaultKind.END_OF_DOCUMENT, "a document has no end-of-document id", offset)

    def _check_identities(self, records: _Records) -> None:
        """Each document is of an input and a line that there are."""
        known = (records.input < len(self._lines)) & (records.line >= 1)
        if len(self._lines):
            known &= records.line <= self._lines[np.minimum(records.input, len(self._lines) - 1)]
        for number in np.flatnonzero(records.good & ~known).tolist():
            message = f"input {int(records.input[number]):,} has no line {int(records.line[number]):,}"
            self._fault(FaultKind.IDENTITY, message, int(records.offset[number]))

    def _check_index(self, records: _Records) -> npt.NDArray[np.uint64] | None:
        """Holds the index against the records; returns their keys, or None where they cannot be known."""
        keys = None
        if self._manifest.options.dedup == "none":
            keys = document_keys(self._manifest.options.seed, records.input, records.line)
        index = self._index
        first, last = self.records, self.records + len(records.offset)
        if index is None or last > index.records:
            return keys  # the totals are wrong then, and said to be
        heads = records.part == 0
        text_bytes = index.text_bytes[first:last]
        wrong: list[tuple[str, Any]] = [
            ("the offset", index.offsets[first:last] != records.offset.astype(np.uint64)),
            ("the tokens", np.diff(index.tokens[first : last + 1]) != records.tokens.astype(np.uint64)),
            ("the text bytes", records.good & ((text_bytes > 0) != heads)),
        ]
        found = np.asarray(index.keys[first:last])
        if keys is not None:
            wrong.append(("the key", records.good & (found != keys)))
        for name, where in wrong:
            places = np.flatnonzero(where)
            if len(places):
                message = f"{name} of record {first + int(places[0]):,} are not the shard's"
                self._fault(FaultKind.INDEX, message, path=self._shard.index_path)
        return found if keys is None else keys

    def _check_keys(self, keys: npt.NDArray[np.uint64], records: _Records) -> None:
        """Documents are in key order, each once, in the shard's range of keys."""
        heads = np.flatnonzero(records.good & (records.part == 0))
        if not len(heads):
            return
        keys, offsets = keys[heads], records.offset[heads]
        inputs, lines = records.input[heads], records.line[heads]
        low, high = int(self._shard.key_first, 16), int(self._shard.key_last, 16)
        for number in np.flatnonzero((keys < np.uint64(low)) | (keys > np.uint64(high))).tolist():
            message = f"the key {int(keys[number]):016x} is outside the shard's range"
            self._fault(FaultKind.KEY_RANGE, message, int(offsets[number]))
        if self._last_key is not None:
            key, number, line = self._last_key
            keys = np.concatenate([np.array([key], dtype=np.uint64), keys])
            inputs, lines = np.concatenate([[number], inputs]), np.concatenate([[line], lines])
            offsets = np.concatenate([[-1], offsets])
        twice = (inputs[1:] == inputs[:-1]) & (lines[1:] == lines[:-1])
        if self._manifest.options.dedup == "none":
            twice |= keys[1:] == keys[:-1]  # of texts, keys of 64 bits may be equal by chance
        for number in np.flatnonzero((keys[1:] < keys[:-1]) | twice).tolist():
            message = "a document is there twice" if twice[number] else "a document is out of order"
            self._fault(FaultKind.KEY_ORDER, message, int(offsets[number + 1]))
        self._last_key = (int(keys[-1]), int(inputs[-1]), int(lines[-1]))
