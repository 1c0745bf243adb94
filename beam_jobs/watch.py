"""What is seen of a stage from outside: its receipts and heartbeats, looked at again and again.

Clocks of hosts are not compared. An item is silent where its heartbeat has not changed while the one who looks waited,
by his own clock; at a first look, where it is so much older than the newest sign of anything in the build, by the
clock of the store. How long an item is in work, and how long it has stood still, is told by its own host.

A listing may lag: what was seen done stays done, and what was seen of an item in work is kept until its receipt is
seen, so a stage never goes back.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from beam_jobs.job import RECEIPTS, SEEN, STAGE
from beam_jobs.progress import Beat, Stage, beats_by_path
from beam_jobs.reads import side_by_side
from pileshard.errors import PileshardError
from pileshard.format.storage import Storage

#: Rates are those of the last minutes: the first items of a stage may be unlike the last.
_WINDOW_SECONDS = 180.0

#: Receipts that are read at one look, at most; the rest follows at the next ones.
_RECEIPTS_A_LOOK = 512


class WorkingItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item in work, as its last heartbeat tells.

    Attributes:
      item: its name.
      host: where it runs.
      pid: of its process.
      seconds: that it is in work.
      silent_seconds: since it last told of itself.
      silent: whether that is so long that its worker has died, hangs or cannot reach the store.
      still_seconds: since it last got further.
      share: of its bytes that are done, 0 to 1.
      done_bytes: stored bytes read so far (tokenize), or bytes written of runs (gather) or of the shard (merge).
      documents: so far.
      tokens: so far.
      retries: how often storage was tried again.
      seconds_left: at its own pace; null where it has none yet.
    """

    item: str
    host: str
    pid: int
    seconds: float
    silent_seconds: float
    silent: bool
    still_seconds: float
    share: float
    done_bytes: float
    documents: int
    tokens: int
    retries: int
    seconds_left: float | None


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stage is.

    Attributes:
      name: of the stage: `count`, `tokenize`, `gather` or `merge`.
      state: `running`; `done`, `failed` or `stopped` where the driver said so at its end.
      message: why it failed.
      began: seconds since 1970, by the driver's clock.
      items: how many it has.
      done_items: how many are done.
      repeated_items: how often an item was begun again by another process, as far as this was seen.
      total_bytes: that its items work through.
      done_bytes: of those, done or as far as the items in work are.
      documents: in items done and in work, as far as their receipts were read; null where they were not.
      tokens: the same.
      retries: how often their storage was tried again; null where receipts were not read.
      bytes_per_second: in the last minutes.
      documents_per_second: the same; null where it is not known.
      tokens_per_second: the same.
      seconds_left: of this stage: what is left at that rate, and no less than the slowest item in work needs.
      working: the items in work, the one longest at it first.
    """

    name: str
    state: Literal["running", "done", "failed", "stopped"] = "running"
    message: str = ""
    began: float
    items: int
    done_items: int
    repeated_items: int = 0
    total_bytes: int
    done_bytes: int
    documents: int | None = None
    tokens: int | None = None
    retries: int | None = None
    bytes_per_second: float = 0.0
    documents_per_second: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    working: list[WorkingItem] = []


class _Shard(msgspec.Struct):
    documents: int = 0
    tokens: int = 0


class _Sums(msgspec.Struct):
    """Of a receipt of any stage, what is added up."""

    accepted: int = 0
    documents: int = 0
    tokens: int = 0
    shard: _Shard = msgspec.field(default_factory=_Shard)
    retries: dict[str, int] = {}


@dataclass
class _Heard:
    """A heartbeat, and when it was seen to be new."""

    beat: Beat
    at: float


@dataclass
class Watch:
    """Looks at a stage.

    Attributes:
      storage: the dataset's root.
      stage: what is looked at.
      receipts: whether to read the receipts, each once: what the driver does and a passer-by does not.
      newest: when the newest sign of the build was written, at the first look, by the clock of the store.
    """

    storage: Storage
    stage: Stage
    receipts: bool = True
    newest: float = 0.0
    _done: set[str] = field(default_factory=set)
    _read: set[str] = field(default_factory=set)
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _far: dict[str, float] = field(default_factory=dict)
    _begun: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    _counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # documents, tokens, retries of receipts
    _start: tuple[float, int, int] = (0.0, 0, 0)
    _looks: deque[tuple[float, float, int, int]] = field(default_factory=deque)

    def look(self, now: float | None = None) -> StageStatus:
        """How far the stage is now.

        Args:
          now: seconds by this process's own clock; for tests.
        """
        now = time.monotonic() if now is None else now
        sizes = {item.name: item.size for item in self.stage.items}
        present = set(self.storage.files(RECEIPTS))
        self._done |= {item.name for item in self.stage.items if item.receipt in present}
        if self.receipts:
            unread = present - self._read
            self._read_receipts([item.receipt for item in self.stage.items if item.receipt in unread])
        found = beats_by_path(self.storage)
        ages = {} if self._looks else self._ages(list(found))
        beats = {path: b for path, b in found.items() if b.item in sizes and b.item not in self._done}
        working = self._working(beats, ages, sizes, now)
        done_bytes = float(sum(sizes[name] for name in self._done))
        done_bytes += sum(min(far, sizes[name]) for name, far in self._far.items() if name not in self._done)
        documents = self._counts[0] + sum(item.documents for item in working)
        tokens = self._counts[1] + sum(item.tokens for item in working)
        rates = self._rates((now, done_bytes, documents, tokens))
        left = sum(sizes.values()) - done_bytes
        slowest = max((item.seconds_left or 0.0 for item in working), default=0.0)
        return StageStatus(
            name=self.stage.name,
            began=self.stage.began,
            items=len(sizes),
            done_items=len(self._done),
            repeated_items=sum(len(processes) - 1 for processes in self._begun.values()),
            total_bytes=sum(sizes.values()),
            done_bytes=int(done_bytes),
            documents=documents if self.receipts else None,
            tokens=tokens if self.receipts else None,
            retries=self._counts[2] + sum(item.retries for item in working) if self.receipts else None,
            bytes_per_second=rates[0],
            documents_per_second=rates[1] if self.receipts else None,
            tokens_per_second=rates[2] if self.receipts else None,
            seconds_left=round(max(left / rates[0], slowest), 1) if rates[0] > 0 else None,
            working=working,
        )

    def _read_receipts(self, paths: list[str]) -> None:
        paths = paths[:_RECEIPTS_A_LOOK]
        for path, sums in zip(paths, side_by_side(self._sums, paths), strict=True):
            if sums is not None:
                self._read.add(path)
                self._counts[0] += sums.accepted + sums.documents + sums.shard.documents
                self._counts[1] += sums.tokens + sums.shard.tokens
                self._counts[2] += sum(sums.retries.values())

    def _sums(self, path: str) -> _Sums | None:
        with contextlib.suppress(OSError, PileshardError, msgspec.DecodeError):
            return msgspec.json.decode(self.storage.read_bytes(path), type=_Sums)
        return None

    def _ages(self, paths: list[str]) -> dict[str, float]:
        """By how much each heartbeat is older than the newest sign of the build, by the clock of the store."""
        marks = [STAGE, SEEN]
        times = dict(zip(paths + marks, side_by_side(self._modified, paths + marks), strict=True))
        self.newest = max((at for at in times.values() if at is not None), default=0.0)
        return {path: self.newest - at for path in paths if (at := times[path]) is not None}

    def _modified(self, path: str) -> float | None:
        with contextlib.suppress(OSError, PileshardError):
            return self.storage.modified(path)
        return None

    def _working(
        self, beats: dict[str, Beat], ages: dict[str, float], sizes: dict[str, int], now: float
    ) -> list[WorkingItem]:
        found = []
        for path, beat in beats.items():
            heard = self._heard.get(path)
            if heard is None or heard.beat != beat:
                heard = self._heard[path] = _Heard(beat, now - ages.get(path, 0.0))
            self._begun.setdefault(beat.item, set()).add((beat.host, beat.pid))
            self._far[beat.item] = max(self._far.get(beat.item, 0.0), beat.done_bytes)
            found.append(self._item(heard, sizes[beat.item], now))
        for path in self._heard.keys() - beats.keys():
            del self._heard[path]
        return sorted(found, key=lambda item: (-item.seconds, item.item))

    def _item(self, heard: _Heard, size: int, now: float) -> WorkingItem:
        beat = heard.beat
        silent = now - heard.at
        pace = beat.done_bytes / beat.seconds if beat.seconds else 0.0
        return WorkingItem(
            item=beat.item,
            host=beat.host,
            pid=beat.pid,
            seconds=beat.seconds,
            silent_seconds=round(silent, 1),
            silent=silent > beat.silent_after,
            still_seconds=beat.still_seconds,
            share=min(1.0, beat.done_bytes / size) if size else 1.0,
            done_bytes=beat.done_bytes,
            documents=beat.documents,
            tokens=beat.tokens,
            retries=beat.retries,
            seconds_left=round(max(0.0, size - beat.done_bytes) / pace, 1) if pace else None,
        )

    def _rates(self, look: tuple[float, float, int, int]) -> list[float]:
        """Bytes, documents and tokens a second over the window, or since work was seen to begin if that was later."""
        if not self._looks:
            self._start = look[1:]
        self._looks.append(look)
        # Until its workers are there, a stage says nothing of how fast they are.
        while len(self._looks) > 2 and self._looks[1][1:] == self._start:
            self._looks.popleft()
        while len(self._looks) > 2 and look[0] - self._looks[1][0] >= _WINDOW_SECONDS:
            self._looks.popleft()
        first = self._looks[0]
        seconds = look[0] - first[0]
        return [max(0.0, (b - a) / seconds) if seconds > 0 else 0.0 for a, b in zip(first[1:], look[1:], strict=True)]
