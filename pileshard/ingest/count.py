r"""Counts the text of one range of an input's frames, so that parts can begin in the middle with the right line number.

A plain input can be entered anywhere. A zstd input of several frames can be entered at a frame, and a frame is found
without what comes before it: its magic number, a header that makes sense, and blocks that follow each other. That is
evidence and no proof. The proof is that the range before, read from its own first frame, ends where this one begins;
whoever joins the ranges compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec
import xxhash

from pileshard.ingest.containers import HEAD_BYTES, ZSTD_MAGIC, Container, is_skippable, tell
from pileshard.ingest.frames import pieces
from pileshard.ingest.parts import Entry, Seam, Tally
from pileshard.ingest.stored import StoredBytes

#: Frames that are longer than this (stored) are not looked for: such an input is read through.
LONGEST_FRAME = 64 << 20

_WINDOW_BYTES = 1 << 20
_LOOK_AHEAD = 512 << 10
_MOST_BLOCKS = 3
_MOST_BLOCK_BYTES = 128 << 10
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """The frames that begin in a range of an input's stored bytes.

    Attributes:
      first: offset of the first of them; the input's size where there is none.
      after: offset of the first frame with text behind the range, or the input's size.
      text: bytes of their text.
      newlines: in it.
      ends_line: whether the text's last byte is a newline; None where there is no text.
      text_digest: of the text (xxh3, hex).
      stored_digest: of the range's stored bytes (xxh3, hex).
    """

    first: int
    after: int
    text: int
    newlines: int
    ends_line: bool | None
    text_digest: str
    stored_digest: str


class NoEntryError(Exception):
    """The input cannot be entered in the range: no frame was found, or what was found cannot be read."""


def enterable(head: bytes) -> Container | None:
    """The container of an input that can be entered in the middle, told by its first bytes (some megabytes), or None.

    Of zstd, those are the inputs whose first frame with text ends within `head`.
    """
    container = tell(head[:HEAD_BYTES]) if head else None
    if container is Container.PLAIN:
        return container
    if container is not Container.ZSTD:
        return None
    at = 0
    while at + 8 <= len(head) and is_skippable(head[at : at + 4]):
        at += 8 + int.from_bytes(head[at + 4 : at + 8], "little")
    end = frame_end(head, at)
    # Behind a first frame that is all there is, nothing can be entered.
    return container if end is not None and end < len(head) else None


def count_range(
    raw: BinaryIO,
    url: str,
    container: Container,
    begin: int,
    end: int,
    size: int,
    on_bytes: Callable[[bytes], None] | None = None,
) -> Counted:
    """Reads the frames that begin at or after `begin` and before `end`, and counts their text.

    Args:
      raw: a seekable binary file object.
      url: name of the input, for errors.
      container: zstd or plain.
      begin: first stored byte of the range.
      end: the stored byte after the range.
      size: of the input.
      on_bytes: called with every chunk of stored bytes that is read from `begin` on.

    Raises:
      NoEntryError: no frame begins within `LONGEST_FRAME` of `begin`.
      InputError: what was taken for frames is damaged.
    """
    first = begin if container is Container.PLAIN or begin == 0 else find_frame(raw, begin, size)
    digest = xxhash.xxh3_128()
    seen = begin

    def hashed(chunk: bytes) -> None:
        nonlocal seen
        digest.update(memoryview(chunk)[: max(0, end - seen)])
        seen += len(chunk)
        if on_bytes is not None:
            on_bytes(chunk)

    raw.seek(begin)
    stored = StoredBytes(raw, hashed, at=begin)
    while stored.offset < first and len(stored.take(first - stored.offset)):
        pass
    tally = Tally(Seam(text=0, lines=0, inside=False))
    text_digest = xxhash.xxh3_128()
    for data in pieces(stored, url, container, until=max(end, first)):
        tally.take(data)
        text_digest.update(data)
    after = stored.offset
    while seen < end and len(stored.take(end - seen)):
        pass
    return Counted(
        first=first,
        after=after,
        text=tally.text,
        newlines=tally.lines,
        ends_line=None if tally.text == 0 else not tally.inside,
        text_digest=text_digest.hexdigest(),
        stored_digest=digest.hexdigest(),
    )


def find_frame(raw: BinaryIO, begin: int, size: int) -> int:
    """Offset of the first zstd frame at or after `begin`, or `size` where the input ends before one does.

    Raises:
      NoEntryError: there is none within `LONGEST_FRAME`.
    """
    at = begin
    while at < size:
        if at - begin > LONGEST_FRAME:
            raise NoEntryError(f"no frame begins within {LONGEST_FRAME >> 20} MiB of byte {begin:,}")
        raw.seek(at)
        window = _read(raw, _WINDOW_BYTES + _LOOK_AHEAD)
        ends = at + len(window) >= size
        found = window.find(ZSTD_MAGIC)
        while found >= 0 and (found < _WINDOW_BYTES or ends):
            if _plausible(window, found, ends):
                return at + found
            found = window.find(ZSTD_MAGIC, found + 1)
        if ends:
            break
        at += _WINDOW_BYTES
    return size


def _read(raw: BinaryIO, size: int) -> bytes:
    parts = []
    while size and (part := raw.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _plausible(data: bytes, at: int, ends: bool) -> bool:
    """Whether a frame with some blocks seems to begin there, as far as the data goes.

    Args:
      data: a window of the stored bytes.
      at: of the magic number.
      ends: whether the input ends with the data.
    """
    header = _header(data, at)
    if header is None:
        return False
    place, checksum = header
    for _ in range(_MOST_BLOCKS):
        block = _block(data, place)
        if block is None:
            return False
        place, last = block
        if place > len(data):
            return not ends
        if last:
            place += 4 if checksum else 0
            magic = data[place : place + 4]
            if len(magic) < 4:
                return place == len(data) if ends else True
            return magic == ZSTD_MAGIC or is_skippable(magic)
    return True


def frame_end(data: bytes, at: int) -> int | None:
    """Offset after the zstd frame that begins at `at`, told by the headers of its blocks; None if it is not there."""
    header = _header(data, at)
    if header is None:
        return None
    place, checksum = header
    last = False
    while not last:
        block = _block(data, place)
        if block is None or block[0] > len(data):
            return None
        place, last = block
    place += 4 if checksum else 0
    return place if place <= len(data) else None


def _header(data: bytes, at: int) -> tuple[int, bool] | None:
    """Where a frame's first block begins, and whether the frame has a checksum (RFC 8878, section 3.1.1.1)."""
    if data[at : at + 4] != ZSTD_MAGIC or len(data) < at + 6:
        return None
    descriptor = data[at + 4]
    single = bool(descriptor & 0x20)
    if descriptor & 0x08:  # reserved
        return None
    if not single and data[at + 5] >> 3 > 21:  # a window over 2^31
        return None
    content = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if single else 0)
    place = at + 5 + (0 if single else 1) + _DICTIONARY_ID_BYTES[descriptor & 3] + content
    return place, bool(descriptor & 0x04)


