"""How many items an engine does at once: what the parts of inputs are chosen for, and time at work is a share of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

_ASK_SECONDS = 10
# Options of Flink, Dataflow and the local runner that say it, the first that is set.
_NAMES = ("parallelism", "max_num_workers", "num_workers")


def engine_workers(workers: int | None, beam_args: Sequence[str]) -> tuple[int, bool]:
    """The number of items that are done at once, and whether it is known rather than guessed.

    Args:
      workers: what the user said.
      beam_args: the user's options for Beam.
    """
    cores = os.cpu_count() or 1
    if not beam_args:
        return workers or cores, True
    from beam_jobs.engines import choose_engine

    engine = choose_engine(beam_args, cores)  # what no runner takes is refused before anything is written
    if workers is not None:
        return workers, True
    options = engine.options.get_all_options()
    if engine.name == "local":
        return max(1, int(options.get("direct_num_workers") or 1)), True
    if engine.name == "DaskRunner" and (threads := _dask_threads(options.get("address"))):
        return threads, True
    for name in _NAMES:
        with contextlib.suppress(TypeError, ValueError):
            if (said := int(options.get(name))) > 0:
                return said, True
    return cores, False


def _dask_threads(address: Any) -> int:
    """Threads of all workers that a Dask scheduler has now; 0 where it does not say."""
    if not address:
        return 0
    with contextlib.suppress(Exception):
        from distributed import Client

        with Client(address, timeout=_ASK_SECONDS, set_as_default=False) as client:
            return sum(client.nthreads().values())
    return 0
