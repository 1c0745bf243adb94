"""Does the items of an audit side by side on this machine: in threads, or in processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pileshard.audit.items import AuditItem, Auditor, ItemResult, Task
from pileshard.audit.report import Level
from pileshard.audit.tallies import Sample
from pileshard.errors import PileshardError
from pileshard.format.manifest import Manifest
from pileshard.format.storage import Storage

#: Shards are checked side by side: hashing and numpy leave Python's lock, and a remote store answers slowly.
_MOST_THREADS = 16
_POLL_SECONDS = 0.5
_SECONDS_WORTH_THREADS = 0.1
_SECONDS_WORTH_PROCESSES = 10.0


def do_items(
    task: Task, manifest: Manifest, items: Sequence[AuditItem], workers: int | None, on_bytes: Callable[[int], None]
) -> Iterator[ItemResult]:
    """Yields the items' results in their order.

    Args:
      task: of the audit.
      manifest: of the dataset.
      items: to be done.
      workers: processes; None or 1 for threads of this process.
      on_bytes: told of the bytes read, by any thread.

    Raises:
      PileshardError: a worker process died.
    """
    if workers is not None and min(workers, len(items)) > 1:
        return _in_processes(task, items, min(workers, len(items)), on_bytes)
    auditor = Auditor(task, manifest)
    if auditor.storage.is_local and _seconds(manifest, task.level, task.sample) < _SECONDS_WORTH_THREADS:
        return (auditor.do(item, on_bytes) for item in items)
    return _in_threads(auditor, items, on_bytes)


def useful_workers(storage: Storage, manifest: Manifest, level: Level, sample: Sample) -> int | None:
    """Processes that are worth their start: one a core, or None for threads.

    Threads wait for a remote store as well as processes do; what they cannot share is Python's work on records.
    """
    if not storage.is_local and level != "deep":
        return None
    cores = os.cpu_count() or 1
    return cores if cores > 1 and _seconds(manifest, level, sample) > _SECONDS_WORTH_PROCESSES else None


def _seconds(manifest: Manifest, level: Level, sample: Sample) -> float:
    """About how long one core works on an audit."""
    if level == "quick":
        return 0.0
    seconds = sum(shard.size for shard in manifest.shards) / 200e6
    if level == "deep":
        seconds += sum(entry.size for entry in manifest.inputs) / 30e6
        seconds += sample.share * manifest.text_bytes / 2.5e6
    return seconds


def _in_threads(auditor: Auditor, items: Sequence[AuditItem], on_bytes: Callable[[int], None]) -> Iterator[ItemResult]:
    pool = ThreadPoolExecutor(min(_MOST_THREADS, max(4, os.cpu_count() or 1)))
    try:
        yield from pool.map(lambda item: auditor.do(item, on_bytes), items)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_processes(
    task: Task, items: Sequence[AuditItem], workers: int, on_bytes: Callable[[int], None]
) -> Iterator[ItemResult]:
    context = multiprocessing.get_context("spawn")  # threads, event loops and Beam's logging do not survive a fork
    counter = context.Value("q", 0)
    seen = 0

    def tell() -> None:
        nonlocal seen
        now = counter.value
        on_bytes(now - seen)
        seen = now

    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(task, counter))
    try:
        futures: list[Future[ItemResult]] = [pool.submit(_do, item) for item in items]
        for future in futures:
            while True:
                try:
                    result = future.result(timeout=_POLL_SECONDS)
                    break
                except TimeoutError:
                    if future.done():  # the item's own
                        raise
                    tell()
            tell()
            yield result
        pool.shutdown()
    except BrokenProcessPool:
        raise PileshardError(
            "a worker process died (killed, or out of memory: then lower --workers); run the command again"
        ) from None
    finally:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(Exception):
                process.terminate()


_auditor: Auditor | None = None
_counter: Any = None


def _begin(task: Task, counter: Any) -> None:
    """Readies a worker process: quiet at an interrupt, and gone when its driver is."""
    global _auditor, _counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    auditor = Auditor(task, Manifest.read(Storage(task.url, task.storage_options)))
    _auditor, _counter = auditor, counter


def _follow(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _do(item: AuditItem) -> ItemResult:
    assert _auditor is not None

    def on_bytes(size: int) -> None:
        with _counter.get_lock():
            _counter.value += size

    return _auditor.do(item, on_bytes)
