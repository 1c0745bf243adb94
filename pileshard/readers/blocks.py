"""Blocks of batches: what the readers take at a time, so that no Python runs a row.

The first blocks are small, so that a first batch does not wait for the rest of a large one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.order.schedule import Schedule
from pileshard.readers.rows import RowReader

#: Tokens of a block, and most batches in it: 128 batches of 8 x 2048. That is 4 MB of uint16; the tf.data reader makes
#: two int32 arrays of it, 17 MB, and one block is filled while the last is still held. Half of it costs 5% of speed.
BLOCK_TOKENS = 1 << 21
MOST_BATCHES = 512


def blocks(
    rows: RowReader, schedule: Schedule, dtype: np.dtype[Any], *, first: int = 0, every: int = 1
) -> Iterator[npt.NDArray[Any]]:
    """Batches of a schedule in order, a block at a time; closes the rows at the end.

    Args:
      rows: the rank's, at the schedule's start.
      schedule: the steps.
      dtype: on disk.
      first: the first step wanted.
      every: the distance to the next one.

    Yields:
      [batches, rows, words] rows as they are read (`RowReader.words`), in the dtype on disk and in memory that the next
      block reuses. A last batch that is not full is a block of its own.
    """
    width = rows.words
    batch, steps = schedule.batch, schedule.steps
    most = max(1, min(MOST_BATCHES, BLOCK_TOKENS // (batch * rows.plan.seq_len)))
    memory = np.empty((most * batch, width), dtype=dtype)
    step, count = first, 1
    try:
        rows.advance(first * batch)
        while steps is None or step < steps:
            held = batch
            if steps is not None:
                count = min(count, -(-(steps - step) // every))
                last = schedule.rows(step + (count - 1) * every)
                if last < batch:
                    held, count = (last, 1) if count == 1 else (batch, count - 1)
            block = memory[: count * held]
            if every == 1:
                rows.fill(block)
            else:
                for at in range(0, len(block), held or 1):
                    rows.fill(block[at : at + held])
                    rows.advance((every - 1) * batch)
            yield block.reshape(count, held, width)
            step += count * every
            count = min(2 * count, most)
    finally:
        rows.close()


class _Lease:
    """Memory lent to whoever holds an array made from it; it goes back to the pool with the last reference."""

    def __init__(self, pool: list[npt.NDArray[np.uint8]], memory: npt.NDArray[np.uint8]) -> None:
        self._pool = pool
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._pool.append(self._memory)


class Pool:
    """Arrays whose memory is used again once nobody holds them: fresh memory costs more than what is written to it.

    Arrays begin at multiples of 64 bytes; TensorFlow takes such an array over as it is and holds it as long as it
    needs, and copies any other.
    """

    def __init__(self) -> None:
        self._free: list[npt.NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of undefined content."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = self._free.pop() if self._free else np.empty(0, dtype=np.uint8)
        if len(memory) < size:
            raw = np.empty(size + 64, dtype=np.uint8)
            begin = -raw.ctypes.data % 64
            memory = raw[begin : begin + size]
        return np.asarray(_Lease(self._free, memory))[:size].view(dtype).reshape(shape)
