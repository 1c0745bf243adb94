"""Runs: temporary files of tokenized documents, sorted by (source, split, key).

    bytes 0..8        magic
    tokens            of every document in order, without end-of-document ids
    rows              one `ROW` a document, in the same order
    buckets           for each group, one `BUCKET` for each of the 1,024 equal ranges of keys that holds a document

Where the groups lie is in the receipt (`RunEntry`). The buckets say how keys, documents and tokens are spread, so that
shards are planned, and a shard's slice of a run is found, without reading what does not belong to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from beam_jobs.job import RunEntry, RunGroup, Spread, TokenizeReceipt, runs_dir
from beam_jobs.reads import one_ahead
from pileshard.errors import BuildError
from pileshard.format.identity import U64, unpack_identity
from pileshard.format.storage import Storage

MAGIC = b"PSRUN\x00\x00\x01"

#: Keys are counted in 2^10 equal ranges; the same for every run, so that a plan does not depend on how runs were cut.
BUCKET_BITS = 10
BUCKET_SHIFT = 64 - BUCKET_BITS

ROW = np.dtype([("key", "<u8"), ("line", "<u8"), ("tokens", "<u8"), ("text_bytes", "<u8"), ("twin", "<u8")])
BUCKET = np.dtype([("bucket", "<u4"), ("documents", "<u4"), ("tokens", "<u8")])

_WRITE_BYTES = 8 << 20
_COLUMN_BYTES = 256  # a document's columns in memory, about, when they are sorted and written
_PIECES = 1 << 16

Group = tuple[str, str]
Ints = npt.NDArray[Any]


@dataclass
class _Batch:
    tokens: npt.NDArray[Any]
    starts: Ints
    ends: Ints
    groups: Ints
    keys: U64
    lines: Ints
    text_bytes: Ints
    twins: U64


@dataclass
class RunBuffer:
    """Documents in memory until they make a run.

    Attributes:
      dtype: of a token.
      limit: bytes to hold at most before `full` (a single batch may exceed it).
      spread: of each group, documents and tokens by bucket of all that was written: int64 [2^10, 2].
    """

    dtype: np.dtype[Any]
    limit: int
    held: int = 0
    spread: dict[Group, Ints] = field(default_factory=dict)
    _batches: list[_Batch] = field(default_factory=list)
    _groups: dict[Group, int] = field(default_factory=dict)

    def group_number(self, source: str, split: str) -> int:
        """The number of a group in this buffer."""
        return self._groups.setdefault((source, split), len(self._groups))

    def add(
        self, tokens: npt.NDArray[Any], ends: Ints, groups: Ints, keys: U64, lines: Ints, text_bytes: Ints, twins: U64
    ) -> None:
        """Takes a batch of n documents.

        Args:
          tokens: all their tokens, flat.
          ends: [n] where each document's tokens end in `tokens`.
          groups: [n] group numbers.
          keys: [n] keys.
          lines: [n] line numbers.
          text_bytes: [n] UTF-8 bytes of each text.
          twins: [n] what equal keys must share to be the same text; 0 where that is not asked.
        """
        starts = np.empty_like(ends)
        if len(ends):
            starts[0] = 0
            starts[1:] = ends[:-1]
        self._batches.append(_Batch(tokens, starts, ends, groups, keys, lines, text_bytes, twins))
        self.held += tokens.nbytes + _COLUMN_BYTES * len(ends)

    @property
    def full(self) -> bool:
        """Whether it is time to write."""
        return self.held >= self.limit

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not any(len(batch.ends) for batch in self._batches)

    def write(self, storage: Storage, prefix: str) -> RunEntry:
        """Sorts and writes what is held, as a run under a name that no other attempt uses, and empties the buffer."""
        path = f"{prefix}-{uuid.uuid4().hex[:12]}.run"
        order, columns, names = self._sorted()
        tables, groups = self._tables(columns, names)

        def write(file: BinaryIO) -> int:
            with contextlib.closing(one_ahead(self._token_pieces(order))) as tokens:
                return sum(file.write(piece) for piece in itertools.chain([MAGIC], tokens, tables))

        size = storage.publish(path, write)
        self._batches.clear()
        self._groups.clear()
        self.held = 0
        return RunEntry(path=path, size=size, groups=groups)

    def write_spread(self, storage: Storage, prefix: str) -> Spread:
        """Writes the sums of the bucket tables of all runs."""
        path = f"{prefix}-{uuid.uuid4().hex[:12]}.spread"
        tables = {name: _as_table(self.spread[name]) for name in sorted(self.spread)}
        storage.write_bytes(path, b"".join(table.tobytes() for table in tables.values()))
        return Spread(path=path, groups=[(*name, len(table)) for name, table in tables.items()])

    def _sorted(self) -> tuple[Ints, dict[str, Ints], list[Group]]:
        """Order of the documents, their columns in that order, and the groups by rank."""
        names = sorted(self._groups)
        rank = np.empty(len(names), dtype=np.int64)
        for at, name in enumerate(names):
            rank[self._groups[name]] = at
        batches = self._batches
        group = rank[np.concatenate([batch.groups for batch in batches])]
        keys = np.concatenate([batch.keys for batch in batches])
        twins = np.concatenate([batch.twins for batch in batches])
        lines = np.concatenate([batch.lines for batch in batches])
        counts = np.concatenate([batch.ends - batch.starts for batch in batches])
        text_bytes = np.concatenate([batch.text_bytes for batch in batches])
        order = np.lexsort((lines, twins, keys, group))
        columns = {
            "group": group[order],
            "key": keys[order],
            "twin": twins[order],
            "line": lines[order],
            "tokens": counts[order],
            "text_bytes": text_bytes[order],
        }
        return order, columns, names

    def _token_pieces(self, order: Ints) -> Iterator[bytes]:
        """Tokens of the documents in order, some megabytes at a time."""
        views = [batch.tokens.view(np.uint8).data for batch in self._batches]
        width = self.dtype.itemsize
        number = np.concatenate([np.full(len(batch.ends), at) for at, batch in enumerate(self._batches)])[order]
        starts = np.concatenate([batch.starts for batch in self._batches])[order] * width
        ends = np.concatenate([batch.ends for batch in self._batches])[order] * width
        for at in range(0, len(order), _PIECES):  # views of tiny documents take more than their tokens
            pieces: list[memoryview] = []
            size = 0
            part = slice(at, at + _PIECES)
            for batch, start, end in zip(
                number[part].tolist(), starts[part].tolist(), ends[part].tolist(), strict=True
            ):
                pieces.append(views[batch][start:end])
                size += end - start
                if size >= _WRITE_BYTES:
                    yield b"".join(pieces)
                    pieces.clear()
                    size = 0
            yield b"".join(pieces)

    def _tables(self, columns: dict[str, Ints], names: list[Group]) -> tuple[list[bytes], list[RunGroup]]:
        """What follows the tokens: rows and bucket tables, and where each group's lie."""
        rows = np.zeros(len(columns["key"]), dtype=ROW)
        for name in ROW.names or ():
            rows[name] = columns[name]
        rows_at = len(MAGIC) + int(rows["tokens"].sum()) * self.dtype.itemsize
        tables = [rows.tobytes()]
        buckets_at = rows_at + rows.nbytes
        bounds = np.searchsorted(columns["group"], np.arange(len(names) + 1)).tolist()
        tokens_at = len(MAGIC)
        groups = []
        for (source, split), first, last in zip(names, bounds, bounds[1:], strict=False):
            part = rows[first:last]
            sums = _bucket_sums(part)
            self.spread[source, split] = self.spread.get((source, split), 0) + sums
            table = _as_table(sums)
            tables.append(table.tobytes())
            tokens = int(part["tokens"].sum())
            groups.append(
                RunGroup(
                    source=source,
                    split=split,
                    documents=last - first,
                    tokens=tokens,
                    text_bytes=int(part["text_bytes"].sum()),
                    tokens_at=tokens_at,
                    rows_at=rows_at + first * ROW.itemsize,
                    buckets_at=buckets_at,
                    buckets=len(table),
                )
            )
            tokens_at += tokens * self.dtype.itemsize
            buckets_at += table.nbytes
        return tables, groups


