"""The fair sequence: never one or more away from a share, at any place, from any start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pileshard.order.fair import RAREST, FairSequence, _fair_block
from pileshard.order.presets import PILE_EPOCHS

SHARES = st.one_of(
    st.lists(st.integers(1, 60), min_size=1, max_size=24),
    st.lists(st.integers(10_000, 10**6), min_size=1, max_size=24),
    st.lists(st.integers(0, 9).map(lambda n: 2**n), min_size=1, max_size=12),
)


def deviations(shares: list[int], start: int, count: int) -> np.ndarray:
    """Largest difference from each source's share over the places, in units of places; checks the turns."""
    total = sum(shares)
    places = FairSequence(tuple(shares)).at(np.arange(start, start + count, dtype=np.int64))
    worst = []
    for source, share in enumerate(shares):
        at = np.flatnonzero(places.source == source)
        assert np.array_equal(places.turn[at], places.turn[at][:1] + np.arange(len(at)))
        if not len(at):
            continue
        before = int(places.turn[at[0]])
        stood = np.zeros(count, dtype=np.int64)
        stood[at] = 1
        counts = before + np.concatenate([[0], np.cumsum(stood)])
        # Exact: counts * total and share * n as Python integers.
        worst.append(max(abs(int(c) * total - share * n) for n, c in enumerate(counts, start)) / total)
    return np.array(worst)


@settings(max_examples=60)
@given(shares=SHARES, start=st.integers(0, 3000) | st.integers(0, 10**10))
@example(shares=[44, 4, 28, 47, 46, 2, 5], start=0)
def test_no_source_is_ever_one_away_from_its_share(shares: list[int], start: int) -> None:
    assert deviations(shares, start, 3000).max() < 1


@settings(max_examples=20)
@given(shares=SHARES, start=st.integers(0, 10**9), cut=st.integers(1, 2999))
def test_the_sequence_is_the_same_wherever_it_is_begun(shares: list[int], start: int, cut: int) -> None:
    numbers = np.arange(start, start + 3000, dtype=np.int64)
    whole = FairSequence(tuple(shares)).at(numbers)
    _fair_block.cache_clear()
    tail = FairSequence(tuple(shares)).at(numbers[cut:])
    assert np.array_equal(whole.source[cut:], tail.source)
    assert np.array_equal(whole.turn[cut:], tail.turn)


@settings(max_examples=20)
@given(shares=st.lists(st.integers(1, 60), min_size=1, max_size=24))
def test_a_period_gives_each_source_exactly_its_share(shares: list[int]) -> None:
    places = FairSequence(tuple(shares)).at(np.arange(sum(shares), dtype=np.int64))
    assert np.bincount(places.source, minlength=len(shares)).tolist() == shares


@settings(max_examples=15)
@given(
    rare=st.lists(st.integers(1, 15), min_size=1, max_size=6),
    often=st.lists(st.integers(10**6, 10**7), min_size=1, max_size=8),
    start=st.integers(0, 10**9),
)
def test_rare_sources_ride_with_the_heaviest_and_are_within_two(rare: list[int], often: list[int], start: int) -> None:
    shares = rare + often
    assert min(rare) < RAREST * sum(shares)
    worst = deviations(shares, start, 5000)
    assert worst.max() < 2


def test_rare_sources_are_not_starved() -> None:
    shares = (1, 3, 10**6, 2 * 10**6)
    places = FairSequence(shares).at(np.arange(sum(shares), dtype=np.int64))
    assert np.bincount(places.source).tolist() == list(shares)


def test_the_smallest_component_of_the_pile_comes_evenly() -> None:
    """Enron Emails: 0.14% of the mixture; its places are 1/w apart, give or take one place of the window."""
    gib = [227, 90, 101, 63, 56, 95, 51, 32, 23, 19, 11, 13, 6.4, 7.8, 5.5, 6.3, 4.6, 3.9, 3.7, 2.4, 1.9, 0.88]
    shares = [round(size * epochs * 1000) for size, epochs in zip(gib, PILE_EPOCHS.values(), strict=True)]
    worst = deviations(shares, 12_345_678, 20_000)
    assert worst.max() < 1
    places = FairSequence(tuple(shares)).at(np.arange(20_000, dtype=np.int64))
    gaps = np.diff(np.flatnonzero(places.source == len(shares) - 1))
    assert gaps.max() <= 2 * sum(shares) / shares[-1] + 1


@pytest.mark.parametrize("shares", [(), (0, 1), (1 << 40,)])
def test_shares_out_of_range_are_refused(shares: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="positive integers"):
        FairSequence(shares)
