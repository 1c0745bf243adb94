"""Framing: the same records however a file is read, in memory that no length can raise."""

from __future__ import annotations

import io
import itertools
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.audit import framing
from pileshard.audit.report import FaultKind
from pileshard.format.record import masked_crc
from tests.audit.forge import framed

LONGEST = 200


def _walk(
    data: bytes, read_bytes: int, offsets: list[int] | None = None, size: int = 1 << 40
) -> tuple[list[tuple[int, bytes]], list[tuple[FaultKind, int]], bytes]:
    records: list[tuple[int, bytes]] = []
    faults: list[tuple[FaultKind, int]] = []
    blocks: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "_READ_BYTES", read_bytes)
        for batch in framing.read_batches(
            io.BytesIO(data),
            LONGEST,
            lambda block: blocks.append(bytes(block)),
            lambda kind, _, offset: faults.append((kind, offset)),
            None if offsets is None else np.array(offsets, dtype=np.uint64),
            size,
        ):
            for offset, start, end in zip(batch.offsets.tolist(), batch.starts, batch.ends, strict=True):
                records.append((offset, batch.data[start:end].tobytes()))
    return records, faults, b"".join(blocks)


@given(st.lists(st.binary(max_size=LONGEST), max_size=12), st.integers(1, 2000))
def test_records_come_out_however_the_file_is_read(payloads: list[bytes], read_bytes: int) -> None:
    data = b"".join(framed(payload) for payload in payloads)
    records, faults, seen = _walk(data, read_bytes)
    assert [payload for _, payload in records] == payloads
    assert [data[offset + 12 : offset + 12 + len(payload)] for offset, payload in records] == payloads
    assert faults == []
    assert seen == data


@given(st.lists(st.binary(max_size=LONGEST), min_size=1, max_size=8), st.data())
def test_damage_is_found_alike_however_the_file_is_read(payloads: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(framed(payload) for payload in payloads))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    whole = _walk(bytes(data), 10_000)
    assert len(whole[1]) == 1
    assert _walk(bytes(data), draw.draw(st.integers(1, 300))) == whole


@given(st.lists(st.binary(min_size=1, max_size=LONGEST), min_size=2, max_size=12), st.data())
def test_every_record_that_is_damaged_is_named_however_many_are(payloads: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(b"".join(framed(payload) for payload in payloads))
    offsets = _offsets(payloads)
    chosen = draw.draw(st.sets(st.integers(0, len(payloads) - 1)))
    for number in chosen:
        place = draw.draw(st.integers(12, offsets[number + 1] - offsets[number] - 1))  # its bytes or their CRC
        data[offsets[number] + place] ^= draw.draw(st.integers(1, 255))
    records, faults, _ = _walk(bytes(data), 10_000, offsets)
    assert faults == [(FaultKind.CRC, offsets[number]) for number in sorted(chosen)]
    assert len(records) == len(payloads)


def test_the_crcs_of_sound_records_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(framed(bytes(range(size))) for size in range(4, 200))
    calls: list[int] = []
    crc = framing.crc32c
    monkeypatch.setattr(framing, "crc32c", lambda data, *begin: calls.append(len(data)) or crc(data, *begin))
    assert _walk(data, 10**6)[1] == []
    assert len([size for size in calls if size > 8]) == 1  # those of 8 bytes are of lengths


def _offsets(payloads: list[bytes]) -> list[int]:
    return [0, *itertools.accumulate(len(payload) + 16 for payload in payloads)]


@given(st.lists(st.binary(max_size=LONGEST), max_size=12), st.integers(1, 2000), st.data())
def test_no_index_changes_what_is_found(payloads: list[bytes], read_bytes: int, draw: st.DataObject) -> None:
    data = bytearray(b"".join(framed(payload) for payload in payloads))
    if data and draw.draw(st.booleans()):
        data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    if draw.draw(st.booleans()):
        data = data[: draw.draw(st.integers(0, len(data)))]
    offsets = _offsets(payloads)
    change = draw.draw(st.sampled_from(["none", "one", "some", "order", "short", "long", "any"]))
    if change == "one":
        offsets[draw.draw(st.integers(0, len(offsets) - 1))] += draw.draw(st.integers(1, 40))
    elif change == "some":
        offsets = [max(0, offset + draw.draw(st.integers(-17, 17))) for offset in offsets]
    elif change == "order":
        offsets = draw.draw(st.permutations(offsets))
    elif change == "short":
        offsets = offsets[: draw.draw(st.integers(0, len(offsets)))]
    elif change == "long":
        offsets += [offsets[-1] + 16 * more for more in range(1, 9)]
    elif change == "any":
        offsets = draw.draw(st.lists(st.integers(0, 2**64 - 1), max_size=20))
    plain = _walk(bytes(data), 10_000)
    assert _walk(bytes(data), read_bytes, offsets) == plain
    assert _walk(bytes(data), read_bytes, offsets, size=draw.draw(st.integers(0, 300))) == plain


@given(st.lists(st.binary(max_size=LONGEST), max_size=12), st.integers(1, 2000))
def test_records_that_the_index_foretells_are_not_walked_one_by_one(payloads: list[bytes], read_bytes: int) -> None:
    data = b"".join(framed(payload) for payload in payloads)
    asked: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        length = framing._length
        patch.setattr(framing, "_length", lambda header: asked.append(header) or length(header))
        assert [payload for _, payload in _walk(data, read_bytes, _offsets(payloads))[0]] == payloads
    assert len(asked) <= len(data) // read_bytes  # those alone that a block ends in


@pytest.mark.parametrize("bit", range(64, 96))
def test_every_bit_of_the_crc_of_a_length_counts(bit: int) -> None:
    payloads = [b"one", b"two two", b""]
    data = bytearray(b"".join(framed(payload) for payload in payloads))
    data[_offsets(payloads)[1] + bit // 8] ^= 1 << bit % 8
    assert _walk(bytes(data), 10_000, _offsets(payloads))[1] == [(FaultKind.FRAMING, _offsets(payloads)[1])]


@given(st.binary(max_size=500), st.integers(1, 100))
def test_any_bytes_are_read_to_their_end(data: bytes, read_bytes: int) -> None:
    records, faults, seen = _walk(data, read_bytes)
    assert seen == data
    assert records == [] or faults or sum(16 + len(payload) for _, payload in records) == len(data)


class _Zeros(io.RawIOBase):
    """A header, and then so many zeros."""

    def __init__(self, header: bytes, zeros: int) -> None:
        self.left = zeros
        self.header = header

    def readinto(self, target: Any) -> int:
        if self.header:
            count = len(self.header)
            target[:count], self.header = self.header, b""
            return count
        count = min(len(target), self.left)
        target[:count] = bytes(count)
        self.left -= count
        return count


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 10**8, 200_000])
def test_no_claimed_length_raises_memory(length: int) -> None:
    header = struct.pack("<Q", length)
    header += struct.pack("<I", masked_crc(header))
    read = 0
    faults: list[tuple[FaultKind, int]] = []

    def on_block(block: memoryview) -> None:
        nonlocal read
        read += len(block)

    tracemalloc.start()
    try:
        batches = framing.read_batches(
            _Zeros(header, 100 << 20),  # type: ignore[arg-type]
            150_000,
            on_block,
            lambda kind, _, offset: faults.append((kind, offset)),
        )
        assert sum(len(batch.starts) for batch in batches) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == len(header) + (100 << 20)
    assert faults == [(FaultKind.FRAMING, 0)]
    assert peak < 16 << 20
