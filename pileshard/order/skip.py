"""Positions that a run leaves out, such as the batches around a loss spike.

    positions    0 1 2 3 4 5 6 7 8 9 ...       skip [(2, 4), (7, 8)]: 2, 3 and 7 are left out
    run index    0 1     2 3 4   5 6 ...       what steps and ranks count by, so that every step stays full

Both directions are computed from the sorted ranges. The order is not concerned: positions keep their meaning.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pileshard.errors import OptionError
from pileshard.order.chunks import I64


@dataclass(frozen=True)
class Skip:
    """Ranges of positions to leave out.

    Attributes:
      ranges: (first, last): first is left out, last is not; ascending, apart from each other.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    _firsts: I64 = field(init=False, repr=False, compare=False)
    _skipped: I64 = field(init=False, repr=False, compare=False)  # in the ranges before each, and in all

    def __post_init__(self) -> None:
        """Counts what is left out before each range."""
        firsts, lasts = (np.array([pair[side] for pair in self.ranges], dtype=np.int64) for side in (0, 1))
        object.__setattr__(self, "_firsts", firsts)
        object.__setattr__(self, "_skipped", np.concatenate([[0], np.cumsum(lasts - firsts)]).astype(np.int64))

    @staticmethod
    def of(ranges: Iterable[Sequence[int]]) -> Skip:
        """Ranges in any order; they may touch and overlap.

        Raises:
          OptionError: one is no range of positions.
        """
        if not isinstance(ranges, Iterable) or isinstance(ranges, str):
            raise OptionError(f"skip is {ranges!r}; it takes a list of ranges, such as [(1000, 2000)]")
        merged: list[tuple[int, int]] = []
        for first, last in sorted(_range(pair) for pair in ranges):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return Skip(tuple(merged))

    def index(self, position: int) -> int:
        """How many positions before this one are taken: the run index of the first one from there on that is."""
        at = int(np.searchsorted(self._firsts, position, side="right"))
        if not at:
            return position
        first, last = self.ranges[at - 1]
        return position - int(self._skipped[at - 1]) - min(position, last) + first

    def positions(self, indices: npt.ArrayLike) -> I64:
        """The positions of run indices: int64 of the same shape."""
        numbers = np.asarray(indices, dtype=np.int64)
        # Range k comes before every run index from firsts[k] - skipped[k] on.
        return numbers + self._skipped[np.searchsorted(self._firsts - self._skipped[:-1], numbers, side="right")]

    def position(self, index: int) -> int:
        """The position of a run index."""
        return int(self.positions(index))

    def next_range(self, position: int) -> int | None:
        """Where the next range from a position on begins, None where no more comes."""
        at = int(np.searchsorted(self._firsts, position))
        return self.ranges[at][0] if at < len(self.ranges) else None


def _range(pair: Sequence[int]) -> tuple[int, int]:
    try:
        first, last = map(operator.index, pair)
    except (TypeError, ValueError):
        raise OptionError(f"skip: {pair!r} is no range; it takes (first, last) pairs of positions") from None
    if last >= 1 << 62:
        raise OptionError(f"skip: {last} is no position; it must be below 2^62")
    if not 0 <= first < last:
        raise OptionError(f"skip: ({first}, {last}) holds no position; first is at least 0 and last is above first")
    return first, last


#: Nothing is left out.
NO_SKIP = Skip()
