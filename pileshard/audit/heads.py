"""Parses the heads of many Examples at once.

`parse_example` takes some 10 microseconds a record, which is most of the time of an audit of short documents. Here the
one canonical form is used the other way round: the lengths on the way follow from the Example's own length and from
how many bytes the numbers take, so records of one shape (those whose numbers take equally many bytes) are held against
the bytes that they must have, all together. What does not fit is left to `parse_example`, which says why.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.format.record import example_head, parse_example

Ints = npt.NDArray[np.int64]

#: Bytes that the numbers of an input, a line and a part may take here; longer ones are parsed one by one.
_WIDEST = (4, 6, 4)
_NAMES = (b"input", b"line", b"part")
_LARGEST = (1 << 63) - 1


class Heads(NamedTuple):
    """Features of n records.

    Attributes:
      input: int64 [n].
      line: int64 [n].
      part: int64 [n].
      tokens_at: int64 [n], where the token bytes begin in each Example, which they end.
      good: bool [n]; where it is False, the record is no Example of this format and the rest means nothing.
      why: for each record that is not good, by its number, what is wrong with it.
    """

    input: Ints
    line: Ints
    part: Ints
    tokens_at: Ints
    good: npt.NDArray[np.bool_]
    why: dict[int, str]


def parse_heads(data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Heads:
    """Parses Examples in exactly the form that `frame` writes.

    Args:
      data: uint8, the memory that holds them.
      starts: int64 [n], where each Example begins in `data`.
      ends: int64 [n], where it ends.
    """
    count = len(starts)
    columns = [np.zeros(count, dtype=np.int64) for _ in range(4)]
    heads = Heads(columns[0], columns[1], columns[2], columns[3], np.zeros(count, dtype=bool), {})
    shapes = _shapes(data, starts, ends - starts)
    codes = shapes @ (np.int64(11) ** np.arange(shapes.shape[1]))
    order = np.argsort(codes, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), count]
    for first, last in pairwise(bounds):
        if first < last and shapes[order[first], 0]:
            _take_shape(data, starts, ends, order[first:last], tuple(shapes[order[first]].tolist()), heads)
    for number in np.flatnonzero(~heads.good).tolist():
        _take_alone(data, int(starts[number]), int(ends[number]), number, heads)
    return heads


def _varint_bytes(values: Ints) -> Ints:
    """Bytes that values below 2^28 take as varints."""
    return 1 + (values >> 7 > 0) + (values >> 14 > 0) + (values >> 21 > 0)


def _strip(totals: Ints) -> tuple[Ints, Ints]:
    """Undoes a length-delimited field: x and its varint's bytes from 1 + bytes + x; 0 bytes: there is none."""
    width = 1 + (totals > 1 + 1 + 0x7F) + (totals > 1 + 2 + 0x3FFF) + (totals > 1 + 3 + 0x1FFFFF)
    inner = totals - 1 - width
    return inner, np.where((inner >= 0) & (_varint_bytes(inner) == width), width, 0)


def _lengths(sizes: Ints, entries: Ints) -> tuple[list[Ints], list[Ints]]:
    """The five lengths around the entries and the tokens, and the bytes each takes (0 where there is no such length).

    Args:
      sizes: int64 [n], bytes of the Examples.
      entries: int64 [n], bytes of the three entries before the tokens'.
    """
    features, features_width = _strip(sizes)
    entry, entry_width = _strip(features - entries)
    feature, feature_width = _strip(entry - 8)  # the key: 0a 06 "tokens"
    value_list, list_width = _strip(feature)
    tokens, tokens_width = _strip(value_list)
    return [features, entry, feature, value_list, tokens], [
        features_width,
        entry_width,
        feature_width,
        list_width,
        tokens_width,
    ]


