"""What takes the place of rows that are lost to damage, where a row cannot be told to count for nothing.

A pair (inputs, labels) has no mask, so a sound row stands in for a lost one. Which one depends on the lost row and on
which rows are damaged, and on nothing else: not on the rank, the batch or where the run began.

    chunk     | s0 | s1 | xx | s3 | xx | s5 | ...     the lost rows of a chunk take its sound ones in turn:
    read as   | s0 | s1 | s0 | s3 | s1 | s5 |         row 2 is row 0 again, row 4 is row 1

Where a whole chunk is lost, the same row of another chunk of the epoch stands in, drawn by a hash, so that sources keep
their shares on average. After 100 chunks in which nothing is sound the reader stops.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.errors import DatasetError
from pileshard.format.damage import remedy
from pileshard.order.chunks import I64
from pileshard.order.permutation import derive_key, mixed
from pileshard.order.plan import Plan
from pileshard.readers.chunk import ShardReader
from pileshard.readers.salvage import Ranges

#: Chunks that are looked at for one lost row.
MOST_CHUNKS = 100

#: Chunks whose lost rows, and lost chunks whose next one, are remembered.
_REMEMBERED = 4096

Bools = npt.NDArray[np.bool_]


def lost_rows(ranges: Ranges, begin: int, rows: int, seq_len: int) -> Bools:
    """Which rows of a chunk touch lost tokens: [rows].

    Args:
      ranges: of the shard's tokens that are lost.
      begin: first token of the chunk.
      rows: of it, seq_len + 1 tokens each, of which neighbours share one.
      seq_len: tokens from a row to the next.
    """
    lost = np.zeros(rows, dtype=bool)
    for low, high in ranges:
        lost[max(0, (low - begin - 1) // seq_len) : max(0, (high - 1 - begin) // seq_len + 1)] = True
    return lost


class Relief:
    """Finds and reads the rows that stand in for lost ones, of chunks that are cut from the tokens as they stand."""

    def __init__(self, plan: Plan, shards: ShardReader) -> None:
        """Reads nothing yet."""
        self._plan = plan
        self._shards = shards
        self._lost: OrderedDict[int, Bools] = OrderedDict()
        self._next: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    def fill(self, positions: I64, rows: npt.NDArray[Any], lost: I64) -> None:
        """Writes stand-ins.

        Args:
          positions: of the lost rows.
          rows: [rows, seq_len + 1], contiguous each.
          lost: which of them are lost, as many as positions.

        Raises:
          DatasetError: nothing sound was found.
        """
        where = self._plan.rows(positions)
        epochs = positions // self._plan.samples_per_epoch
        for number, chunk, sample, epoch in zip(
            lost.tolist(), where.chunk.tolist(), where.sample.tolist(), epochs.tolist(), strict=True
        ):
            self._fill(chunk, sample, epoch, rows[number])

    def _fill(self, chunk: int, sample: int, epoch: int, row: npt.NDArray[Any]) -> None:
        own = chunk
        for attempt in range(MOST_CHUNKS):
            if attempt:
                chunk = self._another(own, epoch, attempt)
            lost = self._lost_rows(chunk)
            sound = np.flatnonzero(~lost)
            if not sound.size:
                continue
            chosen = int(sound[int(lost[:sample].sum()) % sound.size]) if lost[sample] else sample
            shard, token = (int(part) for part in self._plan.chunks.locate(chunk))
            if not self._shards.read(shard, token + chosen * self._plan.seq_len, row):
                return
        root = self._shards.storage.url
        raise DatasetError(
            f"{root}: damaged: none of {MOST_CHUNKS} chunks has a sound row to stand in for a lost one; {remedy(root)}"
        )

    def _lost_rows(self, chunk: int) -> Bools:
        found = self._lost.get(chunk)
        if found is None:
            plan = self._plan
            shard, token = (int(part) for part in plan.chunks.locate(chunk))
            tokens = np.empty(plan.chunk_samples * plan.seq_len + 1, dtype=self._shards.dtype)
            ranges = self._shards.read(shard, token, tokens)
            found = self._lost[chunk] = lost_rows(ranges, token, plan.chunk_samples, plan.seq_len)
            if len(self._lost) > _REMEMBERED:
                self._lost.popitem(last=False)
        self._lost.move_to_end(chunk)
        return found

    def _another(self, chunk: int, epoch: int, attempt: int) -> int:
        key = chunk, epoch, attempt
        found = self._next.get(key)
        if found is None:
            plan = self._plan
            secret = np.uint64(derive_key(plan.seed, epoch, "stand-in"))
            drawn = mixed(mixed(np.array([chunk], dtype=np.uint64) + secret) + np.uint64(attempt))
            place = epoch * plan.order.period + int(drawn[0] % np.uint64(plan.order.period))
            found = self._next[key] = int(plan.order.chunks_at(np.array([place]))[0])
            if len(self._next) > _REMEMBERED:
                self._next.popitem(last=False)
        return found
