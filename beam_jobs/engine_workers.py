"""How many items an engine does at once: what the parts of inputs are chosen for, and time at work is a share of."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beam_jobs.engine_run import Engine

_log = logging.getLogger("pileshard.build")

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
    if engine.name == "DaskRunner" and (threads := _dask_threads(engine)):
        return threads, True
    for name in _NAMES:
        with contextlib.suppress(TypeError, ValueError):
            if (said := int(options.get(name))) > 0:
                return said, True
    return cores, False


def _dask_threads(engine: Engine) -> int:
    """Threads of all workers that a Dask scheduler has now; 0 where it does not say."""
    address = engine.options.get_all_options().get("address")
    if not address:
        return 0
    with contextlib.suppress(Exception):
        engine.await_server()  # a client would wait for ever for one that is silent
        from distributed import Client

        with Client(address, timeout=_ASK_SECONDS, set_as_default=False) as client:
            threads = sum(client.nthreads().values())
        if not threads:
            _log.warning("the Dask scheduler at %s has no workers yet; the build waits for some", address)
        return threads
    return 0
