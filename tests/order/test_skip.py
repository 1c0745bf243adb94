"""What is left out is exactly what was asked, the rest keeps its order, and every step stays full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import OptionError
from pileshard.order import Plan, Skip
from pileshard.order.skip import NO_SKIP

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)).map(lambda r: (r[0], r[0] + r[1])), max_size=8)


def kept(ranges: list[tuple[int, int]], end: int) -> list[int]:
    return [p for p in range(end) if not any(first <= p < last for first, last in ranges)]


@given(ranges=RANGES)
@settings(max_examples=300)
def test_index_and_position_are_the_places_among_what_is_kept(ranges: list[tuple[int, int]]) -> None:
    skip = Skip.of(ranges)
    left = kept(ranges, 500)
    assert skip.positions(np.arange(len(left))).tolist() == left
    for position in range(420):
        assert skip.index(position) == sum(p < position for p in left)
    for index, position in enumerate(left):
        assert skip.position(index) == position
        assert skip.index(position) == index


@given(ranges=RANGES)
def test_ranges_are_ascending_and_apart(ranges: list[tuple[int, int]]) -> None:
    skip = Skip.of(ranges)
    flat = [edge for pair in skip.ranges for edge in pair]
    assert flat == sorted(set(flat))
    assert Skip.of(reversed(ranges)) == skip
    for position in range(0, 400, 7):
        assert skip.next_range(position) == next((first for first, _ in skip.ranges if first >= position), None)


def test_nothing_skipped_changes_nothing() -> None:
    assert Skip.of([]) == NO_SKIP
    assert [NO_SKIP.position(n) for n in (0, 5, 1 << 60)] == [NO_SKIP.index(n) for n in (0, 5, 1 << 60)]
    assert NO_SKIP.next_range(0) is None
    assert Skip.of([(1 << 60, (1 << 60) + 5)]).position((1 << 60) + 1) == (1 << 60) + 6


@pytest.mark.parametrize("pair", [(3, 3), (4, 3), (-1, 3), (1,), (1, 2, 3), 5, ("a", "b"), (1.5, 3), None])
def test_what_is_no_range_is_refused(pair: Any) -> None:
    with pytest.raises(OptionError, match="skip"):
        Skip.of([pair])


@given(
    ranges=RANGES,
    start=st.integers(0, 350),
    world=st.sampled_from([1, 2, 3, 4]),
    per_rank=st.integers(1, 5),
    drop=st.booleans(),
)
@settings(max_examples=200)
def test_ranks_take_what_is_kept_in_full_steps(
    ranges: list[tuple[int, int]], start: int, world: int, per_rank: int, drop: bool
) -> None:
    plan = Plan("an id", np.array([4 * 400 + 1]), seq_len=4)
    assert plan.samples_per_epoch == 400
    batch = world * per_rank
    schedules = [
        plan.schedule(batch, rank=rank, world_size=world, start=start, skip=ranges, drop_remainder=drop)
        for rank in range(world)
    ]
    expected = [p for p in kept(ranges, 400) if p >= start]
    if drop:
        expected = expected[: len(expected) // batch * batch]
    steps = {schedule.steps for schedule in schedules}
    assert steps == {-(-len(expected) // batch)} == {plan.steps(batch, start=start, skip=ranges, drop_remainder=drop)}
    for step in range(steps.pop()):
        taken = [schedule.positions(step).tolist() for schedule in schedules]
        assert sorted(p for own in taken for p in own) == expected[step * batch : (step + 1) * batch]
        assert [len(own) for own in taken] == [schedule.rows(step) for schedule in schedules]
        at = {schedule.position(step) for schedule in schedules}
        assert at == {expected[step * batch]}
        # Resumed there, each rank goes on with the same rows.
        for rank, own in enumerate(taken):
            again = plan.schedule(batch, rank=rank, world_size=world, start=at.copy().pop(), skip=ranges)
            resumed = again.skip.positions(again._own(0) + world * np.arange(len(own)))
            assert resumed.tolist() == own
    # Where an ended run stands means the same with other ranges: its end.
    assert schedules[0].position(1000) == 400
    assert plan.steps(batch, start=400) == plan.steps(batch, start=400, skip=ranges) == 0
