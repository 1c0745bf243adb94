"""Heartbeats of items: told by files, because not every engine has metrics.

Each item in work rewrites a small file every few seconds: that its process lives, and how far it is. The driver, or
`pileshard status` on any machine that sees the output, reads them beside the receipts (`watch.py`).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from types import TracebackType

import msgspec

from beam_jobs.job import PROGRESS
from beam_jobs.reads import side_by_side
from beam_jobs.work_share import worker_name
from pileshard.errors import PileshardError
from pileshard.format.retry import Retry
from pileshard.format.storage import Storage

_EVERY_LOCAL = 1.0
_EVERY_REMOTE = 15.0
_LONGEST = 60.0
_LAST_SECONDS = 5.0  # a store that does not answer holds up no item

#: Heartbeats that a store is asked to take a second, of all workers together.
_BEATS_A_SECOND = 100


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """State of one item in work.

    Attributes:
      item: its name.
      done_bytes: stored bytes read so far (tokenize), or bytes written of runs (gather) or of the shard (merge).
      documents: so far.
      tokens: so far.
      host: where it runs.
      pid: of its process.
      time: seconds since 1970, by the host's clock.
      retries: how often storage was tried again so far.
      number: how often the item has told of itself.
      seconds: since it began.
      still_seconds: since it last got further.
      every: seconds until it tells of itself again.
    """

    item: str
    done_bytes: float
    documents: int
    tokens: int
    host: str
    pid: int
    time: float
    retries: int = 0
    number: int = 0
    seconds: float = 0.0
    still_seconds: float = 0.0
    every: float = _EVERY_LOCAL

    @property
    def silent_after(self) -> float:
        """Seconds without a sign after which its worker has died, or cannot reach the store."""
        return max(30.0, 3 * self.every)


def beat_seconds(at_once: int) -> float:
    """How often items tell of themselves at most, for the number of items that are in work at once.

    All workers together write about a hundred heartbeats a second, however many they are: 16 workers tell of themselves
    each second (each 15 on an object store), 4,096 workers every 41 seconds.
    """
    return min(_LONGEST, at_once / _BEATS_A_SECOND)


class Heartbeat:
    """Tells that an item is in work, from a thread, so that an item that waits for a store is not taken for dead.

    A file that cannot be written is no reason to fail the item.

    Args:
      storage: the dataset's root.
      item: its name.
      least: seconds between two heartbeats, at least.
    """

    def __init__(self, storage: Storage, item: str, least: float = 0.0) -> None:
        self._storage = storage
        # A beat that fails is late already: the next one is better than the same one again.
        self._once = Storage(storage.url, storage.options, retry=Retry(attempts=1, timeout=storage.retry.timeout))
        self._item = item
        self._path = f"{PROGRESS}/{item}-{worker_name()}.json"
        self.every = max(least, _EVERY_LOCAL if storage.is_local else _EVERY_REMOTE)
        self._told = (0.0, 0, 0)
        self._number = 0
        self._began = self._moved = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tell, name=f"pileshard-beat-{item}", daemon=True)

    def __enter__(self) -> Heartbeat:
        with contextlib.suppress(RuntimeError):  # no thread can be had
            self._thread.start()
        return self

    def beat(self, done_bytes: float, documents: int, tokens: int) -> None:
        """Says how far the item is."""
        told = (done_bytes, documents, tokens)
        if told != self._told:
            self._told = told
            self._moved = time.monotonic()

    def _tell(self) -> None:
        # Thousands of items begin at one moment; their heartbeats need not come at one.
        wait = random.uniform(min(1.0, self.every), self.every)
        while not self._stop.wait(wait):
            self.write()
            wait = self.every

    def write(self) -> None:
        """Writes the file."""
        now = time.monotonic()
        self._number += 1
        done_bytes, documents, tokens = self._told
        beat = Beat(
            item=self._item,
            done_bytes=done_bytes,
            documents=documents,
            tokens=tokens,
            host=socket.gethostname(),
            pid=os.getpid(),
            time=time.time(),
            retries=self._storage.retries.total,
            number=self._number,
            seconds=round(now - self._began, 1),
            still_seconds=round(now - self._moved, 1),
            every=self.every,
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
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_LAST_SECONDS)
        if self._number:
            with contextlib.suppress(OSError, PileshardError):
                self._once.remove(self._path)


class StageItem(msgspec.Struct, frozen=True, array_like=True):
    """An item of a stage: its name, where its receipt will lie, and the bytes that it works through."""

    name: str
    receipt: str
    size: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """`_build/stage.json`: the stage that a build is in, for whoever looks at it from outside.

    Attributes:
      name: of the stage.
      began: seconds since 1970, by the driver's clock.
      items: of the stage.
    """

    name: str
    began: float
    items: list[StageItem]


def beats_by_path(storage: Storage) -> dict[str, Beat]:
    """The heartbeats that are there, by the paths of their files."""
    paths = [path for path in storage.files(PROGRESS) if path.endswith(".json")]

    def read(path: str) -> Beat | None:
        with contextlib.suppress(OSError, PileshardError, msgspec.DecodeError):
            return msgspec.json.decode(storage.read_bytes(path), type=Beat)
        return None

    return {path: beat for path, beat in zip(paths, side_by_side(read, paths), strict=True) if beat is not None}


def read_beats(storage: Storage) -> list[Beat]:
    """The items in work, as far as they tell."""
    return list(beats_by_path(storage).values())
