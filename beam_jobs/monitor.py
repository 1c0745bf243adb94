"""What the driver shows while a stage runs: share done, rate, time left."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tqdm import tqdm

from beam_jobs.job import RECEIPTS, Item, MergeItem, receipt_path
from beam_jobs.progress import read_beats
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.build")


class Monitor:
    """Follows a stage from the receipts and heartbeats of its items, until the block ends.

    Args:
      storage: the dataset's root.
      stage: its name.
      fingerprint: the job's.
      items: all items of the stage with the bytes that each one works through.
    """

    def __init__(self, storage: Storage, stage: str, fingerprint: str, items: Sequence[tuple[Item, int]]) -> None:
        self._storage = storage
        self._stage = stage
        self._items = {receipt_path(fingerprint, item): (item.name, size) for item, size in items}
        self._total = sum(size for _, size in items)
        self._live = sys.stderr.isatty()
        self._every = (0.5 if self._live else 5.0) if storage.is_local else 15.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"pileshard-{stage}", daemon=True)
        self._began = time.monotonic()

    def __enter__(self) -> Monitor:
        self._bar: Any = tqdm(
            total=self._total, unit="B", unit_scale=True, desc=self._stage, disable=not self._live, file=sys.stderr
        )
        self._at_begin = self._done()[0]
        self._bar.update(self._at_begin)
        self._thread.start()
        return self

    def _done(self) -> tuple[int, int, int, int]:
        """Bytes done, items done, and documents and tokens of items in work."""
        present = set(self._storage.files(RECEIPTS)) & self._items.keys()
        done = sum(self._items[path][1] for path in present)
        finished = {self._items[path][0] for path in present}
        sizes = dict(self._items.values())
        documents = tokens = 0
        for beat in read_beats(self._storage):
            if beat.item in sizes and beat.item not in finished:
                done += min(int(beat.done_bytes), sizes[beat.item])
                documents += beat.documents
                tokens += beat.tokens
        return done, len(finished), documents, tokens

    def _follow(self) -> None:
        last_line = time.monotonic()
        while not self._stop.wait(self._every):
            try:
                done, finished, documents, tokens = self._done()
            except OSError:
                continue  # a listing that failed once is no reason to stop a build
            if self._live:
                self._bar.set_postfix_str(f"{finished}/{len(self._items)} items", refresh=False)
                self._bar.update(max(0, done - self._bar.n))
            elif time.monotonic() - last_line >= 10:
                last_line = time.monotonic()
                _log.info("%s", self._line(done, finished, documents, tokens))

    def _line(self, done: int, finished: int, documents: int, tokens: int) -> str:
        share = done / self._total if self._total else 1.0
        seconds = time.monotonic() - self._began
        rate = (done - self._at_begin) / seconds if seconds else 0.0
        left = f", {(self._total - done) / rate:,.0f} s left" if rate > 0 else ""
        return (
            f"{self._stage}: {share:.0%}, {finished} of {len(self._items)} items, {rate / 1e6:,.1f} MB/s{left}; "
            f"in work: {documents:,} documents, {tokens:,} tokens"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._bar.update(max(0, self._total - self._bar.n))
        self._bar.close()
        if kind is None:
            seconds = time.monotonic() - self._began
            _log.info("%s: done, %d items in %.1f s", self._stage, len(self._items), seconds)


def item_size(item: Item, weights: list[int], input_sizes: list[int]) -> int:
    """Bytes that an item works through: stored bytes of its part, or the shard's."""
    if isinstance(item, MergeItem):
        return weights[item.group] // item.count
    return input_sizes[item.input] // item.parts
