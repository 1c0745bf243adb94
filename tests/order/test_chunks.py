"""Shards are cut into as large chunks as waste little, and what is cut off is counted."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.errors import OptionError
from pileshard.order.chunks import CHUNK_TOKENS, cut

shards = st.lists(st.integers(0, 3000), min_size=1, max_size=20)


def brute_cut(tokens: list[int], seq_len: int, size: int) -> tuple[int, int]:
    """(chunks, tokens in no sample) by marking every token that a sample holds."""
    chunks = marked = 0
    for count in tokens:
        used = np.zeros(count, dtype=bool)
        sample = 0
        while (sample + size) * seq_len + 1 <= count:
            chunks += 1
            used[sample * seq_len : (sample + size) * seq_len + 1] = True
            sample += size
        marked += int(used.sum())
    return chunks, sum(tokens) - marked


@given(tokens=shards, seq_len=st.integers(1, 50))
def test_counts_agree_with_marking_every_token(tokens: list[int], seq_len: int) -> None:
    if max(tokens) < seq_len + 1:
        with pytest.raises(OptionError, match="no shard holds a sample"):
            cut(tokens, seq_len)
        return
    chunks = cut(tokens, seq_len)
    size = chunks.chunk_samples
    assert (chunks.count, chunks.cut_tokens) == brute_cut(tokens, seq_len, size)
    assert size == 1 or chunks.cut_tokens < 0.001 * sum(tokens)
    double = 2 * size
    if double * seq_len <= CHUNK_TOKENS:
        assert brute_cut(tokens, seq_len, double)[1] >= 0.001 * sum(tokens)
    whole_samples = sum(max(0, count - 1) // seq_len for count in tokens)
    assert chunks.cut_samples == whole_samples - chunks.count * size


@given(tokens=shards, seq_len=st.integers(1, 50))
def test_every_chunk_lies_within_its_shard_and_none_overlap(tokens: list[int], seq_len: int) -> None:
    if max(tokens) < seq_len + 1:
        return
    chunks = cut(tokens, seq_len)
    shard, token = chunks.locate(np.arange(chunks.count))
    length = chunks.chunk_samples * seq_len
    assert all(t >= 0 and t + length + 1 <= tokens[s] for s, t in zip(shard, token, strict=True))
    assert len(set(zip(shard.tolist(), (token // length).tolist(), strict=True))) == chunks.count
    assert not (token % length).any()


def test_a_large_dataset_has_chunks_of_128_k_tokens() -> None:
    chunks = cut([500_000_000] * 660, 2048)
    assert chunks.chunk_samples == 64
    assert chunks.cut_tokens < 0.001 * chunks.tokens


def test_a_sequence_longer_than_a_chunk_makes_chunks_of_one_sample() -> None:
    assert cut([10**9], CHUNK_TOKENS + 1).chunk_samples == 1


def test_forty_thousand_shards_are_cut_at_once() -> None:
    begin = time.perf_counter()
    chunks = cut(np.full(40_000, 250_000_001), 4096)
    chunks.locate(np.arange(0, chunks.count, 1000))
    assert time.perf_counter() - begin < 0.5
    assert chunks.count == 40_000 * (250_000_000 // 131072)


def test_shards_without_a_chunk_give_none() -> None:
    chunks = cut([5, 0, 101, 5, 101], 100)
    assert chunks.first.tolist() == [0, 0, 0, 1, 1, 2]
    assert chunks.locate([0, 1])[0].tolist() == [2, 4]


@pytest.mark.parametrize("seq_len", [0, -1])
def test_no_sequence_length_below_one(seq_len: int) -> None:
    with pytest.raises(OptionError, match="seq_len"):
        cut([100], seq_len)