def _bucket_sums(rows: Ints) -> Ints:
    """Documents and tokens in each bucket: int64 [2^10, 2]."""
    bucket = (rows["key"] >> np.uint64(BUCKET_SHIFT)).astype(np.int64)
    documents = np.bincount(bucket, minlength=1 << BUCKET_BITS)
    edges = np.concatenate([[0], np.cumsum(documents)])
    tokens_before = np.concatenate([[0], np.cumsum(rows["tokens"].astype(np.int64))])
    return np.stack([documents, np.diff(tokens_before[edges])], axis=1)


def _as_table(sums: Ints) -> Ints:
    used = np.flatnonzero(sums[:, 0])
    table = np.zeros(len(used), dtype=BUCKET)
    table["bucket"] = used
    table["documents"] = sums[used, 0]
    table["tokens"] = sums[used, 1]
    return table


def read_buckets(storage: Storage, path: str, group: RunGroup) -> Ints:
    """The bucket table of a group: `BUCKET` [group.buckets]."""
    return _read(storage, path, group.buckets_at, BUCKET, group.buckets)


def read_spreads(storage: Storage, receipt: TokenizeReceipt) -> list[tuple[Group, Ints]]:
    """How an item's documents and tokens are spread: groups with bucket tables, a group once or once a run."""
    if receipt.spread is not None:
        named, path = receipt.spread.groups, receipt.spread.path
        with contextlib.suppress(FileNotFoundError):  # the runs tell it too
            table = _read(storage, path, 0, BUCKET, sum(count for *_, count in named))
            return _cut(table, named)
    found = []
    for run in receipt.runs:  # the tables of a run lie side by side
        parts = [(group.source, group.split, group.buckets) for group in run.groups]
        table = _read(storage, run.path, run.groups[0].buckets_at, BUCKET, sum(count for *_, count in parts))
        found += _cut(table, parts)
    return found


