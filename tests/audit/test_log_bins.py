"""Bins of lengths: each number in its own, narrow as stated, and quantiles within the stated error."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from pileshard.audit.log_bins import Histogram, LogBins
from pileshard.audit.shard_counts import DENSITY, LENGTHS

BINS = st.sampled_from([LENGTHS, DENSITY, LogBins(exact=2, fine=2), LogBins(exact=5, fine=3)])
VALUES = st.one_of(
    st.integers(0, 2**53 - 1),
    st.integers(0, 40_000),
    st.integers(0, 52).flatmap(lambda power: st.integers(max(0, 2**power - 2), 2**power + 2)),
)


@given(BINS, st.lists(VALUES, min_size=1, max_size=50))
def test_every_number_is_in_its_bin_and_no_bin_is_wide(bins: LogBins, values: list[int]) -> None:
    numbers = bins.number(np.array(values, dtype=np.int64))
    low, end = bins.edges(numbers)
    for value, first, last in zip(values, low.tolist(), end.tolist(), strict=True):
        assert first <= value < last
        assert last - first == 1 if value < 1 << bins.exact else (last - first) << bins.fine <= first


@given(BINS, st.integers(0, 3000))
def test_bins_follow_upon_each_other(bins: LogBins, number: int) -> None:
    assume(number >> bins.fine < 45)
    low, end = bins.edges(np.array([number, number + 1]))
    assert end[0] == low[1]
    assume(low[1] < 2**53)
    assert bins.number(np.array([low[1] - 1, low[1]])).tolist() == [number, number + 1]


@given(st.lists(st.lists(VALUES, max_size=30), min_size=1, max_size=4), st.lists(st.integers(1, 1000), min_size=1))
def test_quantiles_are_within_the_stated_error(parts: list[list[int]], thousandths: list[int]) -> None:
    histogram = Histogram(LENGTHS)
    for part in parts:
        one = Histogram(LENGTHS)
        one.add(np.array(part, dtype=np.int64))
        histogram.add_histogram(one)
    values = sorted(value for part in parts for value in part)
    assert histogram.total == len(values)
    found = histogram.quantiles([share / 1000 for share in thousandths])
    if not values:
        assert found == []
        return
    assert (histogram.least, histogram.largest) == (values[0], values[-1])
    for share, got in zip(thousandths, found, strict=True):
        true = values[max(1, -(-share * len(values) // 1000)) - 1]
        assert got == true if true < 16_384 else abs(Fraction(got) - true) <= Fraction(true, 2000)
