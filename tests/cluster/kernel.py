"""The FUSE protocol as the kernel speaks it on /dev/fuse (linux/fuse.h, 7.31 and later): mount, requests, replies.

No library stands between: a mount of the tests needs Linux, root and /dev/fuse alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from typing import NamedTuple

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = 9, 10, 11, 12, 13, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, FSYNCDIR = 20, 25, 26, 27, 28, 29, 30
CREATE, INTERRUPT, DESTROY, BATCH_FORGET, RENAME2 = 35, 36, 38, 42, 45

#: Largest write, and read, of one request.
MAX_BYTES = 1 << 20

SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME = 1, 2, 4, 8, 16, 32
SET_HANDLE, SET_ATIME_NOW, SET_MTIME_NOW = 64, 128, 256

_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")
_DIRENT = struct.Struct("=QQII")

_ASYNC_READ, _ATOMIC_TRUNC, _BIG_WRITES, _AUTO_INVAL = 1 << 0, 1 << 3, 1 << 5, 1 << 12
_PARALLEL_DIROPS, _MAX_PAGES, _INIT_EXT, _DIRECT_IO_MMAP = 1 << 18, 1 << 22, 1 << 30, 1 << 36
_WANTED = _ASYNC_READ | _ATOMIC_TRUNC | _BIG_WRITES | _AUTO_INVAL
_WANTED |= _PARALLEL_DIROPS | _MAX_PAGES | _INIT_EXT | _DIRECT_IO_MMAP
_OPEN_DIRECT_IO = 1

_libc = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2


class Attributes(NamedTuple):
    """What stat says of a file; times in nanoseconds."""

    mode: int
    ino: int
    nlink: int
    uid: int
    gid: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int

    @classmethod
    def of(cls, found: os.stat_result) -> Attributes:
        return cls(
            found.st_mode,
            found.st_ino,
            found.st_nlink,
            found.st_uid,
            found.st_gid,
            found.st_size,
            found.st_blocks,
            found.st_atime_ns,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )

    def packed(self) -> bytes:
        seconds = [divmod(value, 10**9) for value in (self.atime, self.mtime, self.ctime)]
        return _ATTR.pack(
            self.ino,
            self.size,
            self.blocks,
            *(whole for whole, _ in seconds),
            *(rest for _, rest in seconds),
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            0,
            4096,
            0,
        )


class Request(NamedTuple):
    """One request of the kernel."""

    opcode: int
    unique: int
    node: int
    body: bytes


def mount(path: str) -> int:
    """Mounts a file system at a directory, in this mount namespace; returns the descriptor of its requests."""
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    flags = _MS_NOSUID | _MS_NODEV
    if _libc.mount(b"tests.cluster", os.fsencode(path), b"fuse.export", flags, options.encode()):
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, f"FUSE cannot be mounted: {os.strerror(number)}", path)
    return descriptor


def unmount(path: str) -> bool:
    """Detaches a mount, busy or not; whether there was one."""
    return not _libc.umount2(os.fsencode(path), _MNT_DETACH)


def read_ahead(path: str, kilobytes: int) -> None:
    """Lets the kernel read so far ahead on a mount, where it can be set.

    The mount's own process must never ask the mount itself for anything (its device, say): killed while it waits for
    its own answer, it could not end.
    """
    with open("/proc/self/mountinfo") as mounts:
        devices = [line.split()[2] for line in mounts if line.split()[4] == path.replace(" ", "\\040")]
    with contextlib.suppress(OSError, IndexError):  # else it is slower, and right
        with open(f"/sys/class/bdi/{devices[-1]}/read_ahead_kb", "w") as file:
            file.write(str(kilobytes))


def receive(descriptor: int) -> Request | None:
    """The next request; None when the mount is gone."""
    while True:
        try:
            data = os.read(descriptor, MAX_BYTES + 8192)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # ENOENT: it was interrupted before
                continue
            if error.errno in (errno.ENODEV, errno.EBADF, errno.ECONNABORTED):
                return None
            raise
        if not data:
            return None
        _, opcode, unique, node, *_ = _IN.unpack_from(data)
        return Request(opcode, unique, node, data[_IN.size :])


def reply(descriptor: int, unique: int, error: int, *parts: bytes) -> None:
    """Answers a request with an error number, or 0 and data."""
    size = _OUT.size + sum(map(len, parts))
    try:
        os.writev(descriptor, [_OUT.pack(size, -error, unique), *parts])
    except OSError as failure:
        if failure.errno not in (errno.ENOENT, errno.ENODEV, errno.EBADF):  # the asking process was killed
            raise


def init_reply(body: bytes) -> bytes:
    """The answer to INIT: large requests, no write-back cache, attributes that invalidate cached pages."""
    major, minor, ahead, flags = struct.unpack_from("=IIII", body)
    if (major, minor) < (7, 31):
        raise OSError(errno.EPROTO, "this kernel's FUSE is older than 7.31")
    if flags & _INIT_EXT:
        flags |= struct.unpack_from("=I", body, 16)[0] << 32
    flags &= _WANTED
    low, high = flags & 0xFFFFFFFF, flags >> 32
    head = struct.pack("=IIIIHHIIHHI", 7, 39, max(ahead, MAX_BYTES), low, 64, 48, MAX_BYTES, 1, 256, 0, high)
    return head + bytes(64 - len(head))


def entry_reply(node: int, attributes: Attributes) -> bytes:
    """A node and its attributes, which the kernel keeps for no time: the mount's own cache decides."""
    return _ENTRY.pack(node, 0, 0, 0, 0, 0) + attributes.packed()


def attributes_reply(attributes: Attributes) -> bytes:
    return bytes(16) + attributes.packed()


def open_reply(handle: int, *, direct: bool = False) -> bytes:
    """An open file or directory; `direct`: every read and write of it is a request, past the page cache."""
    return struct.pack("=QII", handle, _OPEN_DIRECT_IO if direct else 0, 0)


def write_reply(written: int) -> bytes:
    return struct.pack("=II", written, 0)


def statfs_reply(block: int, blocks: int, free: int) -> bytes:
    return struct.pack("=QQQQQIIII", blocks, free, free, 1 << 20, 1 << 19, block, 255, block, 0) + bytes(24)


def directory_reply(entries: list[tuple[str, int, int]], offset: int, size: int) -> bytes:
    """Entries (name, inode, mode) from an offset on, as many as fit."""
    out = bytearray()
    for number, (name, ino, mode) in enumerate(entries[offset:], start=offset + 1):
        raw = os.fsencode(name)
        length = (_DIRENT.size + len(raw) + 7) & ~7
        if len(out) + length > size:
            break
        out += (_DIRENT.pack(ino, number, len(raw), (mode >> 12) & 15) + raw).ljust(length, b"\0")
    return bytes(out)
