"""What `pileshard status` tells of a build, from the files of its output alone."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Literal

import msgspec

from beam_jobs.job import SEEN, STAGE, read_job
from beam_jobs.lease import Driver, drivers, lives_here, silent_seconds
from beam_jobs.progress import Stage, beats_by_path
from beam_jobs.watch import StageStatus, Watch, WorkingItem
from pileshard.errors import BuildError, PileshardError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage

#: Items in work that are named to a person, at most.
_SHOWN = 20


class DriverStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The command that works on an output, or did.

    Attributes:
      command: `build` or `repair`.
      host: where it runs.
      pid: of its process.
      lives: whether it gave a sign of late.
      silent_seconds: since its last sign, by this machine's clock.
    """

    command: str
    host: str
    pid: int
    lives: bool
    silent_seconds: float


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a build is; `schemas/status.schema.json` is the schema of `pileshard status --json`.

    Attributes:
      status_version: of this form.
      url: the output's root.
      state: `complete` where the manifest is written; `running` where a command or a worker gives signs; `failed` or
        `stopped` as the last command said at its end; `unfinished` where nothing is heard of any.
      inputs: how many the build has.
      input_bytes: stored bytes of them.
      documents: in the shards, once complete.
      tokens: in the shards, once complete.
      shards: how many, once complete.
      seconds: that each stage took, once complete.
      driver: the command that works on it, or the last one that left no word of its end; null where there is none.
      stage: the last stage that began, null before the first one and once complete.
    """

    status_version: Literal[1] = 1
    url: str
    state: Literal["complete", "running", "failed", "stopped", "unfinished"]
    inputs: int
    input_bytes: int
    documents: int | None = None
    tokens: int | None = None
    shards: int | None = None
    seconds: dict[str, float] | None = None
    driver: DriverStatus | None = None
    stage: StageStatus | None = None


class Passerby:
    """Looks at a build once, or again and again.

    Args:
      storage: the dataset's root.
      patience: seconds to look for a sign of life where there was none for long by this machine's clock, which may be
        wrong; None for what its commands take to be dead.
    """

    def __init__(self, storage: Storage, patience: float | None = None) -> None:
        self._storage = storage
        self._patience = silent_seconds(storage) / 2 if patience is None else patience
        self._watch: Watch | None = None

    def look(self) -> Status:
        """How far the build is.

        Raises:
          BuildError: there is no build.
          DatasetError: the manifest cannot be read.
        """
        storage = self._storage
        if storage.exists(MANIFEST):
            return _complete(storage)
        try:
            record = read_job(storage)
        except FileNotFoundError:
            raise BuildError(f"{storage.url}: holds no build") from None
        driver = self._driver()
        stage = self._stage()
        working = stage is not None and any(not item.silent for item in stage.working)
        lives = driver is not None and driver.lives
        if stage is not None and not lives and working and self._no_sign():
            working = False
            stage = msgspec.structs.replace(stage, working=[self._gone(item) for item in stage.working])
        state: Literal["running", "failed", "stopped", "unfinished"] = "unfinished"
        if lives or working:
            state = "running"
        elif stage is not None and stage.state in ("failed", "stopped"):
            state = "failed" if stage.state == "failed" else "stopped"
        if stage is not None and state != "running":
            stage = msgspec.structs.replace(stage, seconds_left=None)
        return Status(
            url=storage.url,
            state=state,
            inputs=len(record.inputs),
            input_bytes=sum(entry.size for entry in record.inputs),
            driver=driver,
            stage=stage,
        )

    def _driver(self) -> DriverStatus | None:
        """The command that works here; one of another host is taken at its word, or watched for a while."""
        found = drivers(self._storage)
        now = time.time()
        lives = [driver for driver in found if self._lives(driver, now)]
        if not lives and (doubtful := [driver for driver in found if lives_here(driver) is None]):
            lives = self._changed(doubtful)
        told = max(lives or found, key=lambda driver: driver.time, default=None)
        if told is None:
            return None
        return DriverStatus(
            command=told.command,
            host=told.host,
            pid=told.pid,
            lives=told in lives,
            silent_seconds=round(max(0.0, now - told.time), 1),
        )

    def _lives(self, driver: Driver, now: float) -> bool:
        here = lives_here(driver)
        return abs(now - driver.time) < silent_seconds(self._storage) if here is None else here

    def _changed(self, doubtful: list[Driver]) -> list[Driver]:
        """Those that tell of themselves while one waits: this machine's clock may differ from theirs."""
        before = {driver.id: driver.beats for driver in doubtful}
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._patience / 4))
            after = [driver for driver in drivers(self._storage) if before.get(driver.id, driver.beats) != driver.beats]
            if after:
                return after
        return []

    def _no_sign(self) -> bool:
        """Whether no item in work tells of itself, though none is older than the others."""
        before = beats_by_path(self._storage)
        if any(abs(time.time() - beat.time) < beat.silent_after for beat in before.values()):
            return False
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._patience / 4))
            if beats_by_path(self._storage) != before:
                return False
        return True

    def _gone(self, item: WorkingItem) -> WorkingItem:
        newest = self._watch.newest if self._watch is not None else 0.0
        silent = item.silent_seconds + max(0.0, time.time() - newest)
        return msgspec.structs.replace(item, silent=True, silent_seconds=round(silent, 1))

    def _stage(self) -> StageStatus | None:
        try:
            stage = msgspec.json.decode(self._storage.read_bytes(STAGE), type=Stage)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        if self._watch is None or self._watch.stage != stage:
            self._watch = Watch(self._storage, stage, receipts=False)
        now = self._watch.look()
        told: StageStatus | None = None
        with contextlib.suppress(OSError, PileshardError, msgspec.DecodeError):
            told = msgspec.json.decode(self._storage.read_bytes(SEEN), type=StageStatus)
        if told is None or (told.name, told.began) != (now.name, now.began):
            return now
        # What takes many looks, or every receipt, is the driver's to tell.
        slowest = max((item.seconds_left or 0.0 for item in now.working), default=0.0)
        left = (now.total_bytes - now.done_bytes) / told.bytes_per_second if told.bytes_per_second else None
        return msgspec.structs.replace(
            told,
            done_items=max(told.done_items, now.done_items),
            done_bytes=max(told.done_bytes, now.done_bytes),
            repeated_items=max(told.repeated_items, now.repeated_items),
            seconds_left=None if left is None else round(max(left, slowest), 1),
            working=now.working,
        )


