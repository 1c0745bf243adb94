"""Reading ahead: what is needed next is fetched by threads before it is asked for.

    expect:   | chunk 0 | chunk 1 | chunk 2 | chunk 3 | chunk 4 | ...       in the order in which they will be taken
    take 0    |  taken  |  ready  | on its way ...    | not begun           at most `limit` bytes ready and on their way

An error is kept with its chunk and surfaces where the chunk is taken.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy.typing as npt

Tokens = npt.NDArray[Any]

#: Fetches `count` tokens of a shard from `first` on; waits by the last argument, which tells whether to give up.
Fetch = Callable[[int, int, int, Callable[[float], bool]], Tokens]


class _Phase(Enum):
    QUEUED = 0
    BEGUN = 1
    READY = 2
    DROPPED = 3


@dataclass
class _Entry:
    shard: int
    first: int
    count: int
    bytes: int
    phase: _Phase = _Phase.QUEUED
    tokens: Tokens | None = None
    error: BaseException | None = None


@dataclass
class _State:
    """What the threads share with their owner; they do not hold the owner itself, so that it can go."""

    fetch: Fetch
    limit: int
    pid: int
    change: threading.Condition = field(default_factory=threading.Condition)
    stop: threading.Event = field(default_factory=threading.Event)
    entries: dict[tuple[int, int], _Entry] = field(default_factory=dict)
    queue: deque[_Entry] = field(default_factory=deque)
    held: int = 0  # bytes ready and on their way
    threads: int = 0

    def end(self) -> None:
        """Lets the threads end, each after what it is fetching. In a forked process there are none."""
        if self.pid != os.getpid():
            return
        self.stop.set()
        with self.change:
            self.entries.clear()
            self.queue.clear()
            self.change.notify_all()


class Ahead:
    """Fetches ranges of tokens before they are taken.

    Attributes:
      limit: bytes of tokens that are ready or on their way, at most (or one range, if it is larger).
    """

    def __init__(self, fetch: Fetch, item: int, *, threads: int, limit: int) -> None:
        """Starts nothing yet.

        Args:
          fetch: gets a range; called by several threads at once.
          item: bytes of a token.
          threads: at most.
          limit: of memory.
        """
        self.limit = limit
        self._item = item
        self._most_threads = threads
        self._state = _State(fetch, limit, os.getpid())
        self._end = weakref.finalize(self, self._state.end)
        self._end.atexit = False

    def expect(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Says what will be taken next, in order: (shard, first token, tokens) each. Anything else is dropped."""
        state = self._state
        with state.change:
            before, state.entries = state.entries, {}
            state.queue.clear()
            for shard, first, count in ranges:
                key = (shard, first + count)
                if key in state.entries:
                    continue
                entry = before.get(key)
                if entry is not None and entry.first <= first:
                    del before[key]
                else:
                    entry = _Entry(shard, first, count, count * self._item)
                state.entries[key] = entry
                if entry.phase is _Phase.QUEUED:
                    state.queue.append(entry)
            for entry in before.values():
                _drop(state, entry)
            wanted = min(self._most_threads, len(state.queue))
            while state.threads < wanted and not state.stop.is_set():
                try:
                    threading.Thread(target=_work, args=(state,), name="pileshard-ahead", daemon=True).start()
                except RuntimeError:  # the system has no more: what is not begun, the caller fetches
                    break
                state.threads += 1
            state.change.notify_all()

    def take(self, shard: int, first: int, count: int) -> Tokens | None:
        """Hands out a range once, waiting while it is on its way.

        Returns:
          The tokens, or None where it was not expected or is not begun: the caller fetches it.

        Raises:
          PileshardError: what its fetching raised.
        """
        state = self._state
        with state.change:
            entry = state.entries.get((shard, first + count))
            if entry is None or entry.first > first:
                return None
            del state.entries[shard, first + count]
            while entry.phase is _Phase.BEGUN and not state.stop.is_set():
                state.change.wait()
            tokens, error = entry.tokens, entry.error
            _drop(state, entry)
        if error is not None:
            raise error
        return None if tokens is None else tokens[first - entry.first :]

    def close(self) -> None:
        """Ends the threads, without waiting for what they are fetching."""
        self._end()


def _drop(state: _State, entry: _Entry) -> None:
    """Gives the memory of an entry back; of one that is on its way, when it arrives."""
    if entry.phase is _Phase.READY:
        state.held -= entry.bytes
        state.change.notify_all()
    entry.phase = _Phase.DROPPED
    entry.tokens = None


def _work(state: _State) -> None:
    """What a thread does."""
    while True:
        with state.change:
            while not state.stop.is_set():
                while state.queue and state.queue[0].phase is _Phase.DROPPED:
                    state.queue.popleft()
                if state.queue and (not state.held or state.held + state.queue[0].bytes <= state.limit):
                    break
                state.change.wait()
            if state.stop.is_set():
                return
            entry = state.queue.popleft()
            entry.phase = _Phase.BEGUN
            state.held += entry.bytes
        tokens: Tokens | None = None
        error: BaseException | None = None
        try:
            tokens = state.fetch(entry.shard, entry.first, entry.count, state.stop.wait)
        except BaseException as raised:
            error = raised
        with state.change:
            if entry.phase is _Phase.BEGUN:
                entry.phase, entry.tokens, entry.error = _Phase.READY, tokens, error
            else:
                state.held -= entry.bytes
            state.change.notify_all()
        del entry, tokens, error
