"""Every way of reading gives the rows that the plan names, at every position, for every rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.corpus import open_corpus
from pileshard.readers.rows import RowReader
from tests.readers.made import Made, make_dataset

WORLDS = (1, 2, 3, 4, 5, 6, 8, 12, 96)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [40_001, 30_000], ("b", "train"): [9000, 3, 20_000], ("b", "validation"): [5000]}
    return make_dataset(str(tmp_path_factory.mktemp("rows")), shards, mean_document={"a": 300, "b": 20})


def brute_rows(made: Made, plan, positions: np.ndarray) -> np.ndarray:
    """Rows by slicing the shards' streams where the plan points."""
    streams = [made.streams[number] for number in made.split(plan.split)]
    where = plan.rows(positions)
    return np.stack(
        [
            streams[shard][first : first + plan.seq_len + 1]
            for shard, first in zip(where.shard.tolist(), where.first_token.tolist(), strict=True)
        ]
    )


@given(
    seq_len=st.sampled_from([3, 8, 16, 50]),
    slots=st.sampled_from([1, 4, 12, 96, 100]),
    world=st.sampled_from(WORLDS),
    resident=st.sampled_from([True, False, None]),
    data=st.data(),
)
@settings(max_examples=70)
def test_blocks_of_any_size_hold_a_ranks_rows(
    made: Made, seq_len: int, slots: int, world: int, resident: bool | None, data: st.DataObject
) -> None:
    plan = open_corpus(made.url).plan(data.draw(st.integers(0, 9)), seq_len=seq_len, slots=slots)
    start = data.draw(st.integers(0, 2 * plan.samples_per_epoch))
    rank = data.draw(st.integers(0, world - 1))
    reader = RowReader(plan, plan.reader(), rank=rank, world_size=world, start=start, resident=resident)
    position = start + (rank - start) % world
    for size in data.draw(st.lists(st.integers(1, 700), min_size=1, max_size=4)):
        out = np.empty((size, seq_len + 1), dtype=np.uint16)
        reader.fill(out)
        assert np.array_equal(out, brute_rows(made, plan, position + world * np.arange(size)))
        position += size * world
        assert reader.position == position


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("world", [1, 4, 5, 7])
def test_whole_epochs_and_more(made: Made, world: int, resident: bool) -> None:
    plan = open_corpus(made.url).plan(5, seq_len=8, slots=12)
    assert plan.chunk_samples > 1
    count = int(1.2 * plan.samples_per_epoch) // world
    for rank in range(world):
        reader = RowReader(plan, plan.reader(), rank=rank, world_size=world, resident=resident)
        out = np.empty((count, 9), dtype=np.uint16)
        for at in range(0, count, 997):
            reader.fill(out[at : at + 997])
        assert np.array_equal(out, brute_rows(made, plan, rank + world * np.arange(count)))


def test_each_chunk_is_read_once_where_ranks_divide_the_slots(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = open_corpus(made.url).plan(5, seq_len=8, slots=12)
    windows = plan.order.period // 12
    rows = windows * 12 * plan.chunk_samples
    reads: list[tuple[int, int]] = []
    for rank in range(4):
        shards = plan.reader()
        read = shards.read
        monkeypatch.setattr(
            shards, "read", lambda s, f, *to, read=read: reads.append((s, f)) or read(s, f, *to), raising=True
        )
        reader = RowReader(plan, shards, rank=rank, world_size=4, resident=False)
        out = np.empty((rows // 4, 9), dtype=np.uint16)
        for at in range(0, len(out), 100):
            reader.fill(out[at : at + 100])
    assert len(reads) == len(set(reads)) == windows * 12


def test_a_small_split_is_read_once_and_kept(made: Made) -> None:
    plan = open_corpus(made.url).plan(5, seq_len=8)
    reader = RowReader(plan, plan.reader())
    out = np.empty((plan.samples_per_epoch, 9), dtype=np.uint16)
    reader.fill(out)
    reader.close()
    reader._shards.read = None  # type: ignore[method-assign,assignment]  # a second epoch reads nothing
    reader.fill(out)
    assert np.array_equal(out, brute_rows(made, plan, plan.samples_per_epoch + np.arange(len(out))))


def test_samples_longer_than_a_range_of_the_resident_tokens(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [700_000, 500_000]}, mean_document=5000)
    plan = open_corpus(made.url).plan(0, seq_len=150_000)
    reader = RowReader(plan, plan.reader(), resident=True)
    out = np.empty((5, 150_001), dtype=np.uint16)
    reader.fill(out)
    assert np.array_equal(out, brute_rows(made, plan, np.arange(5)))
