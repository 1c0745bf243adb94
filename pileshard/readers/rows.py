"""Rows of one rank in the global order, a block at a time.

The rank's chunks of a window lie side by side in one buffer, each read in one go when its first row is due. A block of
rows is then a few strided copies out of it:

    buffer [own slots, K * seq_len + 1]     slot 0   |--s0--|--s1--|--s2--| ...
                                            slot 1   |--s0--|--s1--|--s2--| ...     sample k of every slot, then k + 1
                                            ...

Memory of a rank: slots / gcd(world, slots) chunks of K * seq_len + 1 tokens (K * seq_len <= 131,072), one block, and
the bytes of one chunk. With 768 slots and uint16 tokens that is 201 MB on 1 rank, 25 MB on 8, 0.5 MB on 384. A split
that fits in as much is kept whole instead (`resident`), and its rows are copied from wherever they lie.

Packed rows are buffered as they are kept (`packed`): K * (seq_len + 1) * 17/16 words a chunk. With best_fit K is 256 at
seq_len 2048 and 128 at 8192, so 768 slots of uint16 take 857 MB on 1 rank, 107 MB on 8 (1.7 GB and 214 MB at 8192).

Where the number of ranks does not divide a window's width (an odd world size; the last window of an epoch), several
ranks share a chunk. While a rank needs at least every 4th of its samples it still reads it whole; beyond that, where
the buffer would have to grow, or with chunks of one sample, it reads row by row.

Where damage is left out, which rows are lost is known row by row however they are read: from lost tokens of a chunk, of
the resident split, or of the row. Their positions are told, and something else stands in their places (`relief`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.order.chunks import CHUNK_TOKENS, I64
from pileshard.order.plan import Plan, Rows, Window
from pileshard.order.skip import NO_SKIP, Skip
from pileshard.readers.chunk import ShardReader
from pileshard.readers.packed import PackedRows
from pileshard.readers.relief import Relief, lost_rows
from pileshard.readers.resident import Resident

#: Chunks, or rows, whose place in the order is computed together: the permutation costs a millisecond a call.
_AHEAD = 4096

#: Largest n for which a rank that needs every n-th sample of a chunk reads it whole.
_WHOLE_CHUNK_STRIDE = 4

#: Chunks read ahead of a window, where its own are fewer.
_LEAST_AHEAD = 32


@dataclass
class _Share:
    """A rank's part of a window.

    Its slots are first, first + spacing, ...; `chunks` stand there, and it needs every stride-th sample of each.
    `loaded` says which are in the buffer, `lost` which of their rows are lost to damage, if any: [chunks, samples].
    """

    window: Window
    end: int  # position after the window's last
    spacing: int
    stride: int
    first: int
    chunks: I64
    loaded: npt.NDArray[np.bool_]
    lost: npt.NDArray[np.bool_] | None = None


class RowReader:
    """Reads the rows of one rank from a position on.

    Attributes:
      position: this rank's next position.
      words: of a row in the shards' dtype: seq_len + 1 tokens, or a packed row (`pileshard.readers.packed`).
      lost: positions of filled rows that are lost to damage; whoever takes the rows removes them.
    """

    def __init__(
        self,
        plan: Plan,
        shards: ShardReader,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        skip: Skip = NO_SKIP,
        resident: bool | None = None,
        packed: PackedRows | None = None,
        end: int | None = None,
        every_row: bool = True,
        lost: set[int] | None = None,
        stand_ins: bool = True,
    ) -> None:
        """Prepares to read; nothing is opened before the first row.

        Args:
          plan: the order.
          shards: of the plan's split.
          rank: data-parallel rank.
          world_size: number of ranks.
          start: position to begin at; the rank's first is the first of its own from there on.
          skip: positions to leave out.
          resident: whether to keep the whole split in memory; None: where it takes no more than a window would.
          packed: makes the rows of the plan's chunks where they are not cut from the tokens as they stand.
          end: position from which on nothing will be read, if there is one: remote shards are read ahead up to there.
          every_row: whether all of the rank's rows will be read; else remote shards are not read ahead.
          lost: where positions of lost rows are put, if shards leave out damage.
          stand_ins: whether sound rows stand in for lost ones; else these hold anything, or nothing if they are packed.
        """
        self.plan = plan
        self._packed = packed
        self.lost = set() if lost is None else lost
        self._relief = Relief(plan, shards) if stand_ins and packed is None else None
        begin = skip.index(start)
        self._skip = skip
        self._index = begin + (rank - begin) % world_size
        self.position = skip.position(self._index)
        self._shards = shards
        self._end = math.inf if end is None else end
        self._every_row = every_row
        self._world = world_size
        spacing = math.gcd(world_size, plan.slots)
        own = plan.slots // spacing
        if packed is not None:
            resident = False
        elif resident is None:
            resident = plan.chunks.tokens <= own * CHUNK_TOKENS
        self._resident = Resident(plan.shard_tokens, shards, plan.seq_len) if resident else None
        whole = not resident and plan.chunk_samples > 1 and world_size // spacing <= _WHOLE_CHUNK_STRIDE
        # Memory that is never written to is never taken: a buffer for more chunks than there are costs nothing.
        buffered = min(own, plan.chunks.count) if whole else 0
        # Neighbouring samples share a token, packed rows share none.
        self.words = plan.seq_len + 1 if packed is None else packed.words
        self._step = plan.seq_len if packed is None else packed.words
        chunk_words = (plan.chunk_samples - 1) * self._step + self.words
        # One more, which is never read: `_room` of the last slot.
        self._buffer = np.empty((buffered + 1 if buffered else 0, chunk_words), dtype=shards.dtype)[:buffered]
        item = shards.dtype.itemsize
        self._samples = np.lib.stride_tricks.as_strided(
            self._buffer,
            (buffered, plan.chunk_samples, self.words),
            (chunk_words * item, self._step * item, item),
            writeable=False,
        )
        self._share: _Share | None = None
        self._ahead: dict[int, I64] = {}
        nothing = np.empty(0, dtype=np.int64)
        self._places = (nothing, nothing)

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Fills a block with the next rows.

        Args:
          out: [rows, words] of the shards' dtype, C order.

        Raises:
          DatasetError: a shard is damaged or cannot be read.
        """
        done = 0
        while done < len(out):
            left_out = self._skip.next_range(self.position)
            rows = len(out) if left_out is None else -(-(left_out - self.position) // self._world)
            rows = min(rows, len(out) - done)
            self._fill(out[done : done + rows])
            self.advance(rows)
            done += rows

    def advance(self, rows: int) -> None:
        """Goes on by so many of the rank's rows, read or not."""
        self._index += rows * self._world
        position = self._skip.position(self._index)
        passed, turned = divmod(position - self.position, self._world)
        if turned:
            # What was left out is no multiple of the ranks: from here on this one has other slots.
            self._share, self._ahead = None, {}
            passed = len(self._places[0])
        self._places = (self._places[0][passed:], self._places[1][passed:])
        self.position = position

    def _fill(self, out: npt.NDArray[Any]) -> None:
        done = 0
        while done < len(out):
            if not len(self._buffer):
                count = self._scattered(out[done:])
            else:
                if self._share is None or self.position >= self._share.end:
                    self._share = self._enter(self.plan.window(self.position))
                left = -(-(self._share.end - self.position) // self._world)
                count = min(len(out) - done, left)
                self._across(self._share, out[done : done + count])
            self.position += count * self._world
            done += count

    def close(self) -> None:
        """Closes files; the buffer goes with the reader."""
        self._shards.close()

    def _enter(self, window: Window) -> _Share:
        spacing = math.gcd(self._world, window.width)
        chunks = self._own_chunks(window)
        del self._ahead[window.chunk]
        share = _Share(
            window=window,
            end=window.start + window.width * self.plan.chunk_samples,
            spacing=spacing,
            stride=self._world // spacing,
            first=(self.position - window.start) % spacing,
            chunks=chunks,
            loaded=np.zeros(len(chunks), dtype=bool),
        )
        if self._every_row and self._packed is None and not self._shards.is_local and self._by_chunks(window):
            self._announce(share)
        return share

    def _by_chunks(self, window: Window) -> bool:
        """Whether the rank's chunks of a window are read whole."""
        spacing = math.gcd(self._world, window.width)
        return self._world // spacing <= _WHOLE_CHUNK_STRIDE and window.width // spacing <= len(self._buffer)

    def _announce(self, share: _Share) -> None:
        """Says which chunks are needed next: those of this window, and as many or more of the windows after it."""
        words, sample = self._buffer.shape[1], (self.position - share.window.start) // share.window.width
        begun = sample * self._step
        shards, tokens = self.plan.chunks.locate(share.chunks)
        ranges = [
            (shard, token + begun, words - begun) for shard, token in zip(shards.tolist(), tokens.tolist(), strict=True)
        ]
        wanted = len(ranges) + max(len(ranges), _LEAST_AHEAD)
        end = share.end
        while len(ranges) < wanted and end < self._end:
            window = self.plan.window(end)
            if not self._by_chunks(window):
                break
            shards, tokens = self.plan.chunks.locate(self._own_chunks(window))
            ranges += [(shard, token, words) for shard, token in zip(shards.tolist(), tokens.tolist(), strict=True)]
            end = window.start + window.width * self.plan.chunk_samples
        self._shards.expect(ranges)

    def _own_chunks(self, window: Window) -> I64:
        """The rank's chunks of a window, slot after slot."""
        if window.chunk not in self._ahead:
            spacing = math.gcd(self._world, window.width)
            self._look_ahead(window, spacing, window.width // spacing)
        return self._ahead[window.chunk]

    def _look_ahead(self, window: Window, spacing: int, own: int) -> None:
        """Finds the own chunks of this window and of some next ones."""
        plan = self.plan
        windows = 1
        if spacing == self._world and window.width == plan.slots:
            # A rank has the same slots in all full windows of an epoch.
            left = (plan.order.period - window.chunk % plan.order.period) // plan.slots
            windows = max(1, min(_AHEAD // own, left))
        first = (self.position - window.start) % spacing
        starts = window.chunk + plan.slots * np.arange(windows, dtype=np.int64)
        numbers = starts[:, None] + (first + spacing * np.arange(own, dtype=np.int64))
        chunks = plan.order.chunks_at(numbers)
        self._ahead.update(zip(starts.tolist(), chunks, strict=True))

    def _positions(self, count: int) -> I64:
        return self.position + self._world * np.arange(count, dtype=np.int64)

    def _scattered(self, out: npt.NDArray[Any]) -> int:
        """Copies or reads the next rows one by one from where they lie; returns how many."""
        if not len(self._places[0]):
            # Not beyond an epoch: each has a permutation of its own, which a small dataset soon runs through.
            ahead = min(_AHEAD, self.plan.samples_per_epoch // self._world)
            rows = self.plan.rows(self._positions(max(len(out), ahead)))
            self._places = self._where(rows)
        shards, firsts = (part[: len(out)] for part in self._places)
        self._places = (self._places[0][len(out) :], self._places[1][len(out) :])
        if self._resident is not None:
            lost = self._resident.copy(self._resident.first[shards] + firsts, out[: len(shards)])
            if lost is not None:
                self._relieve(np.flatnonzero(lost), out)
        else:
            self._read((shards, firsts), out)
        return len(shards)

    def _where(self, rows: Rows) -> tuple[I64, I64]:
        """What rows are read by: shard and first token, or chunk and sample where they are packed."""
        return (rows.shard, rows.first_token) if self._packed is None else (rows.chunk, rows.sample)

    def _read(self, where: tuple[I64, I64], out: npt.NDArray[Any]) -> None:
        """Reads rows one by one."""
        if not self._shards.is_local:
            rows = zip(where[0].tolist(), where[1].tolist(), strict=True)
            if self._packed is not None:
                self._packed.expect_rows(rows)
            else:
                self._shards.expect((shard, first, self.words) for shard, first in rows)
        read = self._shards.read if self._packed is None else self._packed.row
        places = zip(out, where[0].tolist(), where[1].tolist(), strict=False)
        lost = [number for number, (row, one, other) in enumerate(places) if read(one, other, row)]
        if lost:
            self._relieve(np.array(lost), out)

    def _relieve(self, lost: I64, out: npt.NDArray[Any]) -> None:
        """Takes down which of the next rows are lost, and has others stand in for them."""
        positions = self.position + self._world * lost
        if self._relief is not None and lost.size:
            self._relief.fill(positions, out, lost)
        self.lost.update(positions.tolist())

    def _across(self, share: _Share, out: npt.NDArray[Any]) -> None:
        """Copies the next rows of a window."""
        if not self._by_chunks(share.window):
            self._read(self._where(self.plan.rows(self._positions(len(out)))), out)
            return
        samples, slots = np.divmod(self._positions(len(out)) - share.window.start, share.window.width)
        slots = (slots - share.first) // share.spacing
        if not share.loaded.all():
            self._load(share, samples, slots)
        if share.stride == 1:
            self._copy_across(int(samples[0]), int(slots[0]), len(share.loaded), out)
        else:
            out[:] = self._samples[slots, samples]
        if share.lost is not None:
            self._relieve(np.flatnonzero(share.lost[slots, samples]), out)

    def _load(self, share: _Share, samples: I64, slots: I64) -> None:
        """Reads the chunks that these rows are the first to need, each from its first needed sample to its end."""
        due = ~share.loaded[slots]
        new, at = np.unique(slots[due], return_index=True)
        firsts, chunks = samples[due][at], share.chunks[new]
        if self._packed is not None:
            if not self._shards.is_local:
                self._packed.expect(zip(chunks.tolist(), firsts.tolist(), strict=True))
            for slot, first, chunk in zip(new.tolist(), firsts.tolist(), chunks.tolist(), strict=True):
                rows = self._buffer[slot].reshape(-1, self.words)[first:]
                gone = self._packed.fill(chunk, first, rows)
                if gone is not None:
                    self._lost_of(share)[slot, first:] = gone
        else:
            skipped = firsts * self._step
            shards, tokens = self.plan.chunks.locate(chunks)
            if not self._every_row and not self._shards.is_local:
                due_now = zip(shards.tolist(), (tokens + skipped).tolist(), skipped.tolist(), strict=True)
                words = self._buffer.shape[1]
                self._shards.expect((shard, token, words - skip) for shard, token, skip in due_now)
            for slot, skip, shard, token in zip(
                new.tolist(), skipped.tolist(), shards.tolist(), (tokens + skipped).tolist(), strict=True
            ):
                room = None if share.loaded[slot + 1 : slot + 2].any() else self._room(slot, skip)
                ranges = self._shards.read(shard, token, self._buffer[slot, skip:], room)
                if ranges:
                    gone = lost_rows(ranges, token - skip, self.plan.chunk_samples, self._step)
                    self._lost_of(share)[slot] = gone
        share.loaded[new] = True

    def _room(self, slot: int, skip: int) -> npt.NDArray[np.uint8]:
        """Memory of a slot from some word on, and of the slot after it."""
        words = self._buffer.shape[1]
        base = self._buffer.base
        assert base is not None
        return base.reshape(-1)[slot * words + skip : (slot + 2) * words].view(np.uint8)

    def _lost_of(self, share: _Share) -> npt.NDArray[np.bool_]:
        if share.lost is None:
            share.lost = np.zeros((len(share.loaded), self.plan.chunk_samples), dtype=bool)
        return share.lost

    def _copy_across(self, sample: int, slot: int, width: int, out: npt.NDArray[Any]) -> None:
        """Copies consecutive rows: the rest of a sample's slots, whole samples, the begin of the last."""
        done = 0
        if slot:
            done = min(width - slot, len(out))
            out[:done] = self._samples[slot : slot + done, sample]
            sample += 1
        whole, rest = divmod(len(out) - done, width)
        if whole:
            block = out[done : done + whole * width].reshape(whole, width, -1)
            block[:] = self._samples[:width, sample : sample + whole].swapaxes(0, 1)
            done += whole * width
        if rest:
            out[done:] = self._samples[:rest, sample + whole]
