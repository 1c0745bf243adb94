"""Filling in the middle: documents are rearranged, never changed, as a function of seed and position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import OptionError
from pileshard.order.fim import Fim

PREFIX, MIDDLE, SUFFIX = IDS = (1000, 1001, 1002)


def applied(fim: Fim, bodies: list[int], seed: int = 0, position: int = 0) -> list[list[int]]:
    """Documents 0, 1, 2, ... of a row; their tokens count from 0."""
    lengths = np.array(bodies, dtype=np.int64)
    begins = np.cumsum(lengths) - lengths
    tokens = (np.arange(lengths.sum()) - np.repeat(begins, lengths)).astype(np.int32)
    fim.apply(tokens, seed, begins, lengths, np.full(len(bodies), position), np.arange(1, len(bodies) + 1))
    return [tokens[a : a + n].tolist() for a, n in zip(begins.tolist(), bodies, strict=True)]


def undone(document: list[int]) -> tuple[str, list[int], list[int], list[int]]:
    """The form of a rearranged document, and its prefix, middle and suffix, taken apart by the ids alone."""
    assert document[0] == PREFIX
    suffix, middle = document.index(SUFFIX), document.index(MIDDLE)
    assert sorted(i for i in document if i >= PREFIX) == sorted(IDS)
    if suffix == 1:
        return "spm or empty prefix", [], document[middle + 1 :], document[suffix + 1 : middle]
    return "psm", document[1:suffix], document[middle + 1 :], document[suffix + 1 : middle]


@given(
    bodies=st.lists(st.integers(0, 60), min_size=1, max_size=30),
    seed=st.integers(0, 2**64 - 1),
    spm=st.sampled_from([0, 0.5, 1]),
)
@settings(max_examples=200)
def test_a_document_can_be_put_together_again(bodies: list[int], seed: int, spm: float) -> None:
    for length, document in zip(bodies, applied(Fim(1.0, spm, IDS), bodies, seed), strict=True):
        assert len(document) == length
        if length <= 3:
            assert document == list(range(length))
            continue
        form, prefix, middle, suffix = undone(document)
        assert prefix + middle + suffix == list(range(length - 3))
        assert form == "psm" or spm > 0 or document[1] == SUFFIX
        if spm == 1:
            assert document[1] == SUFFIX


def test_rates_are_those_asked_for() -> None:
    documents = [d for p in range(40) for d in applied(Fim(0.3, 0.25, IDS), [100] * 100, 5, p)]
    moved = [d for d in documents if d[0] == PREFIX]
    assert len(moved) / len(documents) == pytest.approx(0.3, abs=0.03)
    # An empty prefix, one in 50 of the others, looks the same.
    spm = sum(d[1] == SUFFIX for d in moved) / len(moved)
    assert spm == pytest.approx(0.25 + 0.75 * 2 / 98, abs=0.04)


def test_places_are_uniform() -> None:
    cuts = [undone(d) for p in range(100) for d in applied(Fim(1.0, 0.0, IDS), [12] * 100, 1, p)]
    # Two places of 0 to 9 each, in order: the distribution of the pair.
    counts = np.zeros((10, 10))
    for _, prefix, middle, _ in cuts:
        counts[len(prefix), len(prefix) + len(middle)] += 1
    expected = np.triu(np.full((10, 10), 2.0), 1) + np.eye(10)
    chi = ((counts - 100 * expected) ** 2)[expected > 0].sum() / 100
    assert (counts[expected == 0] == 0).all()
    assert chi < 2 * 110  # of 54 degrees of freedom; terms weigh at most double


def test_it_depends_on_seed_position_and_document_alone() -> None:
    fim = Fim(0.5, 0.5, IDS)
    bodies = [50, 60, 70, 80]
    row = applied(fim, bodies, 3, 17)
    assert applied(fim, bodies, 3, 17) == row
    assert applied(fim, bodies[:2], 3, 17) == row[:2]
    assert len({str(applied(fim, bodies, seed, position)) for seed in range(4) for position in range(4)}) == 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((1.5, 0.5, IDS), "fim_rate is 1.5"),
        ((True, 0.5, IDS), "fim_rate is True"),
        ((0.5, -1, IDS), "fim_spm_rate is -1"),
        ((0.5, "x", IDS), "fim_spm_rate is 'x'"),
        ((0.5, 0.5, None), r"fim_ids is None; fim_rate needs the token ids \(prefix, middle, suffix\)"),
        ((0.5, 0.5, (1, 2)), r"fim_ids is \(1, 2\)"),
        ((0.5, 0.5, (1, 2, -3)), r"fim_ids is \(1, 2, -3\)"),
        ((0.5, 0.5, (1, 2, 2)), "must differ"),
        ((0.5, 0.5, (1, 2, 0)), "end-of-document id 0 must differ"),
    ],
)
def test_options_out_of_range_are_refused(options: tuple, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Fim.of(*options, eod_id=0)


def test_a_rate_of_zero_is_nothing() -> None:
    assert Fim.of(0.0, 0.5, None, 0) is None