def _shapes(data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints) -> Ints:
    """Bytes of each varint: of input, line, part and the five lengths, int64 [n, 8]; all 0 where it cannot be."""
    last = len(data) - 1
    at = starts + 1 + _strip(sizes)[1]
    begin = at
    widths: list[Ints] = []
    fits = np.ones(len(starts), dtype=bool)
    for name, widest in zip(_NAMES, _WIDEST, strict=True):
        width = data[np.minimum(at + 9 + len(name), last)].astype(np.int64)
        fits &= (width >= 1) & (width <= widest)
        width = np.clip(width, 1, widest)
        widths.append(width)
        at = at + 10 + len(name) + width
    _, length_widths = _lengths(sizes, at - begin)
    for width in length_widths:
        fits &= width > 0
    return np.stack([*widths, *length_widths], axis=1) * fits[:, None]


class _Columns(NamedTuple):
    """An Example's head of one shape: its bytes, with any numbers in the varints, and where those begin."""

    head: npt.NDArray[np.uint8]
    numbers: tuple[int, ...]
    lengths: tuple[int, ...]


@lru_cache(maxsize=4096)
def _columns(shape: tuple[int, ...]) -> _Columns:
    head = bytearray()
    numbers, lengths = [], []
    lengths.append(1)
    head += b"\x0a" + bytes(shape[3])
    for name, width in zip(_NAMES, shape[:3], strict=True):
        value = bytes((0x0A, width)) + bytes(width)
        value = bytes((0x1A, len(value))) + value
        entry = bytes((0x0A, len(name))) + name + bytes((0x12, len(value))) + value
        head += bytes((0x0A, len(entry))) + entry
        numbers.append(len(head) - width)
    for before, width in zip((b"\x0a", b"\x0a\x06tokens\x12", b"\x0a", b"\x0a"), shape[4:], strict=True):
        head += before
        lengths.append(len(head))
        head += bytes(width)
    return _Columns(np.frombuffer(bytes(head), dtype=np.uint8), tuple(numbers), tuple(lengths))


def _put_varint(out: npt.NDArray[Any], at: int, width: int, values: Ints) -> None:
    for place in range(width):
        out[:, at + place] = (values >> 7 * place & 0x7F) | (0x80 if place + 1 < width else 0)


def _take_shape(
    data: npt.NDArray[np.uint8], starts: Ints, ends: Ints, numbers: Ints, shape: tuple[int, ...], heads: Heads
) -> None:
    """Parses the records of one shape, by their numbers."""
    columns = _columns(shape)
    long = len(columns.head)
    first = starts[numbers]
    found = data[np.minimum(first[:, None] + np.arange(long), len(data) - 1)]
    wanted = np.tile(columns.head, (len(numbers), 1))
    same = np.ones(len(numbers), dtype=bool)
    for at, width, into in zip(columns.numbers, shape[:3], (heads.input, heads.line, heads.part), strict=True):
        values = np.zeros(len(numbers), dtype=np.int64)
        for place in range(width):
            values |= (found[:, at + place].astype(np.int64) & 0x7F) << 7 * place
        _put_varint(wanted, at, width, values)
        same &= (values >> 7 * (width - 1) > 0) | (width == 1)  # else it would take fewer bytes
        into[numbers] = values
    entries = sum(10 + len(name) + width for name, width in zip(_NAMES, shape[:3], strict=True))
    sizes = ends[numbers] - first
    lengths, _ = _lengths(sizes, np.int64(entries))  # type: ignore[arg-type]
    for at, width, values in zip(columns.lengths, shape[3:], lengths, strict=True):
        _put_varint(wanted, at, width, values)
    heads.tokens_at[numbers] = long
    heads.good[numbers] = same & (found == wanted).all(axis=1) & (sizes >= long)


def _take_alone(data: npt.NDArray[np.uint8], start: int, end: int, number: int, heads: Heads) -> None:
    try:
        example = parse_example(data[start:end].tobytes())
        if max(example.input, example.line, example.part) > _LARGEST:
            raise ValueError("a number is larger than an int64")
    except ValueError as error:
        heads.why[number] = str(error)
        for column in (heads.input, heads.line, heads.part):
            column[number] = 0
        heads.tokens_at[number] = end - start
        return
    heads.input[number], heads.line[number], heads.part[number], heads.tokens_at[number] = example
    heads.good[number] = True


#: Bytes of the longest head: with the tokens of a full record, the longest Example there can be.
LONGEST_HEAD = len(example_head(_LARGEST, _LARGEST, _LARGEST, 1 << 18))
