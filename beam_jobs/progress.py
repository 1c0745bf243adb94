"""Heartbeats of items, and how far a build is: told by files, because not every engine has metrics.

Each item in work replaces a small file every few seconds; the driver, or `pileshard status` on any machine that sees
the output, reads them beside the receipts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass
from types import TracebackType

import msgspec

from beam_jobs.job import PROGRESS, RECEIPTS
from pileshard.errors import PileshardError
from pileshard.format.retry import Retry
from pileshard.format.storage import Storage

_EVERY_LOCAL = 1.0
_EVERY_REMOTE = 15.0


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """State of one item in work.

    Attributes:
      item: its name.
      done_bytes: stored bytes read so far (tokenize) or shard bytes written (merge).
      documents: so far.
      tokens: so far.
      host: where it runs.
      pid: of its process.
      time: seconds since 1970.
      retries: how often storage was tried again so far.
    """

    item: str
    done_bytes: float
    documents: int
    tokens: int
    host: str
    pid: int
    time: float
    retries: int = 0


class Heartbeat:
    """Tells that an item is in work. A file that cannot be written is no reason to fail the item."""

    def __init__(self, storage: Storage, item: str) -> None:
        self._storage = storage
        # A beat that fails is late already: the next one is better than the same one again.
        self._once = Storage(storage.url, storage.options, retry=Retry(attempts=1, timeout=storage.retry.timeout))
        self._item = item
        self._path = f"{PROGRESS}/{item}-{os.getpid()}.json"
        self._every = _EVERY_LOCAL if storage.is_local else _EVERY_REMOTE
        self._last = time.monotonic()

    def __enter__(self) -> Heartbeat:
        return self

    def beat(self, done_bytes: float, documents: int, tokens: int) -> None:
        """Says how far the item is, at most every few seconds."""
        now = time.monotonic()
        if now - self._last < self._every:
            return
        self._last = now
        beat = Beat(
            item=self._item,
            done_bytes=done_bytes,
            documents=documents,
            tokens=tokens,
            host=socket.gethostname(),
            pid=os.getpid(),
            time=time.time(),
            retries=self._storage.retries.total,
        )
        with contextlib.suppress(OSError, PileshardError):
            # Not `create`: no sync for a beat, and one torn by a crash is skipped by its reader.
            data = msgspec.json.encode(beat)
            if self._storage.is_local:
                path = self._storage.path(self._path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path + ".new", "wb") as file:
                    file.write(data)
                os.replace(path + ".new", path)
            else:
                self._once.write_bytes(self._path, data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, PileshardError):
            self._once.remove(self._path)


class StageItem(msgspec.Struct, frozen=True, array_like=True):
    """An item of a stage: its name, where its receipt will lie, and the bytes that it works through."""

    name: str
    receipt: str
    size: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """`_build/stage.json`: the stage that a build is in, for whoever looks at it from outside."""

    name: str
    began: float
    items: list[StageItem]


@dataclass(frozen=True)
class Progress:
    """How far a stage is.

    Attributes:
      total_bytes: of all its items.
      done_bytes: of those done, and of those in work as far as they are.
      items: how many there are.
      done_items: how many are done.
      beats: of the items in work.
    """

    total_bytes: int
    done_bytes: int
    items: int
    done_items: int
    beats: list[Beat]


def stage_progress(storage: Storage, stage: Stage) -> Progress:
    """Reads receipts and heartbeats of a stage."""
    present = set(storage.files(RECEIPTS))
    done = [item for item in stage.items if item.receipt in present]
    waiting = {item.name: item.size for item in stage.items if item.receipt not in present}
    beats = [beat for beat in read_beats(storage) if beat.item in waiting]
    return Progress(
        total_bytes=sum(item.size for item in stage.items),
        done_bytes=sum(item.size for item in done) + sum(min(int(b.done_bytes), waiting[b.item]) for b in beats),
        items=len(stage.items),
        done_items=len(done),
        beats=beats,
    )


def read_beats(storage: Storage) -> list[Beat]:
    """The items in work, as far as they tell."""
    beats = []
    for path in storage.files(PROGRESS):
        if not path.endswith(".json"):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            beats.append(msgspec.json.decode(storage.read_bytes(path), type=Beat))
    return beats
