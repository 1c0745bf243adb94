"""Reads side by side: an item that reads from a thousand runs waits for the store, not for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Requests of one process in flight.
AT_ONCE = 16


def side_by_side(read: Callable[[T], R], of: Iterable[T], at_once: int = AT_ONCE) -> Iterator[R]:
    """What a function gives for each of some things, in their order; at most twice `at_once` results wait to be taken.

    Args:
      read: called from threads.
      of: what it is called with.
      at_once: threads.
    """
    with ThreadPoolExecutor(at_once) as pool:
        waiting: list[Future[R]] = []
        try:
            for thing in of:
                try:
                    waiting.append(pool.submit(read, thing))
                except RuntimeError:  # no more threads can be had
                    waiting.append(Future())
                    waiting[-1].set_result(read(thing))
                if len(waiting) >= 2 * at_once:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
