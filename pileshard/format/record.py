"""One record of a shard: a `tf.train.Example` in TFRecord framing, written and read without TensorFlow.

A record holds up to `RECORD_TOKENS` tokens of one document:

    uint64 length | uint32 masked CRC of the length | Example | uint32 masked CRC of the Example     (little-endian)

The Example has the features `input`, `line`, `part` (int64) and `tokens` (bytes), serialized in this order. Because
`tokens` comes last, a record's token bytes end exactly 4 bytes before the next record begins; readers rely on it.

Source of the framing: tensorflow/core/lib/io/record_writer.h; of the message: tensorflow/core/example/example.proto.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

#: Most tokens in one record; longer documents are stored as consecutive parts.
RECORD_TOKENS = 65536

#: Bytes of framing before and after the Example.
HEADER_BYTES = 12
FOOTER_BYTES = 4


def masked_crc(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C, rotated and offset as TFRecord stores it."""
    return _mask(crc32c(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """A non-negative integer in protobuf's base-128 encoding."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(payload)) + payload


def _int_entry(name: bytes, value: int) -> bytes:
    feature = _field(3, _field(1, varint(value)))
    return _field(1, _field(1, name) + _field(2, feature))


@lru_cache(maxsize=4096)
def _input_entry(value: int) -> bytes:
    return _int_entry(b"input", value)


@lru_cache(maxsize=4096)
def _part_entry(value: int) -> bytes:
    return _int_entry(b"part", value)


# Lines differ from record to record: all but the number itself is the same for numbers of one length.
_LINE_HEADS = {size: _int_entry(b"line", 1 << 7 * (size - 1))[:-size] for size in range(1, 11)}


def _line_entry(value: int) -> bytes:
    number = varint(value)
    return _LINE_HEADS[len(number)] + number


@lru_cache(maxsize=65536)
def _tokens_entry_head(length: int) -> tuple[bytes, int]:
    """Bytes before the payload in the `tokens` entry, and the length of the entry with it."""
    value = b"\x0a" + varint(length)
    bytes_list = b"\x0a" + varint(len(value) + length)
    feature = b"\x12" + varint(len(bytes_list) + len(value) + length)
    key = _field(1, b"tokens")
    inner = len(key) + len(feature) + len(bytes_list) + len(value) + length
    head = b"\x0a" + varint(inner) + key + feature + bytes_list + value
    return head, len(head) + length


def example_head(input_number: int, line: int, part: int, token_bytes: int) -> bytes:
    """The Example's serialized bytes up to the token bytes, which follow as they are and end it.

    Args:
      input_number: number of the document's input.
      line: line number in the input, from 1.
      part: 0 for a document's first record, 1 for the next, ...
      token_bytes: how many bytes of tokens follow.
    """
    tokens_head, tokens_len = _tokens_entry_head(token_bytes)
    entries = _input_entry(input_number) + _line_entry(line) + _part_entry(part)
    return b"\x0a" + varint(len(entries) + tokens_len) + entries + tokens_head


@lru_cache(maxsize=65536)
def _length_frame(length: int) -> bytes:
    raw = length.to_bytes(8, "little")
    return raw + masked_crc(raw).to_bytes(4, "little")


def frame_pieces(
    input_number: int, line: int, part: int, tokens: bytes | memoryview, tail: bytes = b""
) -> tuple[list[bytes | memoryview], int]:
    """One whole record as pieces to be written one after another, so that no token is copied for it.

    Args:
      input_number: number of the document's input.
      line: line number in the input, from 1.
      part: number of the record in its document, from 0.
      tokens: bytes of tokens.
      tail: more bytes of tokens (the end-of-document id).

    Returns:
      The pieces, and how many bytes they are.
    """
    token_bytes = len(tokens) + len(tail)
    head = example_head(input_number, line, part, token_bytes)
    crc = crc32c(tail, crc32c(tokens, crc32c(head)))
    size = len(head) + token_bytes
    pieces = [_length_frame(size), head, tokens, tail, _mask(crc).to_bytes(4, "little")]
    return pieces, HEADER_BYTES + size + FOOTER_BYTES


def frame(input_number: int, line: int, part: int, tokens: bytes) -> bytes:
    """One whole record: framing, Example and tokens."""
    return b"".join(frame_pieces(input_number, line, part, tokens)[0])


class ParsedExample(NamedTuple):
    """Features of a record; `tokens_at` is where the token bytes begin in the Example, which they end."""

    input: int
    line: int
    part: int
    tokens_at: int


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint is longer than 64 bits")


def _expect(data: bytes | memoryview, at: int, literal: bytes) -> int:
    if bytes(data[at : at + len(literal)]) != literal:
        raise ValueError(f"expected {literal!r} at byte {at} of the Example")
    return at + len(literal)


def _read_int_entry(data: bytes | memoryview, at: int, name: bytes) -> tuple[int, int]:
    at = _expect(data, at, b"\x0a")
    _, at = _read_varint(data, at)
    at = _expect(data, at, _field(1, name) + b"\x12")
    _, at = _read_varint(data, at)
    at = _expect(data, at, b"\x1a")
    _, at = _read_varint(data, at)
    at = _expect(data, at, b"\x0a")
    _, at = _read_varint(data, at)
    return _read_varint(data, at)


def parse_example(data: bytes | memoryview) -> ParsedExample:
    """Parses an Example in exactly the form that `frame` writes.

    Args:
      data: the Example, without framing.

    Raises:
      ValueError: the bytes are not such an Example.
    """
    try:
        at = _expect(data, 0, b"\x0a")
        _, at = _read_varint(data, at)
        input_number, at = _read_int_entry(data, at, b"input")
        line, at = _read_int_entry(data, at, b"line")
        part, at = _read_int_entry(data, at, b"part")
        at = _expect(data, at, b"\x0a")
        _, at = _read_varint(data, at)
        at = _expect(data, at, _field(1, b"tokens") + b"\x12")
        _, at = _read_varint(data, at)
        at = _expect(data, at, b"\x0a")
        _, at = _read_varint(data, at)
        at = _expect(data, at, b"\x0a")
        length, at = _read_varint(data, at)
    except IndexError:
        raise ValueError("the Example is cut off") from None
    if at + length != len(data):
        raise ValueError(f"the Example has {len(data) - at} bytes of tokens where it names {length}")
    # Lengths on the way are not followed above; the one canonical form settles them all.
    if bytes(data[:at]) != example_head(input_number, line, part, length):
        raise ValueError("the Example is not in canonical form")
    return ParsedExample(input_number, line, part, at)
