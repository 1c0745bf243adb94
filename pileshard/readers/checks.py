"""Whether records are as they were written, all those of a range at once.

Every record ends with a CRC-32C of its Example. One call of the CRC a record would cost more in Python than the CRC
itself, so a range of any number of records takes one call, by what is known of a CRC:

    header | Example | crc   header | Example | crc   ...        as it stands in the file, the crc masked
             Example | crc   STEER  | Example | crc   ...        what the call goes over

A message with its own plain CRC behind it leaves the register at one and the same value, and twelve bytes take it from
there to where it starts: the next Example is as if it were the first. An error in one record stays in the register to
the end, and errors in several cancel once in 2^32.

What the index says is held against the records too: their lengths, the CRCs of these, and where the tokens begin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, RECORD_TOKENS, masked_crc
from pileshard.order.chunks import I64

U32 = npt.NDArray[np.uint32]

#: Bytes of room that `sound` needs before and after the records.
BEFORE, AFTER = FOOTER_BYTES, HEADER_BYTES

#: Bytes of a record that are no tokens: framing, and the Example up to its tokens (numbers of any size fit).
MOST_OVERHEAD = 128

#: CRC-32C of any message followed by its CRC, and what twelve bytes must end with to make 0 of it.
_RESIDUE = 0x48674BC7
_STEER = np.array([0, 0, 0, 0xB0802EF6], dtype=np.uint32)

_WINDOW = np.dtype("V16")
_MASK_DELTA = np.uint32(0xA282EAD8)
_SHIFT_DOWN, _SHIFT_UP = np.uint32(17), np.uint32(15)
_FRAME = FOOTER_BYTES + HEADER_BYTES
_NAME = b"\x0a\x06tokens"
_KEY = np.frombuffer(_NAME, dtype="<u8")[0]

#: Records up to which a call for each costs less than the arrays for one call in all.
_FEW = 8


def sound(memory: npt.NDArray[np.uint8], offsets: I64, token_bytes: I64) -> bool:
    """Whether records are whole, unharmed and where the index says.

    Args:
      memory: uint8, contiguous: the records from byte `BEFORE` on, and `AFTER` bytes more. What is no tokens is written
        to.
      offsets: of the records in their file and of the end of the last, ascending by more than framing takes and by at
        most `MOST_OVERHEAD` more than the tokens: int64 [records + 1].
      token_bytes: of each record, above 0: int64 [records].
    """
    at = offsets - offsets[0]
    if len(token_bytes) <= _FEW:
        data, ends = memory.data[BEFORE:], at.tolist()
        return all(
            record_is_sound(data[start:end], count)
            for start, end, count in zip(ends[:-1], ends[1:], token_bytes.tolist(), strict=True)
        )
    size = int(at[-1])
    # A window lies over the end of a record and the header of the next.
    windows: npt.NDArray[Any] = np.ndarray((size + 1,), dtype=_WINDOW, buffer=memory, strides=(1,))
    frames = windows[at].view(np.uint32).reshape(-1, 4)
    lengths = at[1:] - at[:-1]
    lengths -= _FRAME
    if not (frames[:-1, 1:] == _frames().take(lengths, axis=0)).all():
        return False
    keys: npt.NDArray[np.uint64] = np.ndarray((size,), dtype=np.uint64, buffer=memory, strides=(1,))
    bounds, distances = _key_distances()
    key_at = at[1:] - token_bytes
    key_at -= distances[bounds.searchsorted(token_bytes, side="right")]
    if not (keys[key_at] == _KEY).all():
        return False
    masked = frames[1:, 0] - _MASK_DELTA
    due = np.empty((len(masked), 4), dtype=np.uint32)
    due[:] = _STEER
    due[:, 0] = masked >> _SHIFT_DOWN | masked << _SHIFT_UP
    windows[at[1:]] = due.view(_WINDOW)[:, 0]
    return bool(crc32c(memory.data[_FRAME : BEFORE + size]) == _RESIDUE)


@lru_cache(maxsize=1)
def _frames() -> U32:
    """Headers of records by their length, 12 bytes each: CRCs of numbers differ by the sum of what their bits add."""
    nothing = crc32c(bytes(8))
    crcs = np.array([nothing], dtype=np.uint32)
    most = RECORD_TOKENS * 4 + MOST_OVERHEAD
    for bit in range(most.bit_length()):
        adds = crc32c((1 << bit).to_bytes(8, "little")) ^ nothing
        crcs = np.concatenate([crcs, crcs ^ np.uint32(adds)])
    frames = np.zeros((len(crcs), 3), dtype=np.uint32)
    frames[:, 0] = np.arange(len(crcs))
    frames[:, 2] = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + _MASK_DELTA
    return frames


@lru_cache(maxsize=1)
def _key_distances() -> tuple[I64, I64]:
    """From the feature's name to the tokens in bytes, by how many bytes of tokens there are: bounds, and distances."""

    def varint(value: int) -> int:
        return -(-value.bit_length() // 7)

    def distance(count: int) -> int:
        value = 1 + varint(count)
        values = 1 + varint(count + value)
        return 8 + value + values + 1 + varint(count + value + values)

    bounds, distances = [], [distance(1)]
    for bits in (7, 14, 21):
        for count in range((1 << bits) - 32, 1 << bits):
            if (found := distance(count)) != distances[-1]:
                bounds.append(count)
                distances.append(found)
        if distance(1 << bits) != distances[-1]:
            bounds.append(1 << bits)
            distances.append(distance(1 << bits))
    return np.array(bounds, dtype=np.int64), np.array(distances, dtype=np.int64)


def record_is_sound(record: bytes | memoryview, token_bytes: int) -> bool:
    """The same of one record alone, without arithmetic of CRCs."""
    length = len(record) - HEADER_BYTES - FOOTER_BYTES
    key_at = HEADER_BYTES + length - token_bytes - _key_distance(token_bytes)
    return (
        key_at >= HEADER_BYTES
        and record[:HEADER_BYTES] == _header(length)
        and record[key_at : key_at + len(_NAME)] == _NAME
        and masked_crc(record[HEADER_BYTES:-FOOTER_BYTES]) == int.from_bytes(record[-FOOTER_BYTES:], "little")
    )


@lru_cache(maxsize=1 << 16)
def _header(length: int) -> bytes:
    head = length.to_bytes(8, "little")
    return head + masked_crc(head).to_bytes(4, "little")


@lru_cache(maxsize=1 << 16)
def _key_distance(token_bytes: int) -> int:
    bounds, distances = _key_distances()
    return int(distances[bounds.searchsorted(token_bytes, side="right")])
