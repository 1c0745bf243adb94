"""How many processes an audit starts on this machine, at most, whatever it is told."""

from __future__ import annotations

import os

#: More than one a core pays where storage is slow to answer; many more only take memory.
PER_CORE = 4


def at_most(workers: int) -> int:
    """So many processes, but no more than four for each core that this process may use."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    return min(workers, PER_CORE * cores)
