"""The plan: ranges of keys that tile the key space and hold equal bytes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.runs import BUCKET_BITS, BUCKET_SHIFT
from beam_jobs.shard_plan import shard_ranges

SIZE = 1 << BUCKET_BITS


@given(
    seed=st.integers(0, 2**32 - 1),
    filled=st.floats(0.001, 1),
    documents=st.integers(1, 10**6),
    shard_bytes=st.integers(1000, 10**9),
)
def test_ranges_tile_the_key_space(seed: int, filled: float, documents: int, shard_bytes: int) -> None:
    rng = np.random.default_rng(seed)
    weights = (rng.integers(1, 10**6, SIZE) * (rng.random(SIZE) < filled)).tolist()
    weights[int(rng.integers(SIZE))] += 1
    ranges = shard_ranges(weights, documents, shard_bytes)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64 - 1
    assert all(first <= last for first, last in ranges)
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(ranges))
    assert 1 <= len(ranges) <= documents


def test_shards_of_even_keys_are_of_one_size_and_none_exceeds_the_target() -> None:
    weights = [1000] * SIZE
    ranges = shard_ranges(weights, 10**6, 100_000)
    sizes = [last - first for first, last in ranges]
    assert len(ranges) == 11
    assert max(sizes) - min(sizes) <= 2
    assert 1000 * SIZE / len(ranges) <= 100_000


def test_a_heavy_bucket_takes_a_shorter_range_of_keys() -> None:
    weights = [1000] * SIZE
    weights[SIZE // 2] = 1000 * SIZE
    first, second = shard_ranges(weights, 10**6, 1500 * SIZE)
    assert first[0] == 0
    cut = second[0] >> BUCKET_SHIFT
    assert cut == SIZE // 2
    held = sum(weights[:cut]) + weights[cut] * ((second[0] & ((1 << BUCKET_SHIFT) - 1)) / (1 << BUCKET_SHIFT))
    assert abs(held / sum(weights) - 0.5) < 0.001


def test_a_small_group_gets_one_shard() -> None:
    weights = [0] * SIZE
    weights[3] = 10
    assert shard_ranges(weights, 1, 1000) == [(0, 2**64 - 1)]
