"""How much of a stage's worker time was spent at work, told from its receipts: the same for every engine."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable
from typing import Any

import msgspec


class StageTime(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage spent its time.

    Attributes:
      seconds: from its begin to its end, for the driver.
      start_seconds: from its begin to that of its first item: what the engine takes to start, as far as clocks agree.
      items: done in it, by this command.
      item_seconds: that they took together.
      longest_item: seconds of the longest.
      processes: that did them.
      workers: the most items in work at once, or what the engine has, where it is known to be more.
      at_work: `item_seconds` as a share of `seconds` times `workers`; null where no item was done.
    """

    seconds: float
    start_seconds: float
    items: int
    item_seconds: float
    longest_item: float
    processes: int
    workers: int
    at_work: float | None

    def line(self) -> str:
        """For a person."""
        if self.at_work is None:
            return f"{self.seconds:.1f} s"
        start = f" (the first item began after {self.start_seconds:.1f} s)" if self.start_seconds >= 0.5 else ""
        return f"{self.seconds:.1f} s{start}, {self.at_work:.0%} of the time of {self.workers} workers at work"


def stage_time(began: float, seconds: float, receipts: Iterable[Any], workers: int | None) -> StageTime:
    """Adds up the receipts that a stage's items left.

    Args:
      began: when the stage did, in seconds since 1970.
      seconds: that the stage took.
      receipts: of the items that this command did.
      workers: that the engine has; None where it is not known.
    """
    done = list(receipts)
    spent = sum(receipt.seconds for receipt in done)
    most = max(workers or 1, at_once(done))
    first = min((receipt.began for receipt in done), default=began)
    return StageTime(
        seconds=round(seconds, 2),
        start_seconds=round(min(max(0.0, first - began), seconds), 2),
        items=len(done),
        item_seconds=round(spent, 2),
        longest_item=max((receipt.seconds for receipt in done), default=0.0),
        processes=len({receipt.worker for receipt in done}),
        workers=most,
        at_work=round(min(1.0, spent / (seconds * most)), 3) if done and seconds > 0 else None,
    )


def at_once(receipts: Iterable[Any]) -> int:
    """The most items that were in work at the same time, by the clocks of their hosts."""
    events = []
    for receipt in receipts:
        if receipt.seconds > 0:
            events += [(receipt.began, 1), (receipt.began + receipt.seconds, -1)]
    events.sort()
    most = now = 0
    for _, step in events:
        now += step
        most = max(most, now)
    return most


def worker_name() -> str:
    """Names this process, and no host, so that processes can be told apart."""
    return hashlib.sha256(f"{socket.gethostname()}:{os.getpid()}".encode()).hexdigest()[:8]
