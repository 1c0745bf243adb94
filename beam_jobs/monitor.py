"""What the driver shows while a stage runs: share done, rate, time left. And what `pileshard status` tells of it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec
from tqdm import tqdm

from beam_jobs.job import JOB, STAGE, Item, JobRecord, MergeItem, receipt_path, write_json
from beam_jobs.progress import Progress, Stage, StageItem, stage_progress
from pileshard.errors import BuildError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.build")


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
        write_json(storage, STAGE, self._stage)
        self._live = sys.stderr.isatty()
        self._every = (0.5 if self._live else 5.0) if storage.is_local else 15.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"pileshard-{name}", daemon=True)
        self._began = time.monotonic()
        self._at_begin = 0
        self._bar: Any = None

    def __enter__(self) -> Monitor:
        progress = stage_progress(self._storage, self._stage)
        self._at_begin = progress.done_bytes
        self._bar = tqdm(
            total=progress.total_bytes,
            initial=progress.done_bytes,
            unit="B",
            unit_scale=True,
            desc=self._stage.name,
            disable=not self._live,
            file=sys.stderr,
        )
        self._thread.start()
        return self

    def _follow(self) -> None:
        last_line = time.monotonic()
        while not self._stop.wait(self._every):
            try:
                progress = stage_progress(self._storage, self._stage)
            except OSError:
                continue  # a listing that failed once is no reason to stop a build
            if self._live:
                self._bar.set_postfix_str(f"{progress.done_items}/{progress.items} items", refresh=False)
                self._bar.update(max(0, progress.done_bytes - self._bar.n))
            elif time.monotonic() - last_line >= 10:
                last_line = time.monotonic()
                rate = (progress.done_bytes - self._at_begin) / (last_line - self._began)
                _log.info("%s", progress_line(self._stage.name, progress, rate))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._bar.update(max(0, (self._bar.total or 0) - self._bar.n))
        self._bar.close()
        if kind is None:
            seconds = time.monotonic() - self._began
            _log.info("%s: done, %d items in %.1f s", self._stage.name, len(self._stage.items), seconds)


def progress_line(stage: str, progress: Progress, rate: float) -> str:
    """One line: share, items, rate in bytes a second, time left, and what is in work."""
    share = progress.done_bytes / progress.total_bytes if progress.total_bytes else 1.0
    left = f", {(progress.total_bytes - progress.done_bytes) / rate:,.0f} s left" if rate > 0 else ""
    documents = sum(beat.documents for beat in progress.beats)
    tokens = sum(beat.tokens for beat in progress.beats)
    work = f"; in work: {documents:,} documents, {tokens:,} tokens" if documents else ""
    return f"{stage}: {share:.0%}, {progress.done_items} of {progress.items} items, {rate / 1e6:,.1f} MB/s{left}{work}"


def item_size(item: Item, weights: list[int], input_sizes: list[int]) -> int:
    """Bytes that an item works through: stored bytes of its part, or the shard's."""
    if isinstance(item, MergeItem):
        return weights[item.group] // item.count
    return input_sizes[item.input] // item.parts


def status_lines(storage: Storage) -> list[str]:
    """How far a build is, told from the files of its output alone.

    Raises:
      BuildError: there is no build.
    """
    if storage.exists(MANIFEST):
        manifest = Manifest.read(storage)
        return [
            f"complete: {manifest.documents:,} documents, {manifest.tokens:,} tokens, {len(manifest.shards):,} shards"
        ]
    try:
        record = msgspec.json.decode(storage.read_bytes(JOB), type=JobRecord)
    except FileNotFoundError:
        raise BuildError(f"{storage.url}: holds no build") from None
    size = sum(entry.size for entry in record.inputs)
    lines = [f"unfinished: {len(record.inputs):,} inputs, {size:,} bytes"]
    try:
        stage = msgspec.json.decode(storage.read_bytes(STAGE), type=Stage)
    except FileNotFoundError:
        return [*lines, "no stage has begun"]
    progress = stage_progress(storage, stage)
    now = time.time()
    rate = progress.done_bytes / max(now - stage.began, 1e-9)
    lines.append(progress_line(stage.name, progress, rate))
    for beat in sorted(progress.beats, key=lambda beat: beat.time):
        lines.append(f"  {beat.item} on {beat.host} ({beat.pid}): last heard of {now - beat.time:,.0f} s ago")
    if not progress.beats:
        lines.append("  no item is in work; if no driver runs, the same `pileshard build` command continues it")
    return lines
