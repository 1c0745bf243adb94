"""Which rows a rank takes in which step: global batches over the global order, divided among ranks.

positions   p0 p0+1 p0+2 ...                        global batch t of size B begins at p0 + t * B
rank r of W takes those with p % W == r             B / W of them in every batch, wherever p0 stands

Where positions are left out (`skip`), p is the run index: the number of the position among those that are taken.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from pileshard.errors import OptionError
from pileshard.order.chunks import I64
from pileshard.order.skip import NO_SKIP, Skip

DEFAULT_BATCH = 8


def whole(name: str, value: SupportsIndex, least: int, bits: int = 62) -> int:
    """An option that must be a whole number of at least `least`, and below 2^bits.

    Raises:
      OptionError: it is not.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise OptionError(f"{name} is {value!r}; it must be a whole number") from None
    if number >= 1 << bits:
        raise OptionError(f"{name} is {value}; it must be below 2^{bits}")
    if isinstance(value, bool) or number < least:
        raise OptionError(f"{name} is {value}; it must be a whole number of at least {least}")
    return number


def flag(name: str, value: bool) -> bool:
    """An option that is either on or off.

    Raises:
      OptionError: it is neither True nor False: the text "false", say, which Python takes for true.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise OptionError(f"{name} is {value!r}; it must be True or False")
    return bool(value)


def global_batch(batch_size: int | None, global_batch_size: int | None, world_size: int) -> int:
    """Rows of a step over all ranks, from whichever of the two sizes is given (neither: 8 rows a rank).

    Raises:
      OptionError: the global batch does not divide among the ranks, or the two contradict each other.
    """
    if global_batch_size is None:
        rows = DEFAULT_BATCH if batch_size is None else whole("batch_size", batch_size, 1, bits=24)
        return rows * world_size
    total = whole("global_batch_size", global_batch_size, 1, bits=32)
    if total % world_size:
        raise OptionError(
            f"global_batch_size {total} does not divide among {world_size} ranks; take a multiple of {world_size}"
        )
    if batch_size is not None and batch_size * world_size != total:
        raise OptionError(
            f"batch_size {batch_size} on {world_size} ranks makes {batch_size * world_size}, not global_batch_size "
            f"{total}; give one of the two"
        )
    return total


@dataclass(frozen=True)
class Schedule:
    """The steps of a run, as one rank sees them.

    With drop_remainder a last global batch that is not full is left out. Without, it is kept, and every sample is
    taken exactly once: all ranks make the same number of steps, and in the last one a rank holds the rows of the rest
    that are its own, which may be one fewer than another's, or none at all (a batch of 0 rows).

    Attributes:
      start: the first position; the end itself where an ended run is resumed, which then makes no step.
      end: the position after the last, None: it never ends.
      global_batch: rows of a step over all ranks, a multiple of size.
      rank: 0 to size - 1.
      size: number of ranks.
      drop_remainder: whether a partial last batch is left out.
      skip: positions that are left out.

    Raises:
      OptionError: it starts beyond its end.
    """

    start: int
    end: int | None
    global_batch: int
    rank: int
    size: int
    drop_remainder: bool = True
    skip: Skip = NO_SKIP

    def __post_init__(self) -> None:
        """Refuses a start beyond the end, unless all positions between the two are left out."""
        if self.end is not None and self.skip.index(self.start) > self.skip.index(self.end):
            raise OptionError(
                f"start is {self.start:,}, and the run has {self.end:,} positions; start at {self.end:,} at most, or "
                "give more epochs"
            )

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on every rank; None: no end."""
        end = self._end
        if end is None:
            return None
        left = end - self._begin
        return left // self.global_batch if self.drop_remainder else -(-left // self.global_batch)

    @property
    def batch(self) -> int:
        """Rows of a full step on this rank."""
        return self.global_batch // self.size

    @property
    def first(self) -> int:
        """This rank's first position."""
        return self.skip.position(self._own(0))

    def position(self, step: int) -> int:
        """The position at which a step begins, on every rank: where to start to take that step next."""
        begin, end = self._begin + step * self.global_batch, self._end
        if self.end is not None and end is not None and begin >= end:
            return self.end
        return self.skip.position(begin)

    def rows(self, step: int) -> int:
        """Rows that this rank holds in a step."""
        begin, end = self._begin + step * self.global_batch, self._end
        if end is None or begin + self.global_batch <= end:
            return self.batch
        return max(0, -(-(end - self._own(step)) // self.size))

    def positions(self, step: int) -> I64:
        """This rank's positions in a step, ascending: int64 [rows(step)]."""
        return self.skip.positions(self._own(step) + self.size * np.arange(self.rows(step), dtype=np.int64))

    @property
    def _begin(self) -> int:
        """Run index of the start."""
        return self.skip.index(self.start)

    @property
    def _end(self) -> int | None:
        """Run index after the last."""
        return None if self.end is None else self.skip.index(self.end)

    def _own(self, step: int) -> int:
        """This rank's first run index in a step."""
        begin = self._begin + step * self.global_batch
        return begin + (self.rank - begin) % self.size
