"""Counts of whole numbers in bins that are one wide at first and then grow with the number: small, and nearly exact.

A number below 2^exact has a bin of its own. Above, each octave [2^e, 2^(e+1)) is cut into 2^fine bins of one width, so
a bin is at most 2^-fine of its numbers wide, and its middle within half of that of each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LogBins:
    """How numbers fall into bins.

    Attributes:
      exact: numbers below 2^exact have a bin each.
      fine: log2 of the bins of an octave above; at most `exact`.
    """

    exact: int
    fine: int

    def number(self, values: npt.NDArray[Any]) -> Ints:
        """The bin of each value: int64, of values 0 <= value < 2^53."""
        values = values.astype(np.int64, copy=False)
        large = values >= 1 << self.exact
        if not large.any():
            return values
        out = values.copy()
        above = values[large]
        octave = np.frexp(above.astype(np.float64))[1].astype(np.int64) - 1
        within = (above >> (octave - self.fine)) - (1 << self.fine)
        out[large] = (1 << self.exact) + ((octave - self.exact) << self.fine) + within
        return out

    def edges(self, numbers: npt.NDArray[Any]) -> tuple[Ints, Ints]:
        """The lowest value of each bin, and the lowest one above it: int64 each."""
        numbers = np.asarray(numbers, dtype=np.int64)
        over = np.maximum(numbers - (1 << self.exact), 0)
        octave = self.exact + (over >> self.fine)
        width = np.int64(1) << (octave - self.fine)
        low = (np.int64(1) << octave) + (over & ((1 << self.fine) - 1)) * width
        small = numbers < 1 << self.exact
        return np.where(small, numbers, low), np.where(small, numbers + 1, low + width)


class Histogram:
    """Counts of values in bins, and their least and largest.

    Args:
      bins: of the values.
    """

    def __init__(self, bins: LogBins) -> None:
        self.bins = bins
        self.counts: Ints = np.zeros(0, dtype=np.int64)
        self.least: int | None = None
        self.largest: int | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Counts values: integers below 2^53."""
        if not len(values):
            return
        self._merge(np.bincount(self.bins.number(values)), int(values.min()), int(values.max()))

    def add_histogram(self, other: Histogram) -> None:
        """Counts what another one has counted."""
        if other.least is not None and other.largest is not None:
            self._merge(other.counts, other.least, other.largest)

    def _merge(self, counts: Ints, least: int, largest: int) -> None:
        if len(counts) > len(self.counts):
            self.counts = np.concatenate((self.counts, np.zeros(len(counts) - len(self.counts), dtype=np.int64)))
        self.counts[: len(counts)] += counts
        self.least = least if self.least is None else min(self.least, least)
        self.largest = largest if self.largest is None else max(self.largest, largest)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def quantiles(self, shares: list[float]) -> list[float]:
        """For each share, the least value that at least this share of the values does not exceed.

        Exact below 2^exact, else the middle of its bin. Without values, an empty list.
        """
        if self.least is None or self.largest is None:
            return []
        below = np.cumsum(self.counts)
        total = int(below[-1])
        # Ranks in integers of a millionth: 0.07 * 100 is 7.000000000000001.
        ranks = [max(1, -(-round(share * 1_000_000) * total // 1_000_000)) for share in shares]
        low, high = self.bins.edges(np.searchsorted(below, ranks))
        middle = np.where(high - low > 1, (low + high) / 2, low)
        return [float(value) for value in np.clip(middle, self.least, self.largest)]
