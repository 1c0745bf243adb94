"""Rows that are packed: the parts of documents in them, and how such a row is kept until it becomes features.

    words of the dtype on disk    token 0 | token 1 | ... | token seq_len | marks ...

A row has seq_len + 1 places. Parts of documents stand in it end to end, and the end-of-document id fills the rest.
Bit i of the marks is set where a part, or the rest, begins at place i; the last one set is where the rest begins, at
place seq_len + 1 if there is none. So a row is a plain array that can be copied about, at 1/16 more memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.format.damage import DamageError
from pileshard.order.chunks import I64
from pileshard.order.even import EvenChunks
from pileshard.readers.chunk import ShardReader
from pileshard.readers.salvage import Ranges

#: Mean tokens of a part below which parts are copied by a gather instead of one by one.
_GATHER_BELOW = 64


class Parts(NamedTuple):
    """Parts of documents in rows: int64 arrays of one length, sorted by row and place.

    Attributes:
      row: number of the row in the chunk.
      place: the part's first place in the row.
      token: its first token in the shard.
      length: its tokens.
    """

    row: I64
    place: I64
    token: I64
    length: I64

    def of(self, first: int, last: int) -> Parts:
        """Those of the rows first to last, last not among them."""
        begin, end = np.searchsorted(self.row, (first, last))
        return Parts(*(part[begin:end] for part in self))


class Segments(NamedTuple):
    """What stands in rows: int64 arrays of one length, sorted by row and place; together they fill the rows.

    Attributes:
      row: number of the row.
      begin: first place.
      end: place after the last.
      number: of the document's part in its row, from 1; 0: the rest of the row.
    """

    row: I64
    begin: I64
    end: I64
    number: I64


def row_words(places: int, dtype: np.dtype[Any]) -> int:
    """Words of a packed row of so many places."""
    return places + -(-(places + 1) // (8 * dtype.itemsize))


def mark(parts: Parts, rows: int, places: int, out: npt.NDArray[Any]) -> None:
    """Writes the marks of rows.

    Args:
      parts: in the rows.
      rows: number of rows.
      places: of a row.
      out: [rows, words]; the words from `places` on are written.
    """
    filled = np.bincount(parts.row, weights=parts.length, minlength=rows).astype(np.int64)
    bits = np.zeros((rows, (out.shape[1] - places) * 8 * out.itemsize), dtype=np.uint8)
    bits[parts.row, parts.place] = 1
    bits[np.arange(rows), filled] = 1
    out[:, places:] = np.packbits(bits, axis=1).view(out.dtype)


def segments(rows: npt.NDArray[Any], places: int) -> Segments:
    """What the marks of packed rows tell: of [rows, words]."""
    marks = np.ascontiguousarray(rows[:, places:]).view(np.uint8)
    bits = 8 * marks.shape[1]
    # As booleans, whose places numpy finds several times as fast.
    row, begin = np.divmod(np.flatnonzero(np.unpackbits(marks).view(np.bool_)), bits)
    last = np.append(np.flatnonzero(row[1:] != row[:-1]), len(row) - 1)
    end = np.append(begin[1:], places)
    end[last] = places
    number = np.arange(len(row)) - np.append(0, last[:-1] + 1)[row] + 1
    number[last] = 0
    held = begin < end
    return Segments(row[held], begin[held], end[held], number[held])


class PackedRows(ABC):
    """Makes the rows of chunks.

    What rows are made of is kept for the last `remember` chunks that were read row by row: 32 bytes a part.

    Where the reader leaves out damage, rows that touch it hold nothing, and are told. A chunk is lost whole where the
    index is damaged so that its parts cannot be told.

    Attributes:
      places: of a row.
      words: of a row as it is kept.
    """

    #: Whether what stands in a row depends on all documents of its chunk.
    _rows_depend = False

    def __init__(self, chunks: EvenChunks, reader: ShardReader, eod_id: int, remember: int) -> None:
        self.places = chunks.seq_len + 1
        self.words = row_words(self.places, reader.dtype)
        self._chunks = chunks
        self._reader = reader
        self._eod = eod_id
        self._scratch = np.empty(0, dtype=reader.dtype)
        self._remember = remember
        self._remembered: OrderedDict[int, tuple[int, Parts] | None] = OrderedDict()
        self._expected: dict[int, tuple[int, Parts] | None] = {}

    @abstractmethod
    def parts(self, chunk: int) -> tuple[int, Parts]:
        """The shard of a chunk, and what its rows are made of."""

    @abstractmethod
    def _runs(self, parts: Parts) -> tuple[I64, I64, I64]:
        """What is read for parts: begin and length of each run of the shard's tokens, and the run of each part."""

    def expect(self, chunks: Iterable[tuple[int, int]]) -> None:
        """Says which chunks `fill` is called for next, and from which row on; remote ones are read ahead."""
        self._expected = {}
        ranges = []
        for chunk, first in chunks:
            found = self._expected[chunk] = self._find(chunk)
            if found is not None and len((parts := self._needed(found[1], first)).row):
                begins, sizes, _ = self._runs(parts)
                ranges += [(found[0], *run) for run in zip(begins.tolist(), sizes.tolist(), strict=True)]
        self._reader.expect(ranges)

    def expect_rows(self, rows: Iterable[tuple[int, int]]) -> None:
        """Says which rows (chunk, sample) `row` is called for next."""
        ranges = []
        for chunk, sample in rows:
            found = self._recall(chunk)
            if found is not None:
                parts = found[1].of(sample, sample + 1)
                ranges += [(found[0], *part) for part in zip(parts.token.tolist(), parts.length.tolist(), strict=True)]
        self._reader.expect(ranges)

    def fill(self, chunk: int, first: int, out: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        """Makes the rows of a chunk from row `first` on: [rows, words], contiguous.

        Returns:
          Which of them are lost to damage, None where none is.
        """
        found = self._expected.pop(chunk) if chunk in self._expected else self._find(chunk)
        if found is None:
            return self._all_lost(out)
        shard, parts = found
        needed = self._needed(parts, first)
        own = slice(*np.searchsorted(needed.row, (first, first + len(out))))
        parts = parts.of(first, first + len(out))
        lost: Ranges = []
        self._blank(parts._replace(row=parts.row - first), out)
        if len(needed.row):
            begins, sizes, run = self._runs(needed)
            at = np.cumsum(sizes) - sizes
            tokens = self._memory(int(sizes.sum()))
            for begin, size, target in zip(begins.tolist(), sizes.tolist(), at.tolist(), strict=True):
                lost += self._reader.read(shard, begin, tokens[target : target + size]) or ()
            if len(parts.row):
                _copy(
                    tokens,
                    parts.token + (at - begins)[run[own]],
                    (parts.row - first) * self.words + parts.place,
                    parts.length,
                    out.reshape(-1),
                )
        if not lost:
            return None
        if self._rows_depend and not self._reader.index_is_whole(shard):
            return self._all_lost(out)
        touched = np.zeros(len(out), dtype=bool)
        for low, high in lost:
            touched[parts.row[(parts.token < high) & (parts.token + parts.length > low)] - first] = True
        self._empty(out, touched)
        return touched

    def row(self, chunk: int, sample: int, out: npt.NDArray[Any]) -> bool:
        """Makes one row, reading its own tokens alone: [words]. Returns whether it is lost to damage."""
        found = self._recall(chunk)
        if found is None:
            self._all_lost(out[None])
            return True
        shard, parts = found[0], found[1].of(sample, sample + 1)
        self._blank(parts._replace(row=np.zeros_like(parts.row)), out[None])
        lost = False
        for place, token, length in zip(*(part.tolist() for part in parts[1:]), strict=True):
            lost |= bool(self._reader.read(shard, token, out[place : place + length]))
        if lost:
            self._all_lost(out[None])
        return lost

    def _needed(self, parts: Parts, first: int) -> Parts:
        """What is read for a chunk's rows from row `first` on."""
        return parts if self._rows_depend else parts.of(first, self._chunks.chunk_samples)

    def _find(self, chunk: int) -> tuple[int, Parts] | None:
        """What `parts` tells, None where the index is damaged and that is left out."""
        try:
            return self.parts(chunk)
        except DamageError:
            self._reader.refresh(int(self._chunks.bounds(chunk)[0]))
        try:
            return self.parts(chunk)
        except DamageError as damage:
            if self._reader.left_out is None:
                raise
            self._reader.left_out.met([damage])
            return None

    def _all_lost(self, out: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        lost = np.ones(len(out), dtype=bool)
        self._empty(out, lost)
        return lost

    def _empty(self, out: npt.NDArray[Any], lost: npt.NDArray[np.bool_]) -> None:
        nothing = np.empty(0, dtype=np.int64)
        row = np.empty((1, out.shape[1]), dtype=out.dtype)
        self._blank(Parts(nothing, nothing, nothing, nothing), row)
        out[lost] = row

    def _recall(self, chunk: int) -> tuple[int, Parts] | None:
        if chunk not in self._remembered:
            self._remembered[chunk] = self._find(chunk)
            if len(self._remembered) > self._remember:
                self._remembered.popitem(last=False)
        self._remembered.move_to_end(chunk)
        return self._remembered[chunk]

    def _blank(self, parts: Parts, out: npt.NDArray[Any]) -> None:
        out[:, : self.places] = self._eod
        mark(parts, len(out), self.places, out)

    def _memory(self, tokens: int) -> npt.NDArray[Any]:
        """Room for so many tokens, which the next call uses again."""
        if len(self._scratch) < tokens:
            self._scratch = np.empty(tokens + tokens // 4, dtype=self._reader.dtype)
        return self._scratch[:tokens]


def _copy(source: npt.NDArray[Any], begins: I64, targets: I64, lengths: I64, out: npt.NDArray[Any]) -> None:
    """Copies parts from one array to places of another."""
    total = int(lengths.sum())
    if total >= _GATHER_BELOW * len(lengths):
        for begin, target, length in zip(begins.tolist(), targets.tolist(), lengths.tolist(), strict=True):
            out[target : target + length] = source[begin : begin + length]
        return
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    out[np.repeat(targets, lengths) + within] = source[np.repeat(begins, lengths) + within]
