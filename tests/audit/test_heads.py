"""Many heads at once: the same as `parse_example`, one by one, for right and wrong ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.audit.heads import LONGEST_HEAD, parse_heads
from pileshard.format.record import RECORD_TOKENS, example_head, parse_example

edges = st.sampled_from([0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**35, 2**42, 2**63 - 1])
numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**42), edges)
sizes = st.one_of(
    st.integers(0, 300), st.integers(16250, 16450), st.sampled_from([2 * RECORD_TOKENS, 4 * RECORD_TOKENS])
)


@st.composite
def examples(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["right", "right", "right", "flip", "cut", "insert", "any"]))
    if kind == "any":
        return draw(st.binary(max_size=100))
    size = draw(sizes)
    head = bytearray(example_head(draw(numbers), draw(numbers), draw(numbers), size))
    at = draw(st.integers(0, len(head) - 1))
    if kind == "flip":
        head[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del head[at]
    elif kind == "insert":
        head.insert(at, draw(st.integers(0, 255)))
    return bytes(head) + bytes(size)


def _parse_all(found: list[bytes]):  # type: ignore[no-untyped-def]
    joined = b"".join(b"????" + raw for raw in found) + b"??"
    sizes = np.array([len(raw) for raw in found], dtype=np.int64)
    ends = np.cumsum(sizes + 4)
    return parse_heads(np.frombuffer(joined, np.uint8), ends - sizes, ends)


@settings(max_examples=400)
@given(st.lists(examples(), min_size=1, max_size=12))
def test_heads_are_what_they_are_one_by_one(found: list[bytes]) -> None:
    heads = _parse_all(found)
    for number, raw in enumerate(found):
        try:
            wanted = parse_example(raw)
            if max(wanted) >= 2**63:
                raise ValueError("too large")
        except ValueError:
            assert not heads.good[number]
            assert heads.why[number]
            assert heads.tokens_at[number] == len(raw)
            continue
        assert heads.good[number]
        got = (heads.input[number], heads.line[number], heads.part[number], heads.tokens_at[number])
        assert got == tuple(wanted)


def test_usual_heads_are_parsed_together(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from pileshard.audit import heads

    def alone(*_: object) -> None:
        raise AssertionError("parsed alone")

    monkeypatch.setattr(heads, "_take_alone", alone)
    rng = np.random.default_rng(1)
    found = []
    for size in [2, 100, 126, 128, 16000, 16384, 65536, 2 * RECORD_TOKENS]:
        for line in (1, 127, 128, 20_000, 3_000_000, 2**40 - 1):
            number, part = int(rng.integers(0, 2**24)), int(rng.choice([0, 0, 1, 200, 20_000]))
            found.append(example_head(number, line, part, size) + bytes(size))
    assert _parse_all(found).good.all()


def test_no_head_is_longer_than_the_longest() -> None:
    assert len(example_head(2**63 - 1, 2**63 - 1, 2**63 - 1, 4 * RECORD_TOKENS)) <= LONGEST_HEAD
