"""What a path lies on: a disk of this machine, or a mount of something far away."""

from __future__ import annotations

import os
from functools import lru_cache

#: File systems whose pages do not come over a network.
_OWN_DISK = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "bcachefs"}


def on_own_disk(path: str) -> bool:
    """Whether a path is known to lie on a disk or in the memory of this machine; False where it cannot be told."""
    try:
        return _kinds().get(os.stat(path).st_dev, "") in _OWN_DISK
    except OSError:
        return False


@lru_cache(maxsize=1)
def _kinds() -> dict[int, str]:
    """Kind of file system by device, of what was mounted when this was first asked."""
    kinds = {}
    try:
        with open("/proc/self/mountinfo") as table:
            for line in table:
                fields = line.split()
                major, minor = map(int, fields[2].split(":"))
                kinds[os.makedev(major, minor)] = fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return {}
    return kinds
