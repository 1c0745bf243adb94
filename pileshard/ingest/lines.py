r"""Decompressed bytes -> lines, handed out in blocks that never straddle a multiple of 1024 lines.

A line ends at `\n` and nowhere else: not at `\r`, U+2028 or the others that `str.splitlines` takes for line ends. A
last line may lack its `\n`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import BinaryIO

from pileshard.ingest.frames import decompressed
from pileshard.ingest.reasons import EXCERPT_CHARS

#: A block lies within one group of so many lines; the parts of an input are made of whole groups.
LINES_PER_BLOCK = 1024
#: A longer line (without its newline) is rejected, and passed over without ever being held in memory.
MAX_LINE_BYTES = 256 << 20
#: A block is closed by the line with which it reaches so many bytes.
BLOCK_BYTES = 4 << 20

_HEAD_BYTES = 4 * EXCERPT_CHARS


@dataclass(frozen=True)
class OversizeLine:
    """What is kept of a line over `MAX_LINE_BYTES`: its size in bytes and its first bytes."""

    size: int
    head: bytes


@dataclass
class LineBlock:
    """Consecutive lines of an input.

    Attributes:
      first_line: 1-based number of the first line.
      first_offset: byte offset of the first line in the decompressed input.
      lines: the lines without their newlines; empty where `oversize` has an entry.
      oversize: lines that were too long to keep, by their index in `lines`.
    """

    first_line: int
    first_offset: int
    lines: list[bytes]
    oversize: dict[int, OversizeLine] = field(default_factory=dict)

    @property
    def group(self) -> int:
        """0-based number of the group of 1024 lines that the whole block lies in."""
        return (self.first_line - 1) // LINES_PER_BLOCK

    def line_size(self, index: int) -> int:
        """Bytes of a line in the input, without its newline."""
        return self.oversize[index].size if index in self.oversize else len(self.lines[index])

    def offsets(self) -> list[int]:
        """Byte offset of each line in the decompressed input."""
        sizes = [self.line_size(index) + 1 for index in range(len(self.lines))]
        return list(accumulate(sizes[:-1], initial=self.first_offset))


def line_blocks(
    raw: BinaryIO,
    url: str,
    *,
    block_bytes: int = BLOCK_BYTES,
    on_bytes: Callable[[bytes], None] | None = None,
) -> Iterator[LineBlock]:
    """Read an input from its first stored byte to its last as blocks of lines.

    A block holds 1024 lines (a whole group), or fewer where it reaches `block_bytes` or the input ends. How lines
    fall into blocks depends on the lines alone and not on frames or on the sizes of reads. Memory stays within a few
    blocks and the longest line, twice while it is assembled.

    Args:
      raw: a binary file object at the input's first stored byte; its reads may be short.
      url: name of the input, for errors.
      block_bytes: a block is closed by the line with which it reaches so many bytes.
      on_bytes: called with every chunk of stored bytes, in order; all of them have been seen when the iterator ends.

    Yields:
      The blocks, in the order of the input. They are not kept here: dropping a block frees its lines.

    Raises:
      InputError: the input is empty, in no known container, cut off, damaged, or followed by bytes that belong to no
        frame.
    """
    cutter = LineCutter(block_bytes)
    for data in decompressed(raw, url, on_bytes):
        ready = cutter.feed(data)
        del data
        # Handed out from a list that lets go of them, so that the consumer alone decides how long a block lives.
        ready.reverse()
        while ready:
            yield ready.pop()
    ready = cutter.finish()
    while ready:
        yield ready.pop()


class LineCutter:
    """Cuts a stream, fed in pieces of any size, into blocks of lines.

    The pieces of a line are joined once, when its end is seen, so that a long line costs no more than many short ones.

    Args:
      block_bytes: a block is closed by the line with which it reaches so many bytes.
      first_line: number of the line that the stream begins with.
      first_offset: its offset in the whole input.
    """

    def __init__(self, block_bytes: int = BLOCK_BYTES, *, first_line: int = 1, first_offset: int = 0) -> None:
        self._block_bytes = block_bytes
        self._open: list[bytes] = []  # pieces of the line whose end has not been seen
        self._open_bytes = 0
        self._block = LineBlock(first_line, first_offset, [])
        self._block_size = 0  # bytes held, without newlines

    def feed(self, data: bytes) -> list[LineBlock]:
        """Take the next piece of the stream; return the blocks that it completed."""
        ready: list[LineBlock] = []
        # A piece no larger than the longest line holds no line that is too long, but for the one it continues.
        for start in range(0, len(data), MAX_LINE_BYTES):
            self._feed(data[start : start + MAX_LINE_BYTES], ready)
        return ready

    def _feed(self, data: bytes, ready: list[LineBlock]) -> None:
        lines = data.split(b"\n")
        last = lines.pop()
        if lines:
            if self._open:
                self._extend_open(lines[0])
                self._close_open(ready)
                del lines[0]
            self._add(lines, ready)
        if last:
            self._extend_open(last)

    def finish(self) -> list[LineBlock]:
        """End the stream; return the last block, if there is one, which may end with a line that has no newline."""
        ready: list[LineBlock] = []
        if self._open:
            self._close_open(ready)
        if self._block.lines:
            self._hand_out(ready)
        ready.reverse()
        return ready

    def _extend_open(self, piece: bytes) -> None:
        self._open_bytes += len(piece)
        if self._open_bytes <= MAX_LINE_BYTES:
            self._open.append(piece)
        else:
            pieces = [*self._open[:_HEAD_BYTES], piece]
            self._open = [b"".join(p[:_HEAD_BYTES] for p in pieces)[:_HEAD_BYTES]]

    def _close_open(self, ready: list[LineBlock]) -> None:
        line = b"".join(self._open)
        size, self._open, self._open_bytes = self._open_bytes, [], 0
        if size > MAX_LINE_BYTES:
            self._block.oversize[len(self._block.lines)] = OversizeLine(size, line[:_HEAD_BYTES])
            line = b""
        self._add([line], ready)

    def _add(self, lines: list[bytes], ready: list[LineBlock]) -> None:
        start = 0
        while start < len(lines):
            block = self._block
            room = LINES_PER_BLOCK - (block.first_line - 1 + len(block.lines)) % LINES_PER_BLOCK
            part = lines[start : start + room]
            sizes = list(accumulate(map(len, part), initial=self._block_size))
            if sizes[-1] >= self._block_bytes:
                fit = next(n for n, size in enumerate(sizes) if n and size >= self._block_bytes)
                del part[fit:]
            block.lines += part
            self._block_size = sizes[len(part)]
            start += len(part)
            if len(part) == room or self._block_size >= self._block_bytes:
                self._hand_out(ready)

    def _hand_out(self, ready: list[LineBlock]) -> None:
        block = self._block
        ready.append(block)
        skipped = sum(line.size for line in block.oversize.values())
        self._block = LineBlock(
            block.first_line + len(block.lines), block.first_offset + self._block_size + len(block.lines) + skipped, []
        )
        self._block_size = 0
