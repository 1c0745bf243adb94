"""What the driver shows while a stage runs: share done, rate, time left. And what `pileshard status` tells of it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import msgspec
from tqdm import tqdm

from beam_jobs.job import JOB, STAGE, GatherItem, HashItem, Item, JobRecord, MergeItem, receipt_path, write_json
from beam_jobs.progress import Beat, Progress, Stage, StageItem, stage_progress
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
                _log.info("%s", stage_line(self._stage.name, progress, progress.beats, rate))

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


def stage_line(name: str, stage: Progress | StageStatus, working: Sequence[Beat | WorkingItem], rate: float) -> str:
    """One line: share, items, rate in bytes a second, time left, and what is in work."""
    share = stage.done_bytes / stage.total_bytes if stage.total_bytes else 1.0
    left = f", {(stage.total_bytes - stage.done_bytes) / rate:,.0f} s left" if rate > 0 else ""
    documents = sum(item.documents for item in working)
    tokens = sum(item.tokens for item in working)
    work = f"; in work: {documents:,} documents, {tokens:,} tokens" if documents else ""
    return f"{name}: {share:.0%}, {stage.done_items} of {stage.items} items, {rate / 1e6:,.1f} MB/s{left}{work}"


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


class WorkingItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item in work, as its last heartbeat tells.

    Attributes:
      item: its name.
      host: where it runs.
      pid: of its process.
      seconds_ago: since the heartbeat.
      done_bytes: stored bytes read so far (tokenize) or shard bytes written (merge).
      documents: so far.
      tokens: so far.
    """

    item: str
    host: str
    pid: int
    seconds_ago: float
    done_bytes: float
    documents: int
    tokens: int


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stage is.

    Attributes:
      name: of the stage, `tokenize` or `merge`.
      began: seconds since 1970.
      items: how many it has.
      done_items: how many are done.
      total_bytes: that its items work through.
      done_bytes: of those, done or as far as the items in work are.
      bytes_per_second: since the stage began.
      working: the items in work, the one longest not heard of first.
    """

    name: str
    began: float
    items: int
    done_items: int
    total_bytes: int
    done_bytes: int
    bytes_per_second: float
    working: list[WorkingItem]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a build is; `schemas/status.schema.json` is the schema of `pileshard status --json`.

    Attributes:
      status_version: of this form.
      url: the output's root.
      state: `complete` where the manifest is written.
      inputs: how many the build has.
      input_bytes: stored bytes of them.
      documents: in the shards, once complete.
      tokens: in the shards, once complete.
      shards: how many, once complete.
      stage: the stage that an unfinished build is in, null before the first one.
    """

    status_version: Literal[1] = 1
    url: str
    state: Literal["complete", "unfinished"]
    inputs: int
    input_bytes: int
    documents: int | None = None
    tokens: int | None = None
    shards: int | None = None
    stage: StageStatus | None = None


def status(storage: Storage) -> Status:
    """How far a build is, told from the files of its output alone.

    Raises:
      BuildError: there is no build.
      DatasetError: the manifest cannot be read.
    """
    if storage.exists(MANIFEST):
        manifest = Manifest.read(storage)
        return Status(
            url=storage.url,
            state="complete",
            inputs=len(manifest.inputs),
            input_bytes=sum(entry.size for entry in manifest.inputs),
            documents=manifest.documents,
            tokens=manifest.tokens,
            shards=len(manifest.shards),
        )
    try:
        record = msgspec.json.decode(storage.read_bytes(JOB), type=JobRecord)
    except FileNotFoundError:
        raise BuildError(f"{storage.url}: holds no build") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BuildError(f"{storage.url_of(JOB)}: is not the record of a build ({error})") from None
    return Status(
        url=storage.url,
        state="unfinished",
        inputs=len(record.inputs),
        input_bytes=sum(entry.size for entry in record.inputs),
        stage=_stage_status(storage),
    )


def _stage_status(storage: Storage) -> StageStatus | None:
    try:
        stage = msgspec.json.decode(storage.read_bytes(STAGE), type=Stage)
    except FileNotFoundError:
        return None
    progress = stage_progress(storage, stage)
    now = time.time()
    return StageStatus(
        name=stage.name,
        began=stage.began,
        items=progress.items,
        done_items=progress.done_items,
        total_bytes=progress.total_bytes,
        done_bytes=progress.done_bytes,
        bytes_per_second=progress.done_bytes / max(now - stage.began, 1e-9),
        working=[
            WorkingItem(
                item=beat.item,
                host=beat.host,
                pid=beat.pid,
                seconds_ago=round(now - beat.time, 3),
                done_bytes=beat.done_bytes,
                documents=beat.documents,
                tokens=beat.tokens,
            )
            for beat in sorted(progress.beats, key=lambda beat: beat.time)
        ],
    )


def status_lines(found: Status) -> list[str]:
    """A status for a person."""
    if found.state == "complete":
        return [f"complete: {found.documents:,} documents, {found.tokens:,} tokens, {found.shards:,} shards"]
    lines = [f"unfinished: {found.inputs:,} inputs, {found.input_bytes:,} bytes"]
    stage = found.stage
    if stage is None:
        return [*lines, "no stage has begun"]
    lines.append(stage_line(stage.name, stage, stage.working, stage.bytes_per_second))
    for item in stage.working:
        lines.append(f"  {item.item} on {item.host} ({item.pid}): last heard of {item.seconds_ago:,.0f} s ago")
    if not stage.working:
        lines.append("  no item is in work; if no driver runs, the same `pileshard build` command continues it")
    return lines
