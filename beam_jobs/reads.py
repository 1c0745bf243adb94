"""Reads side by side and ahead: an item waits neither for a thousand answers of a store, nor for its own reading."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
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


def one_ahead(items: Iterator[T], alone: Callable[[T], bool] = lambda _: False) -> Generator[T, None, None]:
    """What an iterator gives, the next one made by a thread while the caller works on the last.

    An item is not held here while the caller has it. An error is raised where its item would have come.

    Args:
      items: is at work in a thread; no longer when the caller has ended or left the loop.
      alone: whether an item is too large for another one to be made beside it.
    """
    with ThreadPoolExecutor(1, "pileshard-one-ahead") as pool:
        coming: Future[T | None] | None = None
        threads = True
        while True:
            item = next(items, None) if coming is None else coming.result()
            if item is None:
                return
            coming = None
            if threads and not alone(item):
                try:
                    coming = pool.submit(next, items, None)
                except RuntimeError:  # no thread can be had: what it was given to do must not be done later
                    pool.shutdown(wait=False, cancel_futures=True)
                    threads = False
            held = [item]
            del item
            yield held.pop()
