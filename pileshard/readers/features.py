"""What a training step takes, made from rows as they were read: (inputs, labels), or the features of packed rows.

    row of seq_len + 1    a a a . b b b b . c | c        "." ends a document; the last place is a label alone
    input_ids             a a a . b b b b . c
    labels                a a . b b b b . c c
    segment_ids           1 1 1 1 2 2 2 2 2 3            documents of the row from 1 on; 0: nothing stands there
    positions             0 1 2 3 0 1 2 3 4 0            from the document's first token in the row on
    loss_mask             1 1 1 0 1 1 1 1 0 1            0: the label is another document's, or nothing

Names and numbers are as in T5X and MaxText: int32, segments from 1, 0 for padding. A row that begins inside a document
counts its positions from 0 there, as if the document began there. Padding holds the end-of-document id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.corpus import CorpusPlan
from pileshard.order.chunks import I64
from pileshard.readers.packed import Segments, segments

I32 = npt.NDArray[np.int32]

PAIR = ("inputs", "labels")
FEATURES = ("input_ids", "labels", "segment_ids", "positions", "loss_mask")

#: Tokens worked on at a time, so that temporaries stay in the cache.
_SOME_TOKENS = 1 << 16


class Features:
    """Makes a plan's rows into what a training step takes.

    Attributes:
      names: of the arrays: `PAIR` or `FEATURES`.
      needs_positions: whether rows' positions in the order matter.
    """

    def __init__(self, plan: CorpusPlan, segment_ids: bool = False) -> None:
        self.names = FEATURES if segment_ids or plan.packing != "concat" else PAIR
        self.needs_positions = plan.fim is not None
        self._plan = plan
        self._eod = plan.corpus.manifest.eod_id
        self._packed = plan.packing != "concat"

    def make(
        self,
        rows: npt.NDArray[Any],
        positions: I64 | None = None,
        empty: Callable[..., npt.NDArray[Any]] = np.empty,
    ) -> tuple[I32, ...]:
        """Arrays in the order of `names`, each int32 [..., seq_len].

        Args:
          rows: [..., words] as they were read.
          positions: of the rows in the order, int64 [...], if they matter.
          empty: makes the arrays, from shape and dtype.
        """
        seq_len = self._plan.seq_len
        out = tuple(empty((*rows.shape[:-1], seq_len), np.int32) for _ in self.names)
        if self.names is PAIR and not self.needs_positions:
            out[0][...] = rows[..., :-1]
            out[1][...] = rows[..., 1:]
            return out
        flat = rows.reshape(-1, rows.shape[-1])
        targets = [array.reshape(-1, seq_len) for array in out]
        places = None if positions is None else positions.reshape(-1)
        some = max(1, _SOME_TOKENS // seq_len)
        for at in range(0, len(flat), some):
            here = slice(at, at + some)
            self._make(flat[here], places[here] if places is not None else None, [array[here] for array in targets])
        return out

    def clear(self, arrays: tuple[I32, ...], rows: npt.NDArray[np.bool_]) -> None:
        """Empties rows, so that they count for nothing; a pair (inputs, labels) stays as it is.

        Args:
          arrays: as `make` gave them.
          rows: which of them, bool [...].
        """
        if self.names is FEATURES:
            for name, array in zip(self.names, arrays, strict=True):
                array[rows] = self._eod if name in ("input_ids", "labels") else 0

    def _make(self, rows: npt.NDArray[Any], positions: I64 | None, out: list[I32]) -> None:
        width = self._plan.seq_len + 1
        found = segments(rows, width) if self._packed else self._documents(rows)
        tokens = rows[:, :width]
        if self._plan.fim is not None:
            assert positions is not None
            tokens = self._rearranged(tokens, found, positions)
        out[0][...] = tokens[:, :-1]
        out[1][...] = tokens[:, 1:]
        if self.names is FEATURES:
            tell_apart(found, *out[2:])

    def _documents(self, rows: npt.NDArray[Any]) -> Segments:
        """Documents in rows of [rows, seq_len + 1], told apart by the end-of-document id."""
        width = rows.shape[1]
        begins = np.empty(rows.shape, dtype=bool)
        begins[:, 0] = True
        np.equal(rows[:, :-1], self._eod, out=begins[:, 1:])
        row, begin = np.divmod(np.flatnonzero(begins), width)
        first = np.flatnonzero(begin == 0)
        end = np.append(begin[1:], 0)
        end[end == 0] = width
        return Segments(row, begin, end, np.arange(len(row)) - first[row] + 1)

    def _rearranged(self, rows: npt.NDArray[Any], found: Segments, positions: I64) -> I32:
        """Rows with their documents' parts prepared for filling in the middle."""
        assert self._plan.fim is not None
        tokens = rows.astype(np.int32)
        flat, width = tokens.reshape(-1), tokens.shape[1]
        held = np.flatnonzero(found.number)
        row, begin, end, number = (part[held] for part in found)
        ended = flat[row * width + end - 1] == self._eod
        self._plan.fim.apply(flat, self._plan.seed, row * width + begin, end - begin - ended, positions[row], number)
        return tokens


def tell_apart(found: Segments, segment_ids: I32, positions: I32, loss_mask: I32) -> None:
    """Writes which document each input belongs to, where in it, and whether its label does too.

    Args:
      found: what stands in rows of seq_len + 1 places.
      segment_ids: int32 [rows, seq_len], contiguous, as are the others.
      positions: of the same shape.
      loss_mask: of the same shape.
    """
    rows, seq_len = segment_ids.shape
    inside = found.begin < seq_len
    row, begin, end, number = (part[inside] for part in found)
    starts = row * seq_len + begin
    lengths = np.minimum(end, seq_len) - begin
    segment_ids.reshape(-1)[...] = np.repeat(number.astype(np.int32), lengths)
    place = np.arange(rows * seq_len, dtype=np.int32)
    place -= np.repeat(starts.astype(np.int32), lengths)
    counts = loss_mask.reshape(-1)
    if number.all():
        counts[...] = 1
    else:
        counts[...] = np.repeat((number > 0).astype(np.int32), lengths)
        place *= counts
    positions.reshape(-1)[...] = place
    # A document's last token in the row predicts nothing of it, unless its row's last place is still its own.
    counts[(row * seq_len + end - 1)[end <= seq_len]] = 0
