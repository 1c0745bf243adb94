"""Records are judged by their bytes: all at once as one by one, and no flipped bit passes."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.format.record import RECORD_TOKENS, example_head, frame
from pileshard.readers.checks import AFTER, BEFORE, MOST_OVERHEAD, record_is_sound, sound

COUNTS = st.one_of(
    st.integers(1, 40),
    st.integers(1, 3000),
    *(st.integers(max(1, n - 40), min(n + 40, RECORD_TOKENS)) for n in (32, 64, 4096, 8192, 16384, RECORD_TOKENS)),
)


def records(counts: list[int], item: int, seed: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Bytes of records, their offsets, and bytes of tokens of each."""
    rng = np.random.default_rng(seed)
    parts = [
        frame(int(rng.integers(0, 300)), int(rng.integers(1, 1 << 40)), int(rng.integers(0, 200)), rng.bytes(n * item))
        for n in counts
    ]
    return b"".join(parts), 1000 + np.cumsum([0, *map(len, parts)]), np.array(counts) * item


def together(data: bytes, offsets: np.ndarray, token_bytes: np.ndarray) -> bool:
    memory = np.frombuffer(bytes(BEFORE) + data + bytes(AFTER), dtype=np.uint8).copy()
    before = memory.copy()
    found = sound(memory, offsets, token_bytes)
    for end, count in zip((offsets[1:] - offsets[0] + BEFORE - 4).tolist(), token_bytes.tolist(), strict=True):
        assert np.array_equal(memory[end - count : end], before[end - count : end])  # tokens stay as they are
    return found


def one_by_one(data: bytes, offsets: np.ndarray, token_bytes: np.ndarray) -> list[bool]:
    at = (offsets - offsets[0]).tolist()
    return [
        record_is_sound(data[a:b], count) for a, b, count in zip(at[:-1], at[1:], token_bytes.tolist(), strict=True)
    ]


@given(
    counts=st.lists(COUNTS, min_size=1, max_size=24),
    item=st.sampled_from([2, 4]),
    seed=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=150)
def test_sound_records_pass_and_a_flipped_bit_does_not(
    counts: list[int], item: int, seed: int, data: st.DataObject
) -> None:
    written, offsets, token_bytes = records(counts, item, seed)
    assert together(written, offsets, token_bytes)
    assert all(one_by_one(written, offsets, token_bytes))
    for _ in range(4):
        bit = data.draw(st.integers(0, 8 * len(written) - 1))
        flipped = bytearray(written)
        flipped[bit // 8] ^= 1 << bit % 8
        record = int(np.searchsorted(offsets, offsets[0] + bit // 8, side="right")) - 1
        assert not together(bytes(flipped), offsets, token_bytes)
        judged = one_by_one(bytes(flipped), offsets, token_bytes)
        assert [number for number, good in enumerate(judged) if not good] == [record]


@given(counts=st.lists(COUNTS, min_size=1, max_size=14), item=st.sampled_from([2, 4]), data=st.data())
@settings(max_examples=150)
def test_another_number_of_tokens_does_not_pass(counts: list[int], item: int, data: st.DataObject) -> None:
    written, offsets, token_bytes = records(counts, item, 1)
    record = data.draw(st.integers(0, len(counts) - 1))
    other = data.draw(
        st.one_of(st.integers(1, RECORD_TOKENS), st.integers(max(1, counts[record] - 12), counts[record] + 12))
    )
    overhead = offsets[record + 1] - offsets[record] - other * item
    if other == counts[record] or not 16 < overhead <= MOST_OVERHEAD:  # readers look at no other
        return
    token_bytes[record] = other * item
    assert not together(written, offsets, token_bytes)
    assert not record_is_sound(
        written[offsets[record] - offsets[0] : offsets[record + 1] - offsets[0]], int(token_bytes[record])
    )


def test_two_records_of_the_same_length_cannot_change_places_with_their_checksums() -> None:
    one, other = frame(1, 2, 3, b"abcd"), frame(1, 2, 3, b"efgh")
    mixed = one[:-4] + other[-4:] + other[:-4] + one[-4:]
    assert not together(mixed, np.array([0, len(one), 2 * len(one)]), np.array([4, 4]))


@pytest.mark.parametrize("numbers", [(0, 1, 0), (2**31, 2**62, 2**31)])
def test_heads_are_no_longer_than_what_readers_allow(numbers: tuple[int, int, int]) -> None:
    assert len(example_head(*numbers, RECORD_TOKENS * 4)) + 16 <= MOST_OVERHEAD


def test_the_constants_are_those_of_the_checksum() -> None:
    message = b"whatever"
    left = crc32c(message + crc32c(message).to_bytes(4, "little"))
    assert left == 0x48674BC7
    assert crc32c(bytes(8) + (0xB0802EF6).to_bytes(4, "little"), left) == 0
