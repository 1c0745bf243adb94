"""How much memory this process holds."""

from __future__ import annotations

import contextlib
import ctypes
import os


def resident_bytes() -> int | None:
    """The process's resident set, or None where /proc does not say (other systems than Linux)."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            return int(statm.read(128).split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return None


def release_free_memory() -> None:
    """Gives the system what the C library keeps of freed memory; where it cannot (not glibc), nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