def _complete(storage: Storage) -> Status:
    manifest = Manifest.read(storage)
    seconds: Any = manifest.build.get("seconds")
    return Status(
        url=storage.url,
        state="complete",
        inputs=len(manifest.inputs),
        input_bytes=sum(entry.size for entry in manifest.inputs),
        documents=manifest.documents,
        tokens=manifest.tokens,
        shards=len(manifest.shards),
        seconds=dict(seconds) if isinstance(seconds, dict) else None,
    )


def status(storage: Storage, patience: float | None = None) -> Status:
    """How far a build is, told from the files of its output alone.

    Args:
      storage: the dataset's root.
      patience: as for `Passerby`.

    Raises:
      BuildError: there is no build.
      DatasetError: the manifest cannot be read.
    """
    return Passerby(storage, patience).look()


def spell(seconds: float) -> str:
    """A time as a person says it."""
    if seconds < 100:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def _item_words(item: WorkingItem) -> str:
    words = f"{item.item} ({item.share:.0%} in {spell(item.seconds)}, on {item.host}"
    if item.silent:
        return f"{words}, no sign of it for {spell(item.silent_seconds)})"
    if item.still_seconds > 60:
        return f"{words}, no further for {spell(item.still_seconds)})"
    return f"{words})"


def stage_line(stage: StageStatus) -> str:
    """One line: share, items, rates, time left, what went wrong, and the slowest item."""
    share = stage.done_bytes / stage.total_bytes if stage.total_bytes else 1.0
    words = [f"{stage.name}: {share:.0%}, {stage.done_items:,} of {stage.items:,} items"]
    if stage.bytes_per_second:
        words.append(f"{stage.bytes_per_second / 1e6:,.1f} MB/s")
    if stage.documents_per_second:
        words.append(f"{stage.documents_per_second:,.0f} documents/s")
    if stage.tokens_per_second:
        words.append(f"{stage.tokens_per_second / 1e6:,.2f} M tokens/s")
    if stage.seconds_left is not None:
        words.append(f"about {spell(stage.seconds_left)} left of this stage")
    line = ", ".join(words)
    if stage.retries:
        line += f"; {stage.retries:,} requests tried again"
    if stage.repeated_items:
        line += f"; {stage.repeated_items:,} items begun again"
    silent = [item for item in stage.working if item.silent]
    if silent:
        line += f"; {len(silent):,} without a sign: {_item_words(silent[0])}"
    at_work = [item for item in stage.working if not item.silent]
    if at_work:
        line += f"; longest in work: {_item_words(at_work[0])}"
    return line


def status_lines(found: Status) -> list[str]:
    """A status for a person."""
    if found.state == "complete":
        return [f"complete: {found.documents:,} documents, {found.tokens:,} tokens, {found.shards:,} shards"]
    lines = [f"{found.state}: {found.inputs:,} inputs, {found.input_bytes:,} bytes"]
    stage, driver = found.stage, found.driver
    if driver is not None and driver.lives:
        lines.append(f"`pileshard {driver.command}` works on it on {driver.host}, process {driver.pid}")
    elif driver is not None:
        words = f"`pileshard {driver.command}` on {driver.host}, process {driver.pid}, gives no sign"
        lines.append(f"{words}; its last was {spell(driver.silent_seconds)} ago")
    if stage is None:
        lines.append("no stage has begun")
    else:
        lines.append(stage_line(stage))
        lines += [f"  {_item_words(item)}" for item in stage.working[:_SHOWN]]
        if len(stage.working) > _SHOWN:
            lines.append(f"  and {len(stage.working) - _SHOWN:,} more in work")
        if stage.message and found.state == "failed":
            lines.append(stage.message)
    if found.state != "running":
        lines.append("nothing works on it; the same `pileshard build` command continues it")
    return lines
