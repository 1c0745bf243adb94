"""Indexes by blocks: what a whole index says, in bounded memory and few requests."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from pileshard.format.index import HEADER_BYTES, make_index
from pileshard.readers.remote_index import DamagedIndex, RemoteIndexes


class Entry:
    """The part of a manifest's entry that an index needs."""

    def __init__(self, lengths: np.ndarray, heads: np.ndarray) -> None:
        self.all_tokens = np.concatenate([[0], np.cumsum(lengths)])
        self.all_offsets = np.concatenate([[0], np.cumsum(lengths * 2 + heads)])
        self.records, self.tokens, self.size = len(lengths), int(self.all_tokens[-1]), int(self.all_offsets[-1])
        zeros = np.zeros(self.records, dtype=np.uint64)
        self.file = make_index(self.all_tokens, self.all_offsets, zeros, zeros).to_bytes()
        self.index_size = len(self.file)
        self.requests = 0
        self.bytes = 0


def _fetch(entry: Any, begin: int, end: int) -> bytes:
    assert HEADER_BYTES <= begin < end <= len(entry.file)
    entry.requests += 1
    entry.bytes += end - begin
    return entry.file[begin:end]


def _entry(seed: int, records: int, skewed: bool = False) -> Entry:
    rng = np.random.default_rng(seed)
    lengths = np.minimum(1 + rng.lognormal(5, 1.5, records).astype(np.int64), 65536)
    if skewed:  # one half far from what the other leads to expect
        lengths[: records // 2] = 1
    return Entry(lengths, rng.integers(40, 60, records))


def _check(indexes: RemoteIndexes, entries: list[Entry], shard: int, first: int, end: int) -> None:
    entry = entries[shard]
    tokens, offsets, number = indexes.span(shard, first, end, _fetch)
    low = int(np.searchsorted(entry.all_tokens, first, side="right")) - 1
    assert number == low
    high = int(np.searchsorted(entry.all_tokens, end, side="left"))
    np.testing.assert_array_equal(tokens, entry.all_tokens[low : high + 1])
    np.testing.assert_array_equal(offsets, entry.all_offsets[low : high + 1])


@pytest.mark.parametrize("limit", [1 << 30, 10_000, 1])
@pytest.mark.parametrize("block", [1, 2, 7, 100])
def test_span_is_that_of_the_whole_index(limit: int, block: int) -> None:
    entries = [_entry(0, 1), _entry(1, 2), _entry(2, 50), _entry(3, 777), _entry(4, 400, skewed=True)]
    indexes = RemoteIndexes(entries, limit=limit, block_records=block)  # type: ignore[arg-type]
    rng = random.Random(5)
    for _ in range(300):
        shard = rng.randrange(len(entries))
        total = entries[shard].tokens
        first = rng.choice([0, total - 1, rng.randrange(total)])
        end = rng.choice([first + 1, total, min(total, first + 1 + rng.randrange(5000))])
        _check(indexes, entries, shard, first, end)
    if limit < 1 << 30:
        assert indexes._kept_bytes <= max(limit, 8 * (block + 1))


def test_large_index_takes_few_small_requests() -> None:
    entries = [_entry(0, 400_000)]
    indexes = RemoteIndexes(entries, limit=1 << 20)  # type: ignore[arg-type]
    rng = random.Random(1)
    chunks = 400
    for _ in range(chunks):
        first = rng.randrange(entries[0].tokens - 131_073)
        _check(indexes, entries, 0, first, first + 131_073)
    assert entries[0].requests < 5 * chunks
    assert entries[0].bytes < 80_000 * chunks


def test_threads_share_what_is_fetched() -> None:
    entries = [_entry(seed, 5000) for seed in range(3)]
    indexes = RemoteIndexes(entries)  # type: ignore[arg-type]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(200):
                shard = rng.randrange(3)
                first = rng.randrange(entries[shard].tokens - 1000)
                _check(indexes, entries, shard, first, first + 1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [entry.requests for entry in entries] == [1, 1, 1]


@pytest.mark.parametrize("limit", [1 << 30, 1])
def test_damage_is_told_and_never_loops(limit: int) -> None:
    rng = random.Random(6)
    told = 0
    for turn in range(300):
        entry = _entry(turn, 300)
        data = bytearray(entry.file)
        for _ in range(rng.choice([1, 20])):
            at = HEADER_BYTES + rng.randrange(16 * 301)
            data[at] ^= 1 << rng.randrange(8)
        entry.file = bytes(data)
        indexes = RemoteIndexes([entry], limit=limit, block_records=16)  # type: ignore[list-item]
        for _ in range(20):
            first = rng.randrange(entry.tokens - 10)
            try:
                indexes.span(0, first, first + 10, _fetch)
            except DamagedIndex:
                told += 1
                break
    assert told > 100
