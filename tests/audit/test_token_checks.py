"""Ids are checked many records at a time: the same faults as one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.audit import token_checks
from pileshard.audit.framing import Batch
from pileshard.audit.report import FaultKind

VOCAB, EOD = 1000, 7

usual = st.integers(8, VOCAB - 1)
ids = st.one_of(usual, usual, usual, usual, st.sampled_from([EOD, 0, VOCAB, VOCAB - 1, 65535]))
sound = st.lists(usual, max_size=300).map(lambda found: [*found, EOD])
records = st.lists(st.one_of(sound, sound, sound, st.lists(ids, max_size=70)), min_size=1, max_size=12)


def _batch(found: list[list[int]], dtype: str, gaps: list[int]) -> tuple[Batch, Any, Any]:
    """Records with foreign bytes between them: all ones, which is no id, or the end-of-document id."""
    data, begins = b"", []
    for number, record in enumerate(found):
        gap = gaps[number % len(gaps)]
        data += (np.array([EOD] * 9, dtype).tobytes() + b"\xff" * 70)[:gap]
        begins.append(len(data))
        data += np.array(record, dtype).tobytes()
    counts = np.array([len(record) for record in found], dtype=np.int64)
    starts = np.array(begins, dtype=np.int64)
    width = np.dtype(dtype).itemsize
    return Batch(np.frombuffer(data + b"\xff" * 4, np.uint8), 100, starts, starts + counts * width), starts, counts


def _wanted(found: list[list[int]], begins: Any, width: int, within: bool) -> tuple[list[bool], set[tuple[Any, int]]]:
    faults = set()
    for record, begin in zip(found, begins.tolist(), strict=True):
        for at, token in enumerate(record):
            place = 100 + begin + at * width
            if token >= VOCAB:
                faults.add((FaultKind.TOKEN_RANGE, place))
            if token == EOD and at + 1 < len(record) and not within:
                faults.add((FaultKind.END_OF_DOCUMENT, place))
    return [bool(record) and record[-1] == EOD for record in found], faults


@settings(max_examples=150)
@given(
    records,
    st.sampled_from(["<u2", "<u4"]),
    st.lists(st.integers(0, 70), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([0, 40, 256]),
)
def test_the_faults_are_those_of_each_record_alone(
    found: list[list[int]], dtype: str, gaps: list[int], within: bool, short: int
) -> None:
    manifest: Any = SimpleNamespace(
        token_dtype=np.dtype(dtype),
        vocab_size=VOCAB,
        eod_id=EOD,
        options=SimpleNamespace(special_tokens="token" if within else "text"),
    )
    batch, begins, counts = _batch(found, dtype, gaps)
    faults: list[tuple[FaultKind, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_checks, "_SHORT", short)
        checks = token_checks.TokenChecks(manifest, lambda kind, _, offset: faults.append((kind, offset)))
        ended = checks.check(batch, begins, counts)
    wanted = _wanted(found, begins, np.dtype(dtype).itemsize, within)
    assert (ended.tolist(), set(faults)) == wanted
    assert len(faults) == len(set(faults))


def test_sound_short_records_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest: Any = SimpleNamespace(
        token_dtype=np.dtype("<u2"), vocab_size=VOCAB, eod_id=EOD, options=SimpleNamespace(special_tokens="text")
    )

    def alone(*_: object) -> None:
        raise AssertionError("one by one")

    monkeypatch.setattr(token_checks, "_joined", alone)
    rng = np.random.default_rng(1)
    found = [[*rng.integers(8, VOCAB, size).tolist(), EOD] for size in (80, 0, 1, 30, 31, 32, 33, 200, 255)]
    batch, begins, counts = _batch(found, "<u2", [91, 70, 35])
    checks = token_checks.TokenChecks(manifest, alone)
    assert checks.check(batch, begins, counts).all()
