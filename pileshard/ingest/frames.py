"""Stored bytes -> decompressed bytes: frames of zstd, members of gzip, or the bytes as they are.

Nothing here ever ends early without a word: an input that is cut off, damaged or followed by something else raises
`InputError`. The one thing that no reader can know is whether a file that ends exactly between two frames was meant
to go on; the size and hash of the input tell that.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from pileshard.errors import InputError
from pileshard.ingest.containers import (
    GZIP_MAGIC,
    HEAD_BYTES,
    ZSTD_MAGIC,
    Container,
    is_skippable,
    looks_like,
    tell,
)
from pileshard.ingest.stored import StoredBytes

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

#: Most bytes that one step puts out, however well the input is compressed.
OUT_BYTES = 1 << 20
# What a decompressor did not need of a piece is copied once and handed back. Pieces begin small in each frame and
# double, so that in a file of many small frames the copies stay proportional to the input.
_FIRST_FEED = 4 << 10
_MOST_FEED = 256 << 10

# zstd refuses windows over 2^27 unless told otherwise; the Pile and `zstd --long=31` use up to 2^31.
_ZSTD_OPTIONS: dict[int, int] = {DecompressionParameter.window_log_max: 31}
_COPY_AGAIN = "copy it again and compare its size or checksum with the origin's"


def decompressed(
    raw: BinaryIO,
    url: str,
    on_bytes: Callable[[bytes], None] | None = None,
    *,
    at: int = 0,
    container: Container | None = None,
    marks: Sequence[int] = (),
) -> Iterator[bytes]:
    """Decompress an input, whatever container its first bytes say it is in.

    Args:
      raw: a binary file object at the input's byte `at`; its reads may be short.
      url: name of the input, for errors.
      on_bytes: called with every chunk of stored bytes, in order; no chunk lies on both sides of a mark.
      at: offset of the first byte read: 0, or the begin of a frame.
      container: what the input is in, where it is not read from its first byte.
      marks: ascending offsets in the stored bytes.

    Yields:
      Pieces of the decompressed stream, none over `OUT_BYTES`. An empty piece stands for each mark, where all that the
      stored bytes before the mark give has been yielded; none other is empty, and marks behind the end have none.

    Raises:
      InputError: the input is empty, in no known container, cut off, damaged, or followed by bytes that belong to no
        frame.
    """
    stored = StoredBytes(raw, on_bytes, at=at, marks=marks)
    return pieces(stored, url, container or container_of(stored, url))


def container_of(stored: StoredBytes, url: str) -> Container:
    """Tell the container of an input that stands at its first byte.

    Raises:
      InputError: the input is empty or in no known container.
    """
    head = stored.peek(HEAD_BYTES)
    if not head:
        raise InputError(url, 0, "the input is empty (0 bytes), nearly always a failed copy", _COPY_AGAIN)
    container = tell(head)
    if container is None:
        raise InputError(
            url,
            0,
            f"no known container: it looks like {looks_like(head)}",
            "inputs are JSON lines in zstd, in gzip or plain",
        )
    return container


def pieces(stored: StoredBytes, url: str, container: Container, until: int | None = None) -> Iterator[bytes]:
    """Decompress from where `stored` stands, as `decompressed` does.

    Args:
      stored: the stored bytes, at the begin of a frame.
      url: name of the input, for errors.
      container: what they are in.
      until: of zstd, stop before the first frame that begins there or later and holds text (`stored.offset` is its
        begin); of a plain input, stop there.
    """
    if container is Container.ZSTD:
        return _zstd_frames(stored, url, until)
    if container is Container.GZIP:
        return _gzip_members(stored, url)
    return _plain(stored, until)


def _plain(stored: StoredBytes, until: int | None) -> Iterator[bytes]:
    while True:
        while stored.pass_mark():
            yield b""
        piece = stored.take(OUT_BYTES if until is None else min(OUT_BYTES, until - stored.offset))
        if not piece:
            return
        yield bytes(piece)


def _zstd_frames(stored: StoredBytes, url: str, until: int | None) -> Iterator[bytes]:
    while True:
        while stored.pass_mark():
            yield b""
        magic = stored.peek(4)
        if not magic:
            return
        if is_skippable(magic):
            yield from _skip_frame(stored, url)
        elif magic == ZSTD_MAGIC:
            if until is not None and stored.offset >= until:
                return
            yield from _zstd_frame(stored, url)
        elif len(magic) < 4 and (
            ZSTD_MAGIC.startswith(magic) or is_skippable(magic + b"\x50\x2a\x4d\x18"[len(magic) :])
        ):
            raise _cut_off(stored, url, "zstd", stored.offset, at=stored.offset + len(magic))
        else:
            raise _trailing(stored, url, "zstd frame")


def _skip_frame(stored: StoredBytes, url: str) -> Iterator[bytes]:
    begin = stored.offset
    # Of a header that is cut off too, 8 bytes are wanted and not found.
    left = 8 + int.from_bytes(stored.peek(8)[4:], "little")
    while left:
        while stored.pass_mark():
            yield b""
        piece = stored.take(left)
        if not piece:
            raise _cut_off(stored, url, "skippable zstd", begin)
        left -= len(piece)


def _zstd_frame(stored: StoredBytes, url: str) -> Iterator[bytes]:
    begin = fed_at = stored.offset
    frame = ZstdDecompressor(options=_ZSTD_OPTIONS)
    feed = _FIRST_FEED
    while not frame.eof:
        piece: memoryview | bytes = b""
        if frame.needs_input:
            while stored.pass_mark():
                yield b""
            fed_at = stored.offset
            piece = stored.take(feed)
            feed = min(2 * feed, _MOST_FEED)
            if not piece:
                raise _cut_off(stored, url, "zstd", begin)
        try:
            out = frame.decompress(piece, OUT_BYTES)
        except ZstdError as error:
            raise _damaged(url, "zstd", begin, fed_at, error) from None
        if out:
            yield out
    stored.hand_back(len(frame.unused_data))


def _gzip_members(stored: StoredBytes, url: str) -> Iterator[bytes]:
    while True:
        while stored.pass_mark():
            yield b""
        magic = stored.peek(2)
        if not magic:
            return
        if magic == GZIP_MAGIC:
            yield from _gzip_member(stored, url)
        elif magic == GZIP_MAGIC[:1]:
            raise _cut_off(stored, url, "gzip", stored.offset, at=stored.offset + 1)
        elif magic[0] == 0:
            # Tapes and block devices pad with zeros, and gzip itself passes over them.
            padding = stored.take(_FIRST_FEED)
            stored.hand_back(len(bytes(padding).lstrip(b"\0")))
        else:
            raise _trailing(stored, url, "gzip member")


def _gzip_member(stored: StoredBytes, url: str) -> Iterator[bytes]:
    begin = fed_at = stored.offset
    member = zlib.decompressobj(wbits=31)
    feed = _FIRST_FEED
    full = False
    while not member.eof:
        piece: memoryview | bytes = member.unconsumed_tail
        if not piece:
            if full:  # there may be more without new bytes, and it belongs before a mark
                full = False
            else:
                while stored.pass_mark():
                    yield b""
                fed_at = stored.offset
                piece = stored.take(feed)
                feed = min(2 * feed, _MOST_FEED)
                if not piece:
                    raise _cut_off(stored, url, "gzip", begin)
        try:
            out = member.decompress(piece, OUT_BYTES)
        except zlib.error as error:
            raise _damaged(url, "gzip", begin, fed_at, error) from None
        if out:
            full = len(out) == OUT_BYTES
            yield out
    stored.hand_back(len(member.unused_data))


def _cut_off(stored: StoredBytes, url: str, kind: str, begin: int, at: int | None = None) -> InputError:
    part = "member" if kind == "gzip" else "frame"
    return InputError(
        url,
        stored.offset if at is None else at,
        f"truncated: the input ends inside the {kind} {part} that begins at byte {begin:,}; it ends",
        _COPY_AGAIN,
    )


def _damaged(url: str, kind: str, begin: int, fed_at: int, error: Exception) -> InputError:
    part = "member" if kind == "gzip" else "frame"
    return InputError(
        url,
        fed_at,
        f"damaged {kind} {part} (begun at byte {begin:,}): {error}, met in the piece that begins",
        _COPY_AGAIN,
    )


def _trailing(stored: StoredBytes, url: str, unit: str) -> InputError:
    at = stored.offset
    return InputError(
        url, at, f"what follows the last {unit} is no other one but {looks_like(stored.peek(HEAD_BYTES))},", _COPY_AGAIN
    )
