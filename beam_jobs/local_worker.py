"""A worker process of Beam's local runner: quiet, and gone when its driver is.

`python -m beam_jobs.local_worker` takes Beam's worker descriptors from the environment, as Beam's own module does. What
it adds: Beam's chatter stays out of the user's terminal, and a worker whose driver was killed does not go on writing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import time

DRIVER_PID = "PILESHARD_DRIVER_PID"
WORKER_PIDS = "PILESHARD_WORKER_PIDS"


def _follow(driver: int) -> None:
    while True:
        time.sleep(0.5)
        try:
            os.kill(driver, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            return  # it is alive and not ours to signal


def main() -> None:
    """Works until the driver ends the connection."""
    driver = os.environ.get(DRIVER_PID, "")
    if driver.isdecimal():
        threading.Thread(target=_follow, args=(int(driver),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver hears it and ends its workers
    with contextlib.suppress(OSError):
        # What Beam says of errors is said better by the driver; its own last words are kept for one that dies.
        place = os.path.join(os.environ.get(WORKER_PIDS, ""), str(os.getpid()))
        words = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.dup2(words, sys.stderr.fileno())
        os.close(words)
    logging.disable(logging.CRITICAL)
    importlib.import_module("beam_jobs.quiet_beam")  # takes half of the time that Beam takes by itself
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(["pileshard"])
    os._exit(0)  # all that matters is on disk; taking the interpreter apart costs most of a second


if __name__ == "__main__":
    main()
