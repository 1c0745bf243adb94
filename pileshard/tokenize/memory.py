"""How much memory this process holds."""

from __future__ import annotations

import os


def resident_bytes() -> int | None:
    """The process's resident set, or None where /proc does not say (other systems than Linux)."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(128).split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
