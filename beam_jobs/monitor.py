"""What the driver shows while a stage runs, and leaves for whoever looks from outside."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import msgspec
from tqdm import tqdm

from beam_jobs.job import PROGRESS, SEEN, STAGE, GatherItem, HashItem, Item, MergeItem, receipt_path, write_json
from beam_jobs.progress import Stage, StageItem
from beam_jobs.status import stage_line
from beam_jobs.watch import StageStatus, Watch
from pileshard.errors import PileshardError
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.build")

_LEAVE_SECONDS = 5.0
_LINE_SECONDS = 10.0
_LONGEST_LINE_SECONDS = 60.0

#: Looking takes at most a twentieth of the driver's time: with 76,000 receipts a listing is 76 requests, or seconds.
_SHARE_OF_TIME = 20


class Monitor:
    """Follows a stage from the receipts and heartbeats of its items, until the block ends.

    Args:
      storage: the dataset's root.
      name: of the stage.
      fingerprint: the job's.
      items: all items of the stage with the bytes that each one works through.
    """

    def __init__(self, storage: Storage, name: str, fingerprint: str, items: Sequence[tuple[Item, int]]) -> None:
        self._storage = storage
        self._stage = Stage(
            name=name,
            began=time.time(),
            items=[StageItem(item.name, receipt_path(fingerprint, item), size) for item, size in items],
        )
        # What is in work tells of itself again; the rest is of commands that were killed.
        with contextlib.suppress(OSError, PileshardError):
            storage.remove_tree(PROGRESS)
        write_json(storage, STAGE, self._stage)
        self._watch = Watch(storage, self._stage)
        self._live = sys.stderr.isatty()
        self._every = (0.5 if self._live else 5.0) if storage.is_local else 15.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"pileshard-{name}", daemon=True)
        self._began = time.monotonic()
        self._left = -_LEAVE_SECONDS
        self._bar: Any = None

    def __enter__(self) -> Monitor:
        seen = self._look()
        self._bar = tqdm(
            total=sum(item.size for item in self._stage.items),
            initial=seen.done_bytes if seen else 0,
            unit="B",
            unit_scale=True,
            desc=self._stage.name,
            disable=not self._live,
            file=sys.stderr,
        )
        self._thread.start()
        return self

    def _look(self) -> StageStatus | None:
        """Looks, and leaves what is seen; a listing that failed once is no reason to stop a build."""
        try:
            seen = self._watch.look()
        except (OSError, PileshardError) as error:
            _log.debug("%s", error)
            return None
        if time.monotonic() - self._left >= _LEAVE_SECONDS:
            self._leave(seen)
        return seen

    def _leave(self, seen: StageStatus) -> None:
        self._left = time.monotonic()
        with contextlib.suppress(OSError, PileshardError):
            write_json(self._storage, SEEN, seen)

    def _follow(self) -> None:
        last_line = began = time.monotonic()
        wait = self._every
        while not self._stop.wait(wait):
            looked = time.monotonic()
            seen = self._look()
            now = time.monotonic()
            wait = max(self._every, _SHARE_OF_TIME * (now - looked))
            if seen is None:
                continue
            if self._live:
                silent = sum(item.silent for item in seen.working)
                more = f", {silent} silent" if silent else ""
                more += f", {seen.retries:,} tried again" if seen.retries else ""
                self._bar.set_postfix_str(f"{seen.done_items}/{seen.items} items{more}", refresh=False)
                self._bar.update(max(0, seen.done_bytes - self._bar.n))
            elif now - last_line >= max(_LINE_SECONDS, min(_LONGEST_LINE_SECONDS, (now - began) / 60)):
                last_line = now
                _log.info("%s", stage_line(seen))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._bar.update(max(0, (self._bar.total or 0) - self._bar.n))
        self._bar.close()
        if (seen := self._look()) is not None:
            state: Literal["done", "failed", "stopped"] = "failed"
            if kind is None:
                state = "done"
            elif issubclass(kind, KeyboardInterrupt):
                state = "stopped"
            message = str(error) if state == "failed" else ""
            self._leave(msgspec.structs.replace(seen, state=state, message=message))
        if kind is None:
            seconds = time.monotonic() - self._began
            retries = f", {seen.retries:,} requests tried again" if seen and seen.retries else ""
            again = f", {seen.repeated_items:,} items begun again" if seen and seen.repeated_items else ""
            count = len(self._stage.items)
            _log.info("%s: done, %d items in %.1f s%s%s", self._stage.name, count, seconds, retries, again)


def item_size(item: Item, weights: list[int], input_sizes: list[int]) -> int:
    """Bytes that an item works through: stored bytes of its part, or those of its runs or shard."""
    if isinstance(item, MergeItem):
        return weights[item.group] // item.count
    if isinstance(item, GatherItem):
        return item.size
    if isinstance(item, HashItem):
        return input_sizes[item.input]
    end = input_sizes[item.input] if item.end is None else item.end
    return max(0, end - item.begin)
