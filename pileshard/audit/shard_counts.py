"""Counts what shards hold: lengths of documents from their indexes, and, where asked for, how often each id occurs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.audit.log_bins import Histogram, Ints, LogBins
from pileshard.errors import DatasetError
from pileshard.format.index import HEADER_BYTES, npy_header
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.record import FOOTER_BYTES
from pileshard.format.storage import Storage

#: Lengths below 16,384 tokens are counted exactly, those above within 0.05% (half a bin).
LENGTHS = LogBins(exact=14, fine=10)
#: Edges of the histogram that people look at: powers of the root of 2, as whole numbers.
EDGES: Ints = np.unique(np.round(2.0 ** (np.arange(2 * 53) / 2)).astype(np.int64))
#: Text bytes a token are counted in thousandths.
DENSITY = LogBins(exact=14, fine=10)

_RECORDS_AT_ONCE = 1 << 18
_BYTES_AT_ONCE = 4 << 20
_MOST_ABOVE = 20

_TOKENS, _OFFSETS, _TEXT_BYTES = 0, 1, 2


@dataclass
class Counts:
    """What was counted in some shards.

    Attributes:
      documents: how many.
      records: that hold them.
      tokens: of them.
      text_bytes: of their texts.
      lengths: tokens of each document.
      long: int64 [2, bins], documents of 16,384 tokens and more by length, between EDGES, and their tokens.
      density: thousandths of text bytes a token, of each document.
      density_sum: of these thousandths.
      ids: int64 [vocab_size], occurrences; None where tokens were not read.
      above: tokens at or above the vocabulary's size.
      above_ids: the lowest of these ids.
    """

    documents: int = 0
    records: int = 0
    tokens: int = 0
    text_bytes: int = 0
    lengths: Histogram = field(default_factory=lambda: Histogram(LENGTHS))
    long: Ints = field(default_factory=lambda: np.zeros((2, len(EDGES)), dtype=np.int64))
    density: Histogram = field(default_factory=lambda: Histogram(DENSITY))
    density_sum: int = 0
    ids: Ints | None = None
    above: int = 0
    above_ids: list[int] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Adds what was counted elsewhere."""
        self.documents += other.documents
        self.records += other.records
        self.tokens += other.tokens
        self.text_bytes += other.text_bytes
        self.lengths.add_histogram(other.lengths)
        self.long += other.long
        self.density.add_histogram(other.density)
        self.density_sum += other.density_sum
        if other.ids is not None:
            self.ids = other.ids.copy() if self.ids is None else self.ids + other.ids
        self.above += other.above
        self.above_ids = sorted({*self.above_ids, *other.above_ids})[:_MOST_ABOVE]

    def add_documents(self, lengths: Ints, text_bytes: Ints) -> None:
        """Counts documents by their tokens and the bytes of their texts: int64 [documents] each."""
        self.documents += len(lengths)
        self.lengths.add(lengths)
        long = lengths[lengths >= 1 << LENGTHS.exact]
        self.long += _by_edges(long, np.ones_like(long))
        thousandths = text_bytes * 1000 // lengths
        self.density.add(thousandths)
        self.density_sum += int(thousandths.sum())

    def by_length(self) -> Ints:
        """Documents of a length between two EDGES, and their tokens: int64 [2, bins]."""
        short = self.lengths.counts[: 1 << LENGTHS.exact]
        return self.long + _by_edges(np.arange(len(short)), short)


def _by_edges(lengths: Ints, counts: Ints) -> Ints:
    """How many documents lie between two EDGES, and their tokens, of `counts` documents of each length."""
    out = np.zeros((2, len(EDGES)), dtype=np.int64)
    present = counts > 0
    lengths, counts = lengths[present], counts[present]
    bins = np.searchsorted(EDGES, lengths, "right") - 1
    np.add.at(out[0], bins, counts)
    np.add.at(out[1], bins, counts * lengths)
    return out


