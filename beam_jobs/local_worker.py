"""A worker process of Beam's local runner: quiet, and gone when its driver is.

`python -m beam_jobs.local_worker` takes Beam's worker descriptors from the environment, as Beam's own module does. What
it adds: Beam's chatter stays out of the user's terminal, and a worker whose driver was killed does not go on writing.
"""

from __future__ import annotations

import contextlib
import logging
import os
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
    with contextlib.suppress(OSError):
        open(os.path.join(os.environ.get(WORKER_PIDS, ""), str(os.getpid())), "x").close()
    logging.disable(logging.WARNING)
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(["pileshard"])


if __name__ == "__main__":
    main()
