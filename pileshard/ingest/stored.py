"""The stored bytes of an input, read once from front to back: what is next, and at which offset it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import BinaryIO

READ_BYTES = 1 << 20


class StoredBytes:
    """A cursor over a file object that may return fewer bytes than asked for.

    It holds one chunk of the file. Bytes that a decompressor did not want can be handed back, which costs nothing.

    Args:
      raw: a binary file object at the input's byte `at`.
      on_bytes: called with every chunk read, in order (to hash or count the input). No chunk lies on both sides of a
        mark.
      at: offset in the input of the first byte read.
      marks: ascending offsets at which nothing is taken beyond before `pass_mark` was asked.
    """

    def __init__(
        self,
        raw: BinaryIO,
        on_bytes: Callable[[bytes], None] | None = None,
        *,
        at: int = 0,
        marks: Sequence[int] = (),
    ) -> None:
        self._raw = raw
        self._on_bytes = on_bytes
        self._marks = list(marks)
        self._passed = 0
        self._chunk = b""
        self._next = 0
        self._chunk_end = at  # offset in the input of the end of the chunk

    @property
    def offset(self) -> int:
        """Offset in the input of the next byte."""
        return self._chunk_end - (len(self._chunk) - self._next)

    def pass_mark(self) -> bool:
        """Whether the next byte stands at the next mark; then that one is passed, and the next one counts.

        To be asked when all bytes taken so far were used.
        """
        here = self._passed < len(self._marks) and self._marks[self._passed] <= self.offset
        self._passed += here
        return here

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes without taking them; fewer only where the input ends."""
        while len(self._chunk) - self._next < size:
            more = self._read()
            if not more:
                break
            self._chunk = self._chunk[self._next :] + more
            self._next = 0
        return self._chunk[self._next : self._next + size]

    def take(self, size: int) -> memoryview:
        """Take the next bytes: at most `size` (> 0), at least one, none only where the input ends."""
        if self._next == len(self._chunk):
            self._chunk = self._read()
            self._next = 0
        if self._passed < len(self._marks):
            size = min(size, max(1, self._marks[self._passed] - self.offset))
        taken = memoryview(self._chunk)[self._next : self._next + size]
        self._next += len(taken)
        return taken

    def hand_back(self, size: int) -> None:
        """Put back the last `size` bytes of what the last `take` returned."""
        self._next -= size

    def _read(self) -> bytes:
        ahead = next((mark for mark in self._marks if mark > self._chunk_end), None)
        data = self._raw.read(READ_BYTES if ahead is None else min(READ_BYTES, ahead - self._chunk_end))
        if data:
            self._chunk_end += len(data)
            if self._on_bytes is not None:
                self._on_bytes(data)
        return data
