"""What a worker may hold, and how an item keeps to it.

`--worker-memory` M is for one item in work. A process that is at no item holds `BASE_BYTES` or less (Python, Beam,
numpy, both tokenizer engines; measured), and what is above that is shared out:

    a third    the run that is being collected (`--run-bytes`, if that is not given), or the slab of a shard
    a quarter  the fast engine's cache of seen words
    the rest   the block in work, sorting, writing

Beside that stands a look at what the process really holds: before each block a tokenize item drops the cache, and then
writes its run early, where that is more than `M - SLACK` for each item in work. Neither changes a byte of the shards.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from pileshard.tokenize.memory import release_free_memory, resident_bytes

BASE_BYTES = 352 << 20
DEFAULT_BYTES = 1 << 30
LEAST_BYTES = 512 << 20

_SLACK = 10  # a tenth of M is kept for what a block takes while it is in work
_LINE_COPIES = 5  # a long line: parsed, as text, in pieces, as tokens (measured)

_lock = threading.Lock()
_in_work = 0
_collecting = False


def run_bytes(worker_memory: int) -> int:
    """Bytes of tokens that are collected for a run."""
    return (worker_memory - BASE_BYTES) // 3


def cache_bytes(worker_memory: int) -> int:
    """What the fast engine's cache of words may grow to."""
    return (worker_memory - BASE_BYTES) // 4


def rows_at_once(run_bytes: int) -> int:
    """Rows of documents that a merge sorts at once: with all copies they take 200 bytes each, about."""
    return max(1 << 14, run_bytes // 256)


@contextlib.contextmanager
def item_in_work() -> Iterator[None]:
    """Counts the items that this process does at once, and keeps the collector of cycles from looking in vain.

    Documents and rows make no cycles; looking for some costs a twentieth of the time.
    """
    global _in_work, _collecting
    with _lock:
        if _in_work == 0:
            _collecting = gc.isenabled()
            gc.disable()
        _in_work += 1
    try:
        yield
    finally:
        with _lock:
            _in_work -= 1
            if _in_work == 0 and _collecting:
                gc.enable()


def is_tight(worker_memory: int, block_bytes: int) -> bool:
    """Whether the process would hold more than its items may, with a block of lines in work."""
    held = resident_bytes()
    if held is None:
        return False
    limit = (worker_memory - worker_memory // _SLACK) * max(1, _in_work)
    return held + _LINE_COPIES * block_bytes > limit


def give_back(worker_memory: int) -> None:
    """Gives freed memory back to the system where the process holds more than half of what it may.

    Taking it anew costs a tenth of the time of a build, so a process that is far from its limit keeps it.
    """
    held = resident_bytes()
    if held is None or held > worker_memory // 2 * max(1, _in_work):
        release_free_memory()
