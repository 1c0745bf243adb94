"""Receipts of items that are done, where a shared directory tells of them late.

A client of NFS or EFS may answer for as long as a minute from what it listed or looked for before, so the driver may
miss receipts that workers on other hosts have written. A change of its own in a directory makes such a client ask the
server again; where that does not help, time does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

from beam_jobs.job import RECEIPTS, Job, finished
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.build")

#: How long to look for receipts: longer than NFS keeps what it knows of a directory (`acdirmax`, 60 s by default).
LAG_SECONDS = 90.0


def arrived(job: Job, items: Sequence[Any], kind: type[Any], patience: float = LAG_SECONDS) -> dict[Any, Any]:
    """Each item of a stage that has ended without an error, with its receipt.

    Args:
      job: that the items belong to.
      items: of the stage.
      kind: of their receipts.
      patience: seconds to go on looking for those that are not there, unless another command has finished the dataset
        and removed them.

    Returns:
      The receipt of each item, or None where there is none after that time.
    """
    storage = job.storage()
    end = time.monotonic() + patience
    pause = 0.1
    told = False
    while True:
        done = dict(finished(storage, job.fingerprint, list(items), kind))
        missing = sum(receipt is None for receipt in done.values())
        if not missing or time.monotonic() + pause > end or storage.exists(MANIFEST):
            return done
        if not told and pause > 1:
            told = True
            _log.info("%d receipts of items that are done are not to be seen here yet: waiting for them", missing)
        _change(storage)
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


def _change(storage: Storage) -> None:
    if storage.is_local:
        path = storage.path(f"{RECEIPTS}/look-{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):
            os.mkdir(path)  # no file: whoever lists receipts sees none in it
            os.rmdir(path)
