"""Beam's local runner, in one process or with worker processes, and what it needs to be told.

All that is particular to it stands here; the pipeline is the same for every engine.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from beam_jobs.local_worker import DRIVER_PID, WORKER_PIDS
from pileshard.errors import BuildError

_log = logging.getLogger("pileshard.build")

#: How long a runner may take to fail by itself after one of its workers died.
_GRACE_SECONDS = 3.0

_PREFIX = "pileshard-workers-"


def local_runner(workers: int) -> Any:
    """Beam's FnApiRunner, named because `DirectRunner` would first try to fetch another one over the network."""
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    if workers == 1:
        return FnApiRunner()
    command = f"exec {shlex.quote(sys.executable)} -m beam_jobs.local_worker"
    return FnApiRunner(default_environment=SubprocessSDKEnvironment.from_command_string(command_string=command))


def run_with_workers(run: Callable[[], None]) -> None:
    """Runs a pipeline on the local runner with worker processes, and fails when one of them dies.

    The runner itself may wait for ever for a worker that was killed (Beam 2.77): the thread that waits for the process
    raises, and nobody hears of it. Here that thread's exception is heard, and the other workers are ended.

    Raises:
      BuildError: a worker process died.
    """
    died = threading.Event()
    failure: list[BaseException] = []

    def hook(args: threading.ExceptHookArgs) -> None:
        # Connections of a dead worker end in exceptions too, in other threads; they are no news.
        _log.debug("a thread of the runner ended: %s", args.exc_value)
        if "Worker subprocess exited" in str(args.exc_value):
            died.set()

    def target() -> None:
        try:
            run()
        except BaseException as error:
            failure.append(error)

    before = threading.excepthook
    for path in dead_drivers():
        shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=driver_prefix(), ignore_cleanup_errors=True) as pids:
        os.environ[DRIVER_PID] = str(os.getpid())
        os.environ[WORKER_PIDS] = pids
        threading.excepthook = hook
        try:
            thread = threading.Thread(target=target, name="pileshard-beam", daemon=True)
            thread.start()
            try:
                while thread.is_alive() and not died.is_set():
                    thread.join(0.1)
            except KeyboardInterrupt:
                _end_workers(pids)
                raise
            if died.is_set():
                thread.join(_GRACE_SECONDS)
                _end_workers(pids)
                raise BuildError(
                    "a worker process died (killed, or out of memory: then lower --workers or --run-bytes); run the "
                    "same command again, which continues the build"
                ) from (failure[0] if failure else None)
        finally:
            threading.excepthook = before
    if failure:
        raise failure[0]


def driver_prefix() -> str:
    """How the names of this driver's temporary directories begin: they tell whose they are."""
    return f"{_PREFIX}{os.getpid()}-"


def dead_drivers() -> list[str]:
    """Directories on this machine of drivers that were killed."""
    found = []
    for path in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*")):
        driver = os.path.basename(path).removeprefix(_PREFIX).split("-")[0]
        try:
            os.kill(int(driver), 0)
        except ProcessLookupError:
            found.append(path)
        except (ValueError, OSError):
            continue
    return found


def _end_workers(directory: str) -> None:
    """Ends the worker processes that wrote their numbers there."""
    for name in os.listdir(directory):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(name), signal.SIGKILL)
