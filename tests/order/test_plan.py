"""The order is a function of the position: complete, independent of ranks and batches, resumable anywhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import DatasetError, OptionError
from pileshard.order import Plan, global_batch
from pileshard.order.epochs import ShuffledEpochs

WORLDS = (1, 2, 3, 4, 6, 8, 12, 96)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    seq_len = draw(st.integers(1, 40))
    tokens = draw(st.lists(st.integers(0, 4000), min_size=1, max_size=8))
    tokens.append(draw(st.integers(seq_len + 1, 4000)))
    slots = draw(st.sampled_from([1, 2, 5, 12, 96, 768]))
    return Plan("an id", np.array(tokens), seed=draw(st.integers(0, 2**64 - 1)), seq_len=seq_len, slots=slots)


def large_plan(seed: int = 0, slots: int = 12) -> Plan:
    """Several windows of chunks of more than one sample."""
    plan = Plan("an id", np.full(20, 4 * 8 * 100 + 1), seed=seed, seq_len=4, slots=slots)
    assert plan.chunk_samples > 4
    assert plan.order.period > 3 * slots
    return plan


def brute_order(plan: Plan, epoch: int) -> list[tuple[int, int]]:
    """(chunk, sample) of each position of an epoch, by dealing out windows with loops."""
    count = plan.chunks.count
    order = ShuffledEpochs(plan.seed, count).chunks_at(np.arange(epoch * count, (epoch + 1) * count)).tolist()
    dealt = []
    for at in range(0, count, plan.slots):
        window = order[at : at + plan.slots]
        for sample in range(plan.chunk_samples):
            dealt += [(chunk, sample) for chunk in window]
    return dealt


@given(plan=plans(), epoch=st.integers(0, 5))
@settings(max_examples=60)
def test_each_sample_stands_exactly_once_in_an_epoch(plan: Plan, epoch: int) -> None:
    size = plan.samples_per_epoch
    rows = plan.rows(np.arange(epoch * size, (epoch + 1) * size))
    places = list(zip(rows.shard.tolist(), rows.first_token.tolist(), strict=True))
    assert len(set(places)) == size == plan.chunks.count * plan.chunk_samples
    tokens = plan.shard_tokens[rows.shard]
    assert (rows.first_token >= 0).all()
    assert (rows.first_token + plan.seq_len + 1 <= tokens).all()
    assert not (rows.first_token % plan.seq_len).any()


@given(plan=plans(), epoch=st.integers(0, 2))
@settings(max_examples=60)
def test_windows_are_dealt_side_by_side_and_read_across(plan: Plan, epoch: int) -> None:
    size = plan.samples_per_epoch
    rows = plan.rows(np.arange(epoch * size, (epoch + 1) * size))
    assert list(zip(rows.chunk.tolist(), rows.sample.tolist(), strict=True)) == brute_order(plan, epoch)


def test_windows_of_many_samples_are_dealt_the_same_way() -> None:
    plan = large_plan()
    rows = plan.rows(np.arange(plan.samples_per_epoch))
    assert list(zip(rows.chunk.tolist(), rows.sample.tolist(), strict=True)) == brute_order(plan, 0)


@given(plan=plans(), data=st.data())
def test_a_window_says_the_same_as_rows(plan: Plan, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, 4 * plan.samples_per_epoch))
    window = plan.window(position)
    sample, slot = divmod(position - window.start, window.width)
    assert 0 <= sample < plan.chunk_samples
    row = plan.rows(position)
    assert int(row.sample) == sample
    assert int(row.chunk) == int(plan.order.chunks_at(np.array([window.chunk + slot]))[0])
    assert plan.window(window.start) == window


@given(plan=plans(), data=st.data())
def test_positions_in_any_shape_and_mixture_of_epochs_are_independent(plan: Plan, data: st.DataObject) -> None:
    some = st.lists(st.integers(0, 5 * plan.samples_per_epoch), min_size=1, max_size=12)
    positions = data.draw(some)
    together = plan.rows(positions)
    for number, position in enumerate(positions):
        assert [int(part) for part in plan.rows(position)] == [int(part[number]) for part in together]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    plan, other = large_plan(0), large_plan(1)
    size = plan.samples_per_epoch
    orders = {tuple(p.rows(np.arange(e * size, (e + 1) * size)).chunk.tolist()) for p in (plan, other) for e in (0, 1)}
    assert len(orders) == 4


@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_owns_whole_slots_where_its_world_divides_them(world: int) -> None:
    plan = large_plan(slots=96)
    full = plan.order.period // 96 * 96 * plan.chunk_samples
    owners: dict[int, set[int]] = {}
    for rank in range(world):
        for chunk in plan.rows(np.arange(rank, full, world)).chunk.tolist():
            owners.setdefault(chunk, set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())


def test_window_counts_of_sources_vary_as_in_random_draws() -> None:
    # Shares of chunks like those of the Pile's components, from a fifth down to a few in ten thousand.
    shares = np.array([0.18, 0.15, 0.12, 0.10, 0.10, 0.08, 0.07, 0.06, 0.05, 0.03, 0.02, 0.02, 0.01, 0.005, 0.005])
    count, window = 300_000, 768
    edges = np.concatenate(([0], np.cumsum(shares * count))).round().astype(int)
    ratios = []
    for seed in range(4):
        order = ShuffledEpochs(seed, count).chunks_at(np.arange(count // window * window))
        source = np.searchsorted(edges, order, side="right") - 1
        counts = np.stack([np.bincount(row, minlength=len(shares)) for row in source.reshape(-1, window)])
        expected = window * shares * (1 - shares) * (count - window) / (count - 1)  # hypergeometric
        ratios.append(counts.var(axis=0) / expected)
    mean = np.mean(ratios, axis=0)
    assert np.mean(mean) == pytest.approx(1, abs=0.05)
    assert mean == pytest.approx(1, abs=0.15)


# Ranks and batches


@given(
    plan=plans(),
    world=st.sampled_from(WORLDS),
    per_rank=st.integers(1, 5),
    epochs=st.integers(1, 3),
    drop=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100)
def test_ranks_together_are_the_global_order(
    plan: Plan, world: int, per_rank: int, epochs: int, drop: bool, data: st.DataObject
) -> None:
    batch = per_rank * world
    end = epochs * plan.samples_per_epoch
    start = data.draw(st.integers(max(0, end - 3 * batch - 5), end))
    schedules = [
        plan.schedule(batch, rank=r, world_size=world, start=start, epochs=epochs, drop_remainder=drop)
        for r in range(world)
    ]
    steps = {schedule.steps for schedule in schedules}
    assert steps == {plan.steps(batch, epochs=epochs, start=start, drop_remainder=drop)}
    position = start
    for step in range(steps.pop() or 0):
        taken = [schedule.positions(step) for schedule in schedules]
        assert all(len(own) == schedule.rows(step) for own, schedule in zip(taken, schedules, strict=True))
        assert all((own % world == rank).all() for rank, own in enumerate(taken))
        together = np.sort(np.concatenate(taken))
        assert {schedule.position(step) for schedule in schedules} == {position}
        assert together.tolist() == list(range(position, position + len(together)))
        position += len(together)
        assert len(together) == batch or (not drop and position == end)
    assert position == end or position > end - batch if drop else position == end


@given(past=st.integers(1, 2**61), epochs=st.integers(1, 3))
def test_a_start_beyond_the_end_is_refused_and_the_end_itself_is_an_ended_run(past: int, epochs: int) -> None:
    plan = large_plan()
    end = epochs * plan.samples_per_epoch
    for start in (end, plan.state(end)):
        schedule = plan.schedule(8, start=start, epochs=epochs)
        assert (schedule.steps, schedule.position(0)) == (0, end)
    for start in (end + past, plan.state(end + past)):
        with pytest.raises(OptionError, match=f"start is {end + past:,}, and the run has {end:,} positions"):
            plan.schedule(8, start=start, epochs=epochs)
    assert plan.schedule(8, start=end + past, epochs=None).steps is None


def test_a_schedule_without_end_has_no_number_of_steps() -> None:
    schedule = large_plan().schedule(8, epochs=None, start=5)
    assert schedule.steps is None
    assert schedule.positions(10**9).tolist() == list(range(5 + 8 * 10**9, 13 + 8 * 10**9))


def test_batch_sizes() -> None:
    assert global_batch(None, None, 4) == 32
    assert global_batch(3, None, 4) == 12
    assert global_batch(None, 12, 4) == 12
    assert global_batch(3, 12, 4) == 12
    with pytest.raises(OptionError, match="10 does not divide among 4 ranks"):
        global_batch(None, 10, 4)
    with pytest.raises(OptionError, match="makes 8, not global_batch_size 12"):
        global_batch(2, 12, 4)
    with pytest.raises(OptionError, match="batch_size is 0"):
        global_batch(0, None, 4)
    with pytest.raises(OptionError, match="global_batch_size is 0"):
        global_batch(None, 0, 4)


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seq_len": 0}, "seq_len is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "below 2"),
        ({"seed": 1.5}, "seed is 1.5; it must be a whole number"),
        ({"seq_len": True}, "seq_len is True"),
        ({"seq_len": 100}, "no shard holds a sample of seq_len 100"),
        ({"shard_tokens": []}, "no shards in the split 'train'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Plan(**{"dataset_id": "x", "shard_tokens": [100], "seq_len": 10, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2 is not one of 0 to 1"),
        ({"rank": -1}, "rank is -1"),
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": 3, "rank": 0}, "8 does not divide among 3 ranks"),
        ({"start": -1}, "start is -1"),
        ({"start": "x"}, "start is 'x'"),
        ({"epochs": 0}, "epochs is 0"),
    ],
)
def test_schedules_out_of_range_are_refused(options: dict, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        large_plan().schedule(8, **options)


def test_positions_below_zero_are_refused() -> None:
    with pytest.raises(OptionError, match="position -1"):
        large_plan().rows([3, -1])


# States


def test_a_state_survives_json_and_gives_its_position_back() -> None:
    plan = large_plan(seed=2**64 - 1)
    state = json.loads(json.dumps(plan.state(123)))
    assert plan.check_state(state) == 123
    assert plan.schedule(8, start=state).start == 123


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seed": 9}, OptionError, "seed was 9 and is 0"),
        ({"seq_len": 8}, OptionError, "seq_len was 8 and is 4"),
        ({"slots": 1, "split": "validation"}, OptionError, "split was 'validation'.*slots was 1"),
        ({"dataset_id": "other"}, DatasetError, "dataset other.*this one is an id"),
        ({"order_format": 2}, OptionError, "order_format was 2 and is 1"),
        ({"weights": {"a": 1}}, OptionError, "weights"),
        ({"novelty": 1}, OptionError, "novelty was 1 and is unknown"),
        ({"position": -1}, OptionError, "position is -1"),
    ],
)
def test_a_state_of_another_order_is_refused(change: dict, error: type[Exception], words: str) -> None:
    plan = large_plan()
    with pytest.raises(error, match=words):
        plan.check_state({**plan.state(1), **change})


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(OptionError, match="has no order_format"):
        large_plan().check_state({"step": 3})


def test_a_plan_describes_what_it_cuts_off() -> None:
    plan = Plan("an id", [1000, 57], seq_len=10)
    assert plan.cut_tokens == 9 + 6
    assert "cut off: 15 tokens (1.4191%)" in plan.describe()
