"""Calls a function for many items in threads or processes, results in the order of the items, few of them waiting."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tqdm import tqdm

from pileshard.errors import PileshardError

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 16
_LINE_SECONDS = 10
_log = logging.getLogger("pileshard.stats")


def side_by_side(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None
) -> Iterator[tuple[Item, Result]]:
    """Yields each item and its result, in order; at most two for each worker are ahead of the reader.

    Args:
      function: what to do; with processes it is pickled.
      items: to be done.
      workers: processes; None for threads of this process.

    Raises:
      PileshardError: a worker process died.
    """
    if workers == 1:
        for item in items:
            yield item, function(item)
        return
    processes: ProcessPoolExecutor | None = None
    executor: Executor
    if workers is None:
        width = min(_MOST_THREADS, max(4, os.cpu_count() or 1))
        executor = ThreadPoolExecutor(width)
    else:
        width = workers
        # Threads, event loops and locks do not survive a fork.
        context = multiprocessing.get_context("spawn")
        executor = processes = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    try:
        for item in items:
            waiting.append((item, executor.submit(function, item)))
            if len(waiting) >= 2 * width:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
        executor.shutdown()
    except BrokenProcessPool:
        raise PileshardError(
            "a worker process died (killed, or out of memory: then lower --workers); run the command again"
        ) from None
    finally:
        alive: list[Any] = list((getattr(processes, "_processes", None) or {}).values())
        executor.shutdown(wait=processes is None, cancel_futures=True)
        for process in alive:
            process.terminate()


def _begin() -> None:
    """Readies a worker process: quiet at an interrupt, and gone when its driver is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class Progress:
    """A bar on a terminal, else a line now and then.

    Args:
      total: of what is counted.
      unit: of it.
    """

    def __init__(self, total: int, unit: str) -> None:
        self._total = total
        self._unit = unit
        self._done = 0
        self._live = sys.stderr.isatty()
        self._began = self._last = time.monotonic()
        self._bar = tqdm(
            total=total, unit=f" {unit}", unit_scale=True, desc="stats", disable=not self._live, file=sys.stderr
        )

    def add(self, count: int) -> None:
        """So much more is done."""
        self._done += count
        self._bar.update(count)
        now = time.monotonic()
        if not self._live and now - self._last >= _LINE_SECONDS:
            self._last = now
            rate = self._done / (now - self._began)
            left = (self._total - self._done) / max(rate, 1e-9)
            share = 100 * self._done / max(1, self._total)
            _log.info("stats: %.0f%%, %s %s/s, %.0f s left", share, f"{rate:,.0f}", self._unit, left)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()
