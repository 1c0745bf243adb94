"""Parses the heads of many Examples at once.

`parse_example` takes some 10 microseconds a record, which is most of the time of an audit of short documents. Here the
one canonical form is used the other way round: the lengths on the way follow from the Example's own length and from
how many bytes the numbers take, so records of one shape (those whose numbers take equally many bytes) are held against
the bytes that they must have, all together. What does not fit is left to `parse_example`, which says why.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.audit.framing import rows
from pileshard.format.record import example_head, parse_example

Ints = npt.NDArray[np.int64]

#: Bytes that the numbers of an input, a line and a part may take here; longer ones are parsed one by one.
_WIDEST = (4, 6, 4)
#: Bytes that a length may take here: enough for any Example there can be.
_WIDEST_LENGTH = 3
_NO_SHAPE = (1 << 16) - 1  # no shape has this code: they are less than 4 * 6 * 4 * 3^5
_NAMES = (b"input", b"line", b"part")
_KEY_BYTES = 8  # 0a 06 "tokens"
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
    order = np.argsort(shapes.codes, kind="stable")  # 16 bits: in linear time
    ordered = shapes.codes[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), count]
    for first, last in pairwise(bounds):
        if first < last and ordered[first] != _NO_SHAPE:
            _take_shape(data, starts, ends, order[first:last], shapes, heads)
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


def _length_widths(sizes: Ints, entries: Ints) -> list[Ints]:
    """Bytes that the five lengths around the entries and the tokens take; 0 where there is no such length.

    Args:
      sizes: int64 [n], bytes of the Examples.
      entries: int64 [n], bytes of the three entries before the tokens'.
    """
    features, features_width = _strip(sizes)
    entry, entry_width = _strip(features - entries)
    feature, feature_width = _strip(entry - _KEY_BYTES)
    value_list, list_width = _strip(feature)
    _, tokens_width = _strip(value_list)
    return [features_width, entry_width, feature_width, list_width, tokens_width]


class _Shapes(NamedTuple):
    """What heads of n records must look like, by their sizes and the bytes that their numbers take."""

    codes: npt.NDArray[np.uint16]  # one number for each shape, or _NO_SHAPE
    widths: list[Ints]  # of the varints of input, line, part and the five lengths, each [n]


def _shapes(data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints) -> _Shapes:
    last = len(data) - 1
    at = starts + 1 + _strip(sizes)[1]
    begin = at
    widths: list[Ints] = []
    fits = np.ones(len(starts), dtype=bool)
    codes = np.zeros(len(starts), dtype=np.int64)
    for name, widest in zip(_NAMES, _WIDEST, strict=True):
        found = data[np.minimum(at + 9 + len(name), last)].astype(np.int64)
        width = np.minimum(np.maximum(found, 1), widest)
        fits &= width == found
        widths.append(width)
        codes = codes * widest + (width - 1)
        at = at + 10 + len(name) + width
    length_widths = _length_widths(sizes, at - begin)
    for width in length_widths:
        fits &= (width > 0) & (width <= _WIDEST_LENGTH)
        codes = codes * _WIDEST_LENGTH + (width - 1)
    return _Shapes(np.where(fits, codes, _NO_SHAPE).astype(np.uint16), [*widths, *length_widths])


class _Form(NamedTuple):
    """An Example's head of one shape.

    Attributes:
      head: its bytes as uint64, padded, the varints' without their 7 bits of value.
      mask: the bits that are the same in all of them, as uint64.
      size: bytes of the head.
      numbers: where the varints of input, line and part begin.
      lengths: where the varints of the five lengths begin.
      before: bytes of the Example that each of these lengths does not count.
    """

    head: npt.NDArray[np.uint64]
    mask: npt.NDArray[np.uint64]
    size: int
    numbers: tuple[int, ...]
    lengths: tuple[int, ...]
    before: tuple[int, ...]


@lru_cache(maxsize=4096)
def _form(shape: tuple[int, ...]) -> _Form:
    head, mask = bytearray(), bytearray()
    numbers: list[int] = []
    lengths: list[int] = []

    def put(literal: bytes) -> None:
        head.extend(literal)
        mask.extend(b"\xff" * len(literal))

    def put_varint(places: list[int], width: int) -> None:
        places.append(len(head))
        head.extend(b"\x80" * (width - 1) + b"\0")
        mask.extend(b"\x80" * width)

    put(b"\x0a")
    put_varint(lengths, shape[3])
    for name, width in zip(_NAMES, shape[:3], strict=True):
        value = bytes((0x1A, 2 + width, 0x0A, width))
        feature = bytes((0x0A, len(name))) + name + bytes((0x12, len(value) + width)) + value
        put(bytes((0x0A, len(feature) + width)) + feature)
        put_varint(numbers, width)
    for before, width in zip((b"\x0a", b"\x0a\x06tokens\x12", b"\x0a", b"\x0a"), shape[4:], strict=True):
        put(before)
        put_varint(lengths, width)
    size = len(head)
    ends = [at + width for at, width in zip(lengths, shape[3:], strict=True)]
    padding = bytes(-size % 8)
    words = [np.frombuffer(bytes(part) + padding, dtype=np.uint64) for part in (head, mask)]
    return _Form(words[0], words[1], size, tuple(numbers), tuple(lengths), tuple(ends))


def _varints(found: npt.NDArray[np.uint8], at: int, width: int) -> Ints:
    """The values of varints in the columns from `at`: int64 [n]."""
    values = found[:, at].astype(np.int64) & 0x7F
    for place in range(1, width):
        values |= (found[:, at + place].astype(np.int64) & 0x7F) << 7 * place
    return values


def _take_shape(
    data: npt.NDArray[np.uint8], starts: Ints, ends: Ints, numbers: Ints, shapes: _Shapes, heads: Heads
) -> None:
    """Parses the records of one shape, by their numbers."""
    shape = tuple(int(width[numbers[0]]) for width in shapes.widths)
    form = _form(shape)
    width = 8 * len(form.head)
    first = starts[numbers]
    within = first + width <= len(data)
    if not within.all():  # at the end of the memory: these are left to be taken alone
        numbers, first = numbers[within], first[within]
    found = rows(data, first, width)
    words = (found.view(np.uint64) ^ form.head) & form.mask
    same = np.bitwise_or.reduce(words, axis=1) == 0
    for at, width, into in zip(form.numbers, shape[:3], (heads.input, heads.line, heads.part), strict=True):
        values = _varints(found, at, width)
        if width > 1:
            same &= values >> 7 * (width - 1) > 0  # else it would take fewer bytes
        into[numbers] = values
    sizes = ends[numbers] - first
    for at, width, before in zip(form.lengths, shape[3:], form.before, strict=True):
        same &= _varints(found, at, width) == sizes - before
    heads.tokens_at[numbers] = form.size
    heads.good[numbers] = same & (sizes >= form.size)


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
