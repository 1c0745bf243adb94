"""How far an audit is."""

from __future__ import annotations

import logging
import sys
import threading
import time

from tqdm import tqdm

_log = logging.getLogger("pileshard.verify")

_LINE_SECONDS = 10


class Progress:
    """A bar on a terminal, else a line now and then; told of bytes by any thread.

    Args:
      total: bytes in all.
    """

    def __init__(self, total: int) -> None:
        self._live = sys.stderr.isatty()
        self._total = total
        self._done = 0
        self._began = self._last_line = time.monotonic()
        self._lock = threading.Lock()
        self._bar = tqdm(
            total=total or None, unit="B", unit_scale=True, desc="verify", disable=not self._live, file=sys.stderr
        )

    def add(self, count: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            self._done += count
            self._bar.update(count)
            now = time.monotonic()
            if not self._live and self._total and now - self._last_line >= _LINE_SECONDS:
                self._last_line = now
                rate = self._done / (now - self._began)
                left = f", {(self._total - self._done) / rate:,.0f} s left" if rate > 0 else ""
                _log.info("verify: %.0f%%, %.1f MB/s%s", 100 * self._done / self._total, rate / 1e6, left)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()
