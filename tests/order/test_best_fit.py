"""Packing pieces into rows, and dividing shards evenly into chunks whose pieces always fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import OptionError
from pileshard.order import Plan
from pileshard.order.best_fit import assign
from pileshard.order.even import PACK_ROWS, PACK_TOKENS, documents, spans


def best_fit_decreasing(lengths: list[int], rows: int, capacity: int) -> tuple[list[list[int]], list[int]]:
    """The lengths in each row by the method's words, and those that fit nowhere."""
    room = [capacity] * rows
    held: list[list[int]] = [[] for _ in range(rows)]
    left = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in range(rows) if room[row] >= length]
        if not fitting:
            left.append(length)
            continue
        row = min(fitting, key=lambda row: room[row])
        room[row] -= length
        held[row].append(length)
    return held, left


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, int]:
    rows, capacity = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    pieces: list[int] = []
    for length in draw(st.lists(st.integers(1, capacity), max_size=80)):
        if sum(pieces) + length <= rows * capacity:
            pieces.append(length)
    return pieces, rows, capacity


@given(problem=problems())
@settings(max_examples=300)
def test_every_piece_is_in_rows_once_and_no_row_overflows(problem: tuple[list[int], int, int]) -> None:
    lengths, rows, capacity = problem
    parts = assign(np.array(lengths, dtype=np.int64), rows, capacity)
    assert (parts.length >= 1).all()
    assert (np.bincount(parts.row, weights=parts.length, minlength=rows) <= capacity).all()
    for number, length in enumerate(lengths):
        own = sorted(
            (int(o), int(n)) for p, o, n in zip(parts.piece, parts.offset, parts.length, strict=True) if p == number
        )
        covered = 0
        for offset, part in own:
            assert offset == covered
            covered += part
        assert covered == length


@given(problem=problems())
@settings(max_examples=300)
def test_whole_pieces_go_where_best_fit_decreasing_puts_them(problem: tuple[list[int], int, int]) -> None:
    lengths, rows, capacity = problem
    parts = assign(np.array(lengths, dtype=np.int64), rows, capacity)
    held, left = best_fit_decreasing(lengths, rows, capacity)
    split = {number for number in parts.piece.tolist() if (parts.piece == number).sum() > 1}
    assert sorted(lengths[number] for number in split) == sorted(left)
    found = [0] * rows
    for number, row in zip(parts.piece.tolist(), parts.row.tolist(), strict=True):
        found[row] += 0 if number in split else lengths[number]
    # Rows with the same room may take turns, so what is the same is how full rows are.
    assert sorted(found) == sorted(sum(row) for row in held)


def test_nothing_packs_into_nothing() -> None:
    assert all(not len(part) for part in assign(np.empty(0, dtype=np.int64), 4, 10))


@given(tokens=st.lists(st.integers(0, 5000), min_size=1, max_size=6), seq_len=st.integers(1, 60))
@settings(max_examples=150)
def test_spans_tile_their_shards_and_what_begins_in_one_fits(tokens: list[int], seq_len: int) -> None:
    tokens.append(7)
    chunks = spans(tokens, seq_len)
    shard, begin, end = chunks.bounds(np.arange(chunks.count))
    row = seq_len + 1
    for number, held in enumerate(tokens):
        own = shard == number
        assert begin[own].tolist() == [0, *end[own].tolist()][:-1] if own.any() else held == 0
        if own.any():
            assert end[own][-1] == held
            # The last piece to begin in a span may end seq_len tokens after it, but not after the shard.
            assert (np.minimum(end[own] + seq_len, held) - begin[own] <= chunks.chunk_samples * row).all()


def test_large_shards_make_large_chunks_and_little_padding() -> None:
    for seq_len in (2048, 8192, 32768):
        chunks = spans([500_000_000] * 3, seq_len)
        assert chunks.chunk_samples == min(PACK_ROWS, PACK_TOKENS // seq_len)
        rows = chunks.count * chunks.chunk_samples
        assert 1 < rows * (seq_len + 1) / chunks.tokens < 1 + 2.5 / chunks.chunk_samples


def test_small_shards_make_small_chunks() -> None:
    chunks = spans([100, 30, 5], 9)
    assert chunks.chunk_samples * chunks.count == 24


@given(held=st.lists(st.integers(0, 4000), min_size=1, max_size=6), seq_len=st.sampled_from([1, 30, 2048, 10**6]))
def test_documents_are_in_chunks_once_and_few_rows_are_empty(held: list[int], seq_len: int) -> None:
    held.append(3)
    chunks = documents(held, [50 * n for n in held], seq_len)
    shard, begin, end = chunks.bounds(np.arange(chunks.count))
    for number, count in enumerate(held):
        own = shard == number
        assert np.concatenate(
            [np.arange(a, b) for a, b in zip(begin[own], end[own], strict=True)] or [[]]
        ).tolist() == list(range(count))
    assert (end - begin <= chunks.chunk_samples).all()
    assert chunks.count * chunks.chunk_samples - sum(held) < 0.001 * sum(held) + (chunks.chunk_samples == 1)


def test_packings_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match="packing is 'dense'; it takes 'concat', 'best_fit', 'document'"):
        Plan("x", [100], seq_len=10, packing="dense")
    with pytest.raises(OptionError, match="needs the number of documents"):
        Plan("x", [100], seq_len=10, packing="document")
    with pytest.raises(OptionError, match="hold no documents"):
        Plan("x", [0], seq_len=10, packing="document", shard_documents=[0])
    with pytest.raises(OptionError, match="hold no tokens"):
        Plan("x", [0], seq_len=10, packing="best_fit")


def test_states_of_another_packing_are_refused() -> None:
    concat, packed = (Plan("x", [1000], seq_len=10, packing=packing) for packing in ("concat", "best_fit"))
    with pytest.raises(OptionError, match="packing was 'concat' and is 'best_fit'"):
        packed.check_state(concat.state(3))
    with pytest.raises(OptionError, match="packing was 'best_fit' and is 'concat'"):
        concat.check_state(packed.state(3))
    assert packed.check_state(packed.state(3)) == 3


def test_plans_describe_what_they_do_not_fill() -> None:
    assert "no token cut off, " in Plan("x", [1000], seq_len=10, packing="best_fit").describe()
    plan = Plan("x", [1000], seq_len=10, packing="document", shard_documents=[20])
    assert "20 documents, 0 rows without one; what is beyond 11 tokens" in plan.describe()
