r"""Parts of an input: its lines, cut where ranges of its stored bytes meet, each with its number in the whole input.

A part is named by a range of stored bytes; its lines are those that begin in the text which that range gives. Three
ways lead to the first of them, and to the number that it has:

    through    decompress what comes before and count its newlines: always possible, and all that a stream without
               a point of entry (one zstd frame, gzip) allows. Nothing is parsed on the way.
    enter      begin at a frame (zstd of several frames) or anywhere (plain), where a count of the frames before it
               (`count.py`) has told how many newlines they hold.
    whole      the input is one part.

Where two parts meet is a `Seam`. Both sides see it by themselves, so parts whose seams are equal are the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec
import numpy as np
import xxhash

from pileshard.errors import BuildError
from pileshard.ingest.containers import Container
from pileshard.ingest.frames import container_of, pieces
from pileshard.ingest.lines import BLOCK_BYTES, LineBlock, LineCutter
from pileshard.ingest.stored import StoredBytes


class CountedOtherwiseError(BuildError):
    """A part holds other text than was counted before."""


class Seam(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the text of an input.

    Attributes:
      text: bytes of text before it.
      lines: newlines before it.
      inside: whether it is inside a line, which then belongs to what comes before.
      digest: of all stored bytes before it (xxh3, hex), where they were read; else "".
      tail: of the text from there to the end of the line that is open there (xxh3, hex), as one side or the other has
        read it; "" where it has not.
    """

    text: int
    lines: int
    inside: bool
    digest: str = ""
    tail: str = ""

    @property
    def lines_begun(self) -> int:
        """Lines that begin before it."""
        return self.lines + self.inside

    def is_same(self, other: Seam) -> bool:
        """Whether both sides saw the same, as far as each has looked."""
        tails = {self.tail, other.tail} - {""}
        return len(tails) < 2 and self.without_tail() == other.without_tail()

    def without_tail(self) -> Seam:
        """The place alone."""
        return msgspec.structs.replace(self, tail="")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a part needs to begin at a frame, and must find at its end.

    Attributes:
      container: `zstd` or `plain`.
      at: offset of the frame in the stored bytes.
      begin: the seam there.
      end: the seam at the part's end.
      text_digest: of the text between the two (xxh3, hex).
    """

    container: str
    at: int
    begin: Seam
    end: Seam
    text_digest: str


START = Seam(text=0, lines=0, inside=False, digest=xxhash.xxh3_128_hexdigest(b""))


def newlines(data: bytes) -> int:
    """Newlines in a piece of text (three times as quick as `bytes.count`)."""
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == 10))


class Tally:
    """Counts a text that comes in pieces."""

    def __init__(self, seam: Seam = START) -> None:
        self.text = seam.text
        self.lines = seam.lines
        self.inside = seam.inside

    def take(self, data: bytes) -> int:
        """Counts a piece that is not empty, and returns its newlines."""
        found = newlines(data)
        self.text += len(data)
        self.lines += found
        self.inside = data[-1] != 10
        return found

    def seam(self, digest: str = "") -> Seam:
        """The place after all pieces."""
        return Seam(text=self.text, lines=self.lines, inside=self.inside, digest=digest)


class PartReader:
    """Reads the lines of one part of an input.

    Args:
      raw: a binary file object at the input's first stored byte, or at `entry.at`.
      url: name of the input, for errors.
      begin: first stored byte of the part.
      end: the stored byte after it; None reads the input to its end, and proves that it has one.
      entry: where the part begins at a frame; then `begin` and `end` do not matter.
      block_bytes: a block is closed by the line with which it reaches so many bytes.
      on_bytes: called with every chunk of stored bytes that is read, in order.

    Attributes:
      begin: the seam at the begin, once `blocks` has ended.
      end: the seam at the end, once `blocks` has ended.
    """

    def __init__(
        self,
        raw: BinaryIO,
        url: str,
        *,
        begin: int = 0,
        end: int | None = None,
        entry: Entry | None = None,
        block_bytes: int = BLOCK_BYTES,
        on_bytes: Callable[[bytes], None] | None = None,
    ) -> None:
        self.begin: Seam | None = None
        self.end: Seam | None = None
        self._url = url
        self._entry = entry
        self._on_bytes = on_bytes
        self._block_bytes = block_bytes
        self._stored_digest = xxhash.xxh3_128()
        self._hashing = (entry is None and end is not None) or begin > 0
        self._stored_to = 0
        self._digests: dict[int, str] = {}
        self._marks = [] if entry else [at for at in (begin, end) if at is not None]
        self._stored = StoredBytes(raw, self._seen, at=entry.at if entry else 0, marks=self._marks)
        self._cutter: LineCutter | None = None
        self._text_digest = xxhash.xxh3_128()
        self._passed = xxhash.xxh3_128()  # text of a line that began before the part
        self._to_the_end = entry is None and end is None
        self._tally = Tally(entry.begin if entry else START)

    def _seen(self, chunk: bytes) -> None:
        if self._hashing:
            self._stored_digest.update(chunk)
            self._stored_to += len(chunk)
            if self._stored_to in self._marks:
                self._digests[self._stored_to] = self._stored_digest.hexdigest()
        if self._on_bytes is not None:
            self._on_bytes(chunk)

    def blocks(self) -> Iterator[LineBlock]:
        """The part's lines, as `line_blocks` gives those of a whole input.

        Raises:
          InputError: the input is damaged or cut off, as far as it was read.
          CountedOtherwiseError: the part has other text than its entry says.
        """
        source = self._entered() if self._entry else self._through()
        for data in source:
            ready = self._feed(data)
            del data
            ready.reverse()
            while ready:
                yield ready.pop()
        if self._cutter is not None:
            ready = self._cutter.finish()
            while ready:
                yield ready.pop()
        elif self._to_the_end and self.begin is not None and self.begin.inside:
            self.begin = msgspec.structs.replace(self.begin, tail=self._passed.hexdigest())
        if self._entry is not None:
            self._check_entry(self._entry)

    def _through(self) -> Iterator[bytes]:
        """The text that the part's lines lie in, and no other."""
        text = pieces(self._stored, self._url, container_of(self._stored, self._url))
        passed = 0
        for data in text:
            if data:
                self._tally.take(data)
                if passed:
                    yield data
                continue
            passed += 1
            seam = self._tally.seam(self._digests.get(self._marks[passed - 1], START.digest))
            if passed == 1:
                self.begin = seam
            else:
                self.end = seam
                yield from self._rest_of_line(text)
                return
        end = self._tally.seam(self._stored_digest.hexdigest() if self._hashing else "")
        self.begin, self.end = self.begin or end, end

    def _entered(self) -> Iterator[bytes]:
        entry = self._entry
        assert entry is not None
        self.begin = entry.begin
        text = pieces(self._stored, self._url, Container(entry.container))
        size = entry.end.text - entry.begin.text
        while size > 0:
            data = next(text, b"")
            if not data:
                break
            mine, rest = data[:size], data[size:]
            size -= len(mine)
            self._tally.take(mine)
            self._text_digest.update(mine)
            yield mine
            if rest:
                text = _chain(rest, text)
        self.end = self._tally.seam()
        yield from self._rest_of_line(text)

    def _rest_of_line(self, text: Iterator[bytes]) -> Iterator[bytes]:
        """What the line that is open at the part's end lacks, if there is one and it began in the part.

        Of one that began before the part it is read, too, so that both sides of each seam have seen the same of it.
        """
        if not self._tally.inside:
            return
        assert self.begin is not None
        assert self.end is not None
        tail = xxhash.xxh3_128()
        for data in text:
            stop = data.find(b"\n") + 1
            mine = data[:stop] if stop else data
            tail.update(mine)
            if self._cutter is None:
                self._passed.update(mine)
            else:
                yield mine
            if stop:
                break
        self.end = msgspec.structs.replace(self.end, tail=tail.hexdigest())
        if self._cutter is None:
            self.begin = msgspec.structs.replace(self.begin, tail=self._passed.hexdigest())

    def _feed(self, data: bytes) -> list[LineBlock]:
        if self._cutter is None:
            assert self.begin is not None
            first, offset = self.begin.lines_begun + 1, self.begin.text
            if self.begin.inside:
                stop = data.find(b"\n") + 1
                before = self._tally.text - len(data)
                self._passed.update(data[:stop] if stop else data)
                if not stop:
                    return []
                self.begin = msgspec.structs.replace(self.begin, tail=self._passed.hexdigest())
                offset, data = before + stop, data[stop:]
            self._cutter = LineCutter(self._block_bytes, first_line=first, first_offset=offset)
        return self._cutter.feed(data)

    def _check_entry(self, entry: Entry) -> None:
        assert self.end is not None
        found = (self.end.without_tail(), self._text_digest.hexdigest())
        if found != (entry.end, entry.text_digest):
            raise CountedOtherwiseError(
                f"{self._url}: the text of the part that begins at byte {entry.at:,} is not what was counted before; "
                "an input must not change during a build"
            )


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