def _cut(table: Ints, named: list[tuple[str, str, int]]) -> list[tuple[Group, Ints]]:
    ends = np.cumsum([count for *_, count in named]).tolist()
    return [
        ((source, split), table[end - count : end]) for (source, split, count), end in zip(named, ends, strict=True)
    ]


def read_rows(
    storage: Storage, path: str, group: RunGroup, key_first: int, key_last: int, table: Ints | None = None
) -> tuple[Ints, int]:
    """The rows with key_first <= key <= key_last, and the byte offset of the first one's tokens, one width apart.

    Args:
      storage: where the run lies.
      path: of the run.
      group: the source and split.
      key_first: the first key.
      key_last: the last key, inclusive.
      table: the group's bucket table, where it is at hand.

    Returns:
      `ROW` [n], and the number of the group's tokens before them.
    """
    if table is None:
        table = read_buckets(storage, path, group)
    low = int(np.searchsorted(table["bucket"], key_first >> BUCKET_SHIFT, "left"))
    high = int(np.searchsorted(table["bucket"], key_last >> BUCKET_SHIFT, "right"))
    skipped = int(table["documents"][:low].sum())
    count = int(table["documents"][low:high].sum())
    before = int(table["tokens"][:low].sum())
    rows = _read(storage, path, group.rows_at + skipped * ROW.itemsize, ROW, count)
    first = int(np.searchsorted(rows["key"], np.uint64(key_first), "left"))
    last = int(np.searchsorted(rows["key"], np.uint64(key_last), "right"))
    return rows[first:last], before + int(rows["tokens"][:first].sum())


def _read(storage: Storage, path: str, at: int, dtype: np.dtype[Any], count: int) -> Ints:
    data = storage.read_range(path, at, at + count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise BuildError(
            f"{storage.url_of(path)}: the run is cut off at byte {at + len(data):,}; run the command again"
        )
    return np.frombuffer(data, dtype=dtype)


def identities(rows: Ints, number: int | None) -> tuple[Ints, Ints]:
    """Inputs and lines of rows: those of a gathered run hold both in `line`, and its own number is None."""
    if number is not None:
        return np.full(len(rows), number, dtype=np.uint64), rows["line"]
    return unpack_identity(rows["line"])


def run_prefix(fingerprint: str, item_name: str) -> str:
    """Where an item's runs lie below the temporary URL."""
    short = hashlib.sha256(item_name.encode()).hexdigest()[:8]
    return f"{runs_dir(fingerprint)}/{item_name}-{short}"
