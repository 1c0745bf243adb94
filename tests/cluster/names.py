"""Operations of a mount on names: attributes, making, moving and removing."""

from __future__ import annotations

import errno
import os
import struct
import time

from tests.cluster import kernel
from tests.cluster.kernel import Attributes, Request
from tests.cluster.session import Session


class Names(Session):
    """Answers the kernel's requests that are about names."""

    # Attributes

    def _lookup(self, request: Request) -> bytes:
        path = self._child(request, 0)
        self._begin("stat", path)
        return self._entry(path, self._stat(path))

    def _getattr(self, request: Request) -> bytes:
        node = self._nodes[request.node]
        self._begin("stat", node.path)
        if node.handles:
            return kernel.attributes_reply(self._attributes("stat_open", node.ino, node.path))
        found = self._stat(node.path)
        if node.ino and found.ino != node.ino:
            raise OSError(errno.ESTALE, "another file has this name now")
        return kernel.attributes_reply(found)

    def _setattr(self, request: Request) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atimensec, mtimensec, _, mode, _, uid, gid, _ = struct.unpack_from(
            "=IIQQQQQQIIIIIIII", request.body
        )
        node = self._nodes[request.node]
        fault = self._begin("truncate" if valid & kernel.SET_SIZE else "stat", node.path)
        now = time.time_ns()
        times = [
            now if valid & kernel.SET_ATIME_NOW else atime * 10**9 + atimensec,
            now if valid & kernel.SET_MTIME_NOW else mtime * 10**9 + mtimensec,
        ]
        ino = node.ino if node.handles else 0
        found = self._attributes("set", node.path, ino, valid, [mode, uid, gid, size, *times])
        self.cache.changed(node.path)
        self._end(fault)
        return kernel.attributes_reply(found)

    # Names

    def _mkdir(self, request: Request) -> bytes:
        mode, umask = struct.unpack_from("=II", request.body)
        path = self._child(request, 8)
        fault = self._begin("mkdir", path)
        try:
            found = self._attributes("mkdir", path, mode & ~umask)
        finally:
            self.cache.changed(path)
        self._end(fault)
        return self._entry(path, found)

    def _rmdir(self, request: Request) -> None:
        path = self._child(request, 0)
        fault = self._begin("rmdir", path)
        self._changing(path, "rmdir", path)
        self._end(fault)

    def _hide(self, path: str) -> bool:
        """Gives a file that is open here a name that hides it, as NFS does; whether it was open."""
        node = self._nodes.open_at(path)
        if node is None:
            return False
        parent = path.rpartition("/")[0]
        name = f".nfs{node.ino:016x}{os.getpid():08x}{next(self._hidden):08x}"
        hidden = f"{parent}/{name}" if parent else name
        self._changing(path, "rename", path, hidden, 0)
        self._nodes.moved(path, hidden)
        node.hidden = True
        return True

    def _unlink(self, request: Request) -> None:
        path = self._child(request, 0)
        fault = self._begin("unlink", path)
        if not self._hide(path):
            self._changing(path, "unlink", path)
        self._end(fault)

    def _rename(self, request: Request) -> None:
        two = request.opcode == kernel.RENAME2
        parent, flags = struct.unpack_from("=QI", request.body) if two else (*struct.unpack_from("=Q", request.body), 0)
        skip = 16 if two else 8
        old = self._child(request, skip)
        name = os.fsdecode(request.body[skip:].split(b"\0", 2)[1])
        there = self._nodes[parent].path
        new = f"{there}/{name}" if there else name
        fault = self._begin("rename", old, new)
        if not flags and old != new:
            self._hide(new)
        try:
            self._changing(old, "rename", old, new, flags)
            self._nodes.moved(old, new)
        finally:
            self.cache.changed(new)
        self._end(fault)

    def _link(self, request: Request) -> bytes:
        (old,) = struct.unpack_from("=Q", request.body)
        path = self._child(request, 8)
        fault = self._begin("link", path)
        found = Attributes(*self._changing(path, "link", self._nodes[old].path, path))
        self._end(fault)
        return self._entry(path, found)

    def _symlink(self, request: Request) -> bytes:
        path = self._child(request, 0)
        target = request.body.split(b"\0", 2)[1]
        self._begin("link", path)
        return self._entry(path, Attributes(*self._changing(path, "symlink", target, path)))

    def _readlink(self, request: Request) -> bytes:
        path = self._nodes[request.node].path
        self._begin("stat", path)
        return bytes(self._call("readlink", path))
