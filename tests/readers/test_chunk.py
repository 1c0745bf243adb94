"""Any range of a shard's tokens is read right, files stay few, and damage is named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import DatasetError
from pileshard.format import Storage
from pileshard.format.record import RECORD_TOKENS
from pileshard.readers.chunk import ShardReader
from tests.readers.made import Made, make_dataset

SHARDS = {("a", "train"): [3 * RECORD_TOKENS + 17, 5000], ("b", "train"): [20_000], ("c", "train"): [1, 2, 3000]}
MEANS = {"a": 2.5 * RECORD_TOKENS, "b": 40, "c": 3}


@pytest.fixture(scope="module", params=["uint16", "uint32", "memory"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    memory = request.param == "memory"
    url = "memory://test-chunk" if memory else str(tmp_path_factory.mktemp(request.param))
    return make_dataset(url, SHARDS, mean_document=MEANS, vocab_size=100_000 if request.param == "uint32" else 50257)


def reader_of(made: Made, **options: int) -> ShardReader:
    return ShardReader(Storage(made.url), made.manifest.shards, made.manifest.token_dtype, **options)


@given(data=st.data())
@settings(max_examples=150)
def test_a_range_of_tokens_equals_the_slice_of_the_stream(made: Made, data: st.DataObject) -> None:
    reader = reader_of(made)
    shard = data.draw(st.integers(0, len(made.streams) - 1))
    stream = made.streams[shard]
    first = data.draw(st.integers(0, len(stream) - 1))
    end = data.draw(st.integers(first + 1, len(stream)))
    out = np.zeros(end - first, dtype=stream.dtype)
    reader.read(shard, first, out)
    assert np.array_equal(out, stream[first:end])


def test_every_boundary_of_records_is_read_right(made: Made) -> None:
    reader = reader_of(made)
    shard = next(number for number, s in enumerate(made.manifest.shards) if s.source == "c" and s.tokens == 3000)
    bounds = np.asarray(reader.index(shard).tokens).astype(int).tolist()
    stream = made.streams[shard]
    for bound in bounds[1:-1:7]:
        for first in (bound - 1, bound, bound + 1):
            for end in (first + 1, min(first + 5, 3000)):
                out = np.zeros(max(0, end - first), dtype=stream.dtype)
                reader.read(shard, first, out)
                assert np.array_equal(out, stream[first:end])


def test_open_files_are_few_and_closed_again(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [50] * 40})
    before = len(os.listdir("/proc/self/fd"))
    reader = reader_of(made, open_shards=4)
    out = np.empty(10, dtype=np.uint16)
    for shard in (*range(40), *range(40)):
        reader.read(shard, 5, out)
        assert np.array_equal(out, made.streams[shard][5:15])
        assert len(os.listdir("/proc/self/fd")) <= before + 8
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    reader.read(3, 0, out)
    assert np.array_equal(out, made.streams[3][:10])
    del reader
    assert len(os.listdir("/proc/self/fd")) == before


def damaged(tmp_path: Path) -> tuple[Made, Path, Path]:
    made = make_dataset(str(tmp_path), {("a", "train"): [5000]})
    entry = made.manifest.shards[0]
    return made, tmp_path / entry.path, tmp_path / entry.index_path


def read_all(made: Made, reader: ShardReader | None = None) -> None:
    (reader or reader_of(made)).read(0, 0, np.empty(5000, dtype=np.uint16))


def test_a_short_shard_is_named(tmp_path: Path) -> None:
    made, shard, _ = damaged(tmp_path)
    os.truncate(shard, shard.stat().st_size - 1)
    ends = r"a/train.*tfrecord: damaged: ends at byte .* where the manifest has .*pileshard repair"
    with pytest.raises(DatasetError, match=ends):
        read_all(made)


def test_a_shard_that_shrinks_while_it_is_read_is_named_with_the_offset(tmp_path: Path) -> None:
    made, shard, _ = damaged(tmp_path)
    reader = reader_of(made)
    reader.read(0, 0, np.empty(10, dtype=np.uint16))
    os.truncate(shard, 4000)
    with pytest.raises(DatasetError, match=r"tfrecord: damaged: ends at byte 4,000 where .*; run `pileshard repair"):
        read_all(made, reader)


@pytest.mark.parametrize("which", ["shard", "index"])
def test_a_missing_file_is_named(tmp_path: Path, which: str) -> None:
    made, shard, index = damaged(tmp_path)
    (shard if which == "shard" else index).unlink()
    with pytest.raises(DatasetError, match=rf"{'tfrecord' if which == 'shard' else 'index.npy'}: .*pileshard repair"):
        read_all(made)


def test_an_index_of_another_shard_is_refused(tmp_path: Path) -> None:
    made, _, index = damaged(tmp_path / "one")
    _, _, other = damaged(tmp_path / "two")
    table = np.load(other)
    np.save(index, table[:, :-1])
    with pytest.raises(DatasetError, match=r"index.npy: tells of .* where the manifest has"):
        read_all(made)


def test_an_index_with_wrong_offsets_inside_is_refused(tmp_path: Path) -> None:
    made, _, index = damaged(tmp_path)
    table = np.load(index)
    table[1, 3] = table[1, 4]
    np.save(index, table)
    with pytest.raises(DatasetError, match=r"index.npy: damaged: its entries do not fit .* at byte 152; run"):
        read_all(made)


def test_a_short_remote_shard_is_named() -> None:
    made = make_dataset("memory://test-chunk-short", {("a", "train"): [5000]})
    storage = Storage(made.url)
    path = made.manifest.shards[0].path
    storage.write_bytes(path, storage.read_bytes(path)[:-100])
    with pytest.raises(DatasetError, match=r"damaged: ends at byte"):
        read_all(made)