@dataclass(frozen=True)
class ShardCounter:
    """Counts shards one after another. Its memory is bounded, whatever their size.

    Attributes:
      storage: the dataset's root.
      dtype: of a token.
      vocab_size: to count ids, None to leave tokens alone.
    """

    storage: Storage
    dtype: np.dtype[Any]
    vocab_size: int | None

    @staticmethod
    def of(storage: Storage, manifest: Manifest, vocab: bool) -> ShardCounter:
        """The counter of a dataset."""
        return ShardCounter(storage, manifest.token_dtype, manifest.vocab_size if vocab else None)

    def __call__(self, shards: list[ShardEntry]) -> Counts:
        """Counts the shards.

        Raises:
          DatasetError: a shard or its index is missing, or not what the manifest says.
        """
        out = Counts()
        if self.vocab_size is not None:
            out.ids = np.zeros(self.vocab_size, dtype=np.int64)
        for shard in shards:
            index = IndexRows(self.storage, shard)
            self._count_documents(index, out)
            if self.vocab_size is not None:
                self._count_ids(index, out)
        return out

    def _count_documents(self, index: IndexRows, out: Counts) -> None:
        # A document begins where its text's bytes are told: no text is empty, and other parts have 0.
        shard = index.shard
        before = out.documents
        previous = -1
        text_total = 0
        open_start, open_text = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        for begin in range(0, shard.records, _RECORDS_AT_ONCE):
            end = min(shard.records, begin + _RECORDS_AT_ONCE)
            tokens, text = index.read(_TOKENS, begin, end), index.read(_TEXT_BYTES, begin, end)
            sound = tokens[0] > previous and (np.diff(tokens) > 0).all() and text.min() >= 0
            if not sound or text.max() > shard.text_bytes or (begin == 0 and (tokens[0] or not text[0])):
                raise index.fault("its records do not follow upon each other")
            previous = int(tokens[-1])
            text_total += int(text.sum())
            first = np.flatnonzero(text)
            starts = np.concatenate((open_start, tokens[first]))
            texts = np.concatenate((open_text, text[first]))
            out.add_documents(np.diff(starts), texts[:-1])
            open_start, open_text = starts[-1:], texts[-1:]
        total = int(index.read(_TOKENS, shard.records, shard.records + 1)[0])
        if shard.records and total > previous:
            out.add_documents(total - open_start, open_text)
        found = (out.documents - before, total, text_total)
        wanted = (shard.documents, shard.tokens, shard.text_bytes)
        if found != wanted or total < max(previous, 0):
            told = "{:,} documents, {:,} tokens, {:,} text bytes".format
            raise index.fault(f"it has {told(*found)} where the manifest says {told(*wanted)}")
        out.records += shard.records
        out.tokens += total
        out.text_bytes += text_total

    def _count_ids(self, index: IndexRows, out: Counts) -> None:
        shard = index.shard
        name = self.storage.url_of(shard.path)
        try:
            with self.storage.open(shard.path) as file:
                for tokens in self._payloads(index, file, name):
                    self._count(tokens, out)
        except FileNotFoundError:
            raise DatasetError(f"{name}: the shard is missing; run `pileshard verify`") from None

    def _payloads(self, index: IndexRows, file: Any, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yields the tokens of a shard, some MB at a time."""
        shard = index.shard
        width = self.dtype.itemsize
        for begin in range(0, shard.records, _RECORDS_AT_ONCE):
            end = min(shard.records, begin + _RECORDS_AT_ONCE)
            offsets = index.read(_OFFSETS, begin, end + 1)
            sizes = np.diff(index.read(_TOKENS, begin, end + 1)) * width
            starts = offsets[1:] - FOOTER_BYTES - sizes
            if (starts <= offsets[:-1]).any() or (begin == 0 and offsets[0]) or offsets[-1] > shard.size:
                raise index.fault("its offsets do not fit its tokens")
            at = 0
            while at < end - begin:
                upto = int(np.searchsorted(offsets, offsets[at] + _BYTES_AT_ONCE, "right")) - 1
                upto = max(at + 1, upto)
                base, size = int(offsets[at]), int(offsets[upto] - offsets[at])
                data = file.read(size)
                if len(data) != size:
                    raise DatasetError(f"{name}: ends at byte {base + len(data):,}; run `pileshard verify`")
                view = memoryview(data)
                firsts = (starts[at:upto] - base).tolist()
                lasts = (offsets[at + 1 : upto + 1] - base - FOOTER_BYTES).tolist()
                pieces = [view[first:last] for first, last in zip(firsts, lasts, strict=True)]
                yield np.frombuffer(b"".join(pieces), dtype=self.dtype)
                at = upto
        if index.read(_OFFSETS, shard.records, shard.records + 1)[0] != shard.size:
            raise index.fault("its last offset is not the shard's size")

    def _count(self, tokens: npt.NDArray[Any], out: Counts) -> None:
        assert self.vocab_size is not None
        assert out.ids is not None
        if len(tokens) and int(tokens.max()) >= self.vocab_size:
            high = tokens >= self.vocab_size
            ids = np.unique(tokens[high])[:_MOST_ABOVE].tolist()
            out.above += int(high.sum())
            out.above_ids = sorted({*out.above_ids, *ids})[:_MOST_ABOVE]
            tokens = tokens[~high]
        out.ids += np.bincount(tokens, minlength=self.vocab_size)


class IndexRows:
    """Rows of a shard's index: a small one is read at once, of a large one what is asked for.

    Args:
      storage: the dataset's root.
      shard: whose index.
    """

    def __init__(self, storage: Storage, shard: ShardEntry) -> None:
        self._storage = storage
        self.shard = shard
        self._columns = shard.records + 1
        size = HEADER_BYTES + 4 * 8 * self._columns
        if shard.index_size != size:
            raise self.fault(
                f"the manifest gives it {shard.index_size:,} bytes, and {shard.records:,} records {size:,}"
            )
        whole = shard.index_size <= 4 * 8 * _RECORDS_AT_ONCE
        self._table: Ints | None = None
        data = self._range(0, size + 1 if whole else HEADER_BYTES)
        found = len(data) if whole else self._size()
        if found != size:
            raise self.fault(f"it has {'more than ' * (found > size)}{min(found, size):,} bytes, and {size:,} are due")
        if data[:HEADER_BYTES] != npy_header(self._columns):
            raise self.fault("its header is not that of an index")
        if whole:
            self._table = np.frombuffer(data, dtype="<i8", offset=HEADER_BYTES).reshape(4, self._columns)

    def read(self, row: int, begin: int, end: int) -> Ints:
        """Columns [begin, end) of a row: int64; what is above 2^63 is negative."""
        if self._table is not None:
            return self._table[row, begin:end]
        at = HEADER_BYTES + 8 * (row * self._columns + begin)
        data = self._range(at, at + 8 * (end - begin))
        if len(data) != 8 * (end - begin):
            raise self.fault(f"it ends before byte {at + 8 * (end - begin):,}")
        return np.frombuffer(data, dtype="<i8")

    def fault(self, what: str) -> DatasetError:
        """An error about the index, as one sentence."""
        return DatasetError(f"{self._storage.url_of(self.shard.index_path)}: {what}; run `pileshard verify`")

    def _size(self) -> int:
        try:
            return self._storage.size(self.shard.index_path)
        except FileNotFoundError:
            raise self.fault("the index is missing") from None

    def _range(self, start: int, end: int) -> bytes:
        try:
            return self._storage.read_range(self.shard.index_path, start, end)
        except FileNotFoundError:
            raise self.fault("the index is missing") from None
