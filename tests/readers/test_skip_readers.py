"""Readers leave out the positions that they are told to, whatever the ranks, and go on behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.order import Skip
from pileshard.readers.rows import RowReader
from tests.readers.made import Made, make_dataset
from tests.readers.test_rows import brute_rows


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [40_001, 30_000], ("b", "train"): [9000, 3, 20_000]}
    return make_dataset(str(tmp_path_factory.mktemp("skip")), shards, mean_document={"a": 300, "b": 20})


@given(
    slots=st.sampled_from([1, 4, 12, 96]),
    world=st.sampled_from([1, 2, 3, 4, 5, 12]),
    resident=st.booleans(),
    data=st.data(),
)
@settings(max_examples=80)
def test_rows_go_on_behind_what_is_left_out(
    made: Made, slots: int, world: int, resident: bool, data: st.DataObject
) -> None:
    plan = pileshard.open(made.url).plan(data.draw(st.integers(0, 9)), seq_len=8, slots=slots)
    size = plan.samples_per_epoch
    start = data.draw(st.integers(0, size))
    lengths = st.integers(1, 40) | st.integers(1, size)
    ranges = data.draw(st.lists(st.tuples(st.integers(0, 2 * size), lengths), max_size=5))
    skip = Skip.of((first, first + length) for first, length in ranges)
    rank = data.draw(st.integers(0, world - 1))
    reader = RowReader(plan, plan.reader(), rank=rank, world_size=world, start=start, skip=skip, resident=resident)
    index = skip.index(start)
    index += (rank - index) % world
    for count, passed in data.draw(
        st.lists(st.tuples(st.integers(1, 500), st.sampled_from([0, 0, 7, 300])), min_size=1, max_size=5)
    ):
        out = np.empty((count, 9), dtype=np.uint16)
        reader.fill(out)
        assert np.array_equal(out, brute_rows(made, plan, skip.positions(index + world * np.arange(count))))
        reader.advance(passed)
        index += (count + passed) * world
        assert reader.position == skip.position(index)


@pytest.mark.parametrize("drop", [True, False])
def test_a_spike_is_left_out_and_a_resumed_run_goes_on_the_same(made: Made, drop: bool) -> None:
    pytest.importorskip("tensorflow")
    options: dict[str, Any] = {"seed": 2, "path": made.url, "seq_len": 64, "slots": 12, "drop_remainder": drop}
    every = np.concatenate([x for x, _ in pileshard.numpy_dataset(**options, batch_size=1)])
    skip = [(800, 900), (100, 131), (120, 200)]
    left = np.array([p for p in range(len(every)) if not (100 <= p < 200 or 800 <= p < 900)])
    for world in (1, 2, 3):
        options.update(skip=skip, global_batch_size=6 * world, world_size=world)
        readers = [pileshard.numpy_dataset(rank=rank, **options) for rank in range(world)]
        taken, states = [], []
        for batches in zip(*readers, strict=True):
            states.append(readers[0].state())
            taken.append(batches)
        rows = np.concatenate([x for step in taken for x, _ in step])
        kept = every[left[: len(rows)]]
        assert len(rows) == (len(left) // (6 * world) * 6 * world if drop else len(left))
        assert sorted(map(bytes, rows)) == sorted(map(bytes, kept))
        for step in (0, 12, 40):
            for rank in range(world):
                rest = pileshard.numpy_dataset(rank=rank, **options, start=states[step])
                other = pileshard.dataset(rank=rank, **options, start=states[step])
                for batch, (x, y), (u, v) in zip(taken[step + 1 :], rest, other, strict=True):
                    assert np.array_equal(x, batch[rank][0])
                    assert np.array_equal(y, batch[rank][1])
                    assert np.array_equal(x, u.numpy())
                    assert np.array_equal(y, v.numpy())


def test_what_is_left_out_may_change_where_a_run_resumes(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 5}
    reader = pileshard.numpy_dataset(**options, skip=[(10, 20)])
    for _ in range(3):
        next(reader)
    assert reader.position == 25
    follow = pileshard.numpy_dataset(**options, start=reader.state(), skip=[(27, 30)])
    inputs, _ = next(follow)
    plan = pileshard.open(made.url).plan(0, seq_len=64)
    assert np.array_equal(inputs, brute_rows(made, plan, np.array([25, 26, 30, 31, 32]))[:, :-1])
