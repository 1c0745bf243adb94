"""Runs the items of a stage that have no receipt, and gathers the receipts: what a build and a repair share."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from beam_jobs.arrivals import arrived
from beam_jobs.items import take_failures
from beam_jobs.job import (
    CountReceipt,
    GatherReceipt,
    HashReceipt,
    Item,
    Job,
    TokenizeItem,
    TokenizeReceipt,
    finished,
    receipt_path,
)
from beam_jobs.monitor import Monitor, item_size
from beam_jobs.parts import item_cost
from beam_jobs.progress import beat_seconds
from beam_jobs.reads import side_by_side
from beam_jobs.shard_plan import GROUP_COUNT
from beam_jobs.work_share import StageTime, stage_time
from pileshard.errors import BuildError, PileshardError
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.build")


@dataclass(frozen=True)
class Stages:
    """The stages of one job.

    Attributes:
      job: that the items belong to.
      token_bytes: bytes of a token on disk, 2 or 4.
      eod_id: closes each document.
      beam_args: the user's options for Beam.
      workers: items that the engine does at once; processes on this machine, where the user names no runner.
      workers_known: whether that is more than a guess.
      times: how each stage that did something spent its time, by its name; filled by `do`.
    """

    job: Job
    token_bytes: int
    eod_id: int
    beam_args: tuple[str, ...]
    workers: int
    workers_known: bool = True
    times: dict[str, StageTime] = field(default_factory=dict)

    def _at_once(self, items: int) -> int:
        """How many of some items may be in work at once."""
        return min(items, self.workers) if self.workers_known else items

    def do(self, stage: str, items: Sequence[Any], kind: type[Any], weights: list[int]) -> list[Any]:
        """Does the items that have no receipt, largest first, and returns all receipts in the order of the items.

        Args:
          stage: its name, for messages.
          items: all of the stage.
          kind: of their receipts.
          weights: bytes of each group of shards, for merge items.

        Raises:
          BuildError: an item failed; what others left is whole, and the same command goes on from it.
        """
        from beam_jobs.pipeline import run_items

        job = self.job
        storage = job.storage()
        sizes = [entry.size for entry in job.record.inputs]
        drop_void_receipts(job, items, kind)
        sized: list[tuple[Item, int]] = [(item, item_size(item, weights, sizes)) for item in items]
        done = dict(finished(storage, job.fingerprint, list(items), kind))

        def cost(pair: tuple[Item, int]) -> float:
            item, size = pair
            return item_cost(item, sizes[item.input]) if isinstance(item, TokenizeItem) else size

        ordered = sorted(sized, key=cost, reverse=True)
        todo = [item for item, _ in ordered if done[item] is None]
        if len(todo) < len(items):
            _log.info("%s: %d of %d items were done already", stage, len(items) - len(todo), len(items))
        if todo:
            at, began = time.time(), time.monotonic()
            with Monitor(storage, stage, job.fingerprint, sized):
                try:
                    told = msgspec.structs.replace(job, beat_seconds=beat_seconds(self._at_once(len(todo))))
                    run_items(told, todo, self.token_bytes, self.eod_id, self.beam_args, self.workers)
                except Exception as error:
                    if "KeyboardInterrupt" in str(error):
                        raise KeyboardInterrupt from None  # Beam makes an error of it
                    # What the items left is whole; engines wrap an error's text, cut it or add to it.
                    messages = take_failures(storage)
                    if not messages and isinstance(error, PileshardError):
                        raise
                    raise BuildError(
                        "; ".join(messages[:5])
                        or f"the {stage} stage stopped: {_last_line(error)}; run the same command again, which "
                        "continues the build"
                    ) from error
            seconds = time.monotonic() - began
            done = arrived(job, items, kind)
            receipts = [done[item] for item in todo if done[item] is not None]
            self.times[stage] = stage_time(at, seconds, receipts, self.workers if self.workers_known else None)
        missing = [item.name for item in items if done[item] is None]
        if missing:
            messages = take_failures(storage)
            raise BuildError(
                "; ".join(messages[:5])
                or f"the {stage} stage ended without {len(missing)} items ({missing[0]}); run the command again"
            )
        return [done[item] for item in items]


def drop_void_receipts(job: Job, items: Sequence[Any], kind: type[Any]) -> None:
    """Removes receipts that do not hold, so that their items are redone.

    Such are those of items whose files are gone (an emptied temporary directory), and of inputs that an earlier command
    left out, where a bad input is to stop the build and no shards are planned without it.
    """
    storage, temp = job.storage(), job.temp_storage()
    tried_again = functools.cache(lambda: job.on_bad_input == "fail" and not storage.exists(GROUP_COUNT))

    def void(done: tuple[Any, Any]) -> str | None:
        """Why a receipt does not hold: the first file that it names and that is not there, whole; or an input."""
        _, receipt = done
        if receipt is None or isinstance(receipt, CountReceipt | HashReceipt):
            return None
        if isinstance(receipt, TokenizeReceipt):
            if receipt.skipped and tried_again():
                return f"{job.record.inputs[receipt.item.input].url}: was left out by an earlier command"
            files = [(temp, run.path, run.size) for run in receipt.runs]
        elif isinstance(receipt, GatherReceipt):
            files = [(temp, run.path, run.size) for _, run in receipt.runs]
        else:
            shard = receipt.shard
            files = [(storage, shard["path"], shard["size"])]
            files.append((storage, shard["index_path"], shard["index_size"]))
        gone = (place.url_of(path) for place, path, size in files if not has_size(place, path, size))
        return next((f"{url}: is gone or cut off" for url in gone), None)

    found = list(finished(storage, job.fingerprint, list(items), kind))
    for (item, _), why in zip(found, side_by_side(void, found), strict=True):
        if why is not None:
            _log.warning("%s; %s is done again", why, item.name)
            storage.remove(receipt_path(job.fingerprint, item))


def has_size(storage: Storage, path: str, size: int) -> bool:
    """Whether a file is there and of a size."""
    try:
        return storage.size(path) == size
    except FileNotFoundError:
        return False


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip().partition(" [while running ")[0] if lines else type(error).__name__