def _block(data: bytes, at: int) -> tuple[int, bool] | None:
    """Offset after a block, and whether it is the frame's last; None where that is no block of a frame."""
    if at + 3 > len(data):
        return None
    header = int.from_bytes(data[at : at + 3], "little")
    kind, size = header >> 1 & 3, header >> 3
    if kind == 3 or size > _MOST_BLOCK_BYTES:
        return None
    return at + 3 + (1 if kind == 1 else size), bool(header & 1)


def join(counted: Sequence[Counted], container: Container, size: int) -> list[Entry] | None:
    """The parts that consecutive ranges of an input make, if each ends where the next begins; else None.

    Args:
      counted: the ranges, from the input's first byte to its last.
      container: zstd or plain.
      size: stored bytes of the input.
    """
    if [one.after for one in counted] != [one.first for one in counted[1:]] + [size]:
        return None
    seams = [Seam(text=0, lines=0, inside=False)]
    for one in counted:
        before = seams[-1]
        inside = before.inside if one.ends_line is None else not one.ends_line
        seams.append(Seam(text=before.text + one.text, lines=before.lines + one.newlines, inside=inside))
    return [
        Entry(container=container.value, at=one.first, begin=begin, end=end, text_digest=one.text_digest)
        for one, begin, end in zip(counted, seams, seams[1:], strict=False)
    ]
