"""The server's side of the tests' shared directory: a process that exports a directory over TCP.

It keeps no state that a client could not do without, as NFS: a file is known by its inode and its last path, so that a
client goes on after the server was killed and started again. A file that was deleted while another client has it open
is gone for that client (`ESTALE`). With a limit the directory is a disk of that size: `statfs` tells what is left, and
growing beyond it gives `ENOSPC`.

    python -m tests.cluster.export DIRECTORY HOST PORT

prints the port in JSON, takes `{"limit": BYTES or null}` in JSON lines on its standard input, and ends with it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import socketserver
import stat
import sys
import threading
from collections import Counter
from typing import Any

from tests.cluster import wire
from tests.cluster.kernel import SET_ATIME, SET_GID, SET_MODE, SET_MTIME, SET_SIZE, SET_UID, Attributes

_RENAME_FLAGS = 3  # RENAME_NOREPLACE | RENAME_EXCHANGE
_libc = ctypes.CDLL(None, use_errno=True)


class Directory:
    """Executes the operations of all clients on one directory."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)
        self._lock = threading.RLock()
        self._open: dict[int, tuple[int, Counter[str]]] = {}
        self.limit: int | None = None

    def _full(self, path: bytes) -> bytes:
        return os.path.join(self._root, path) if path else self._root

    # Paths

    def stat(self, session: str, path: bytes) -> Attributes:
        return Attributes.of(os.lstat(self._full(path)))

    def list(self, session: str, path: bytes) -> list[tuple[bytes, Attributes]]:
        found = []
        for name in sorted(os.listdir(self._full(path))):
            try:
                found.append((name, self.stat(session, os.path.join(path, name))))
            except FileNotFoundError:
                continue
        return found

    def mkdir(self, session: str, path: bytes, mode: int) -> Attributes:
        os.mkdir(self._full(path), mode)
        return self.stat(session, path)

    def rmdir(self, session: str, path: bytes) -> None:
        os.rmdir(self._full(path))

    def unlink(self, session: str, path: bytes) -> None:
        os.unlink(self._full(path))

    def rename(self, session: str, old: bytes, new: bytes, flags: int) -> None:
        here, there = self._full(old), self._full(new)
        if flags & ~_RENAME_FLAGS:
            raise OSError(errno.EINVAL, "unknown flags")
        if _libc.renameat2(-100, here, -100, there, flags):
            raise OSError(ctypes.get_errno(), "rename")

    def link(self, session: str, old: bytes, new: bytes) -> Attributes:
        os.link(self._full(old), self._full(new), follow_symlinks=False)
        return self.stat(session, new)

    def symlink(self, session: str, target: bytes, path: bytes) -> Attributes:
        os.symlink(target, self._full(path))
        return self.stat(session, path)

    def readlink(self, session: str, path: bytes) -> bytes:
        return os.readlink(self._full(path))

    def sync_directory(self, session: str, path: bytes) -> None:
        descriptor = os.open(self._full(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # Open files

    def open(self, session: str, path: bytes, truncate: bool) -> Attributes:
        descriptor = self._keep(session, self._opened(self._full(path), 0))
        if truncate:
            os.ftruncate(descriptor, 0)
        return Attributes.of(os.fstat(descriptor))

    def create(self, session: str, path: bytes, flags: int, mode: int) -> Attributes:
        wanted = os.O_CREAT | flags & (os.O_EXCL | os.O_TRUNC)
        return Attributes.of(os.fstat(self._keep(session, self._opened(self._full(path), wanted, mode))))

    @staticmethod
    def _opened(path: bytes, flags: int, mode: int = 0) -> int:
        return os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, mode)

    def _keep(self, session: str, descriptor: int) -> int:
        ino = os.fstat(descriptor).st_ino
        with self._lock:
            kept, sessions = self._open.setdefault(ino, (descriptor, Counter()))
            sessions[session] += 1
        if kept != descriptor:
            os.close(descriptor)
        return kept

    def _descriptor(self, session: str, ino: int, path: bytes) -> int:
        """A file's descriptor, by its inode; opened anew by its path after this server was started again."""
        with self._lock:
            kept = self._open.get(ino)
        if kept is None:
            try:
                found = os.lstat(self._full(path)).st_ino
            except FileNotFoundError:
                found = 0
            if found != ino:
                raise OSError(errno.ESTALE, "the file was deleted")
            descriptor = self._keep(session, self._opened(self._full(path), 0))
        else:
            descriptor = kept[0]
        if not os.fstat(descriptor).st_nlink:
            raise OSError(errno.ESTALE, "the file was deleted")
        return descriptor

    def stat_open(self, session: str, ino: int, path: bytes) -> Attributes:
        return Attributes.of(os.fstat(self._descriptor(session, ino, path)))

    def read(self, session: str, ino: int, path: bytes, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor(session, ino, path), size, offset)

    def write(self, session: str, ino: int, path: bytes, offset: int, data: bytes) -> int:
        descriptor = self._descriptor(session, ino, path)
        if self.limit is None:
            return os.pwrite(descriptor, data, offset)
        with self._lock:
            grown = offset + len(data) - os.fstat(descriptor).st_size
            if grown > 0:
                data = data[: len(data) - max(0, grown - self._left())]
                if not data:
                    raise OSError(errno.ENOSPC, "the disk is full")
            return os.pwrite(descriptor, data, offset)

    def sync(self, session: str, ino: int, path: bytes) -> None:
        os.fsync(self._descriptor(session, ino, path))

    def set(self, session: str, path: bytes, ino: int, valid: int, values: list[int]) -> Attributes:
        """Changes mode, owner, group, size, atime and mtime, as the bits in `valid` say."""
        mode, uid, gid, size, atime, mtime = values
        full = self._full(path)
        if valid & SET_SIZE:
            descriptor = self._descriptor(session, ino, path) if ino else self._opened(full, 0)
            try:
                with self._lock:
                    if self.limit is not None and size - os.fstat(descriptor).st_size > self._left():
                        raise OSError(errno.ENOSPC, "the disk is full")
                    os.ftruncate(descriptor, size)
            finally:
                if not ino:
                    os.close(descriptor)
        if valid & SET_MODE:
            os.chmod(full, stat.S_IMODE(mode))
        if valid & (SET_UID | SET_GID):
            os.chown(full, uid if valid & SET_UID else -1, gid if valid & SET_GID else -1, follow_symlinks=False)
        if valid & (SET_ATIME | SET_MTIME):
            now = os.lstat(full)
            times = (atime if valid & SET_ATIME else now.st_atime_ns, mtime if valid & SET_MTIME else now.st_mtime_ns)
            os.utime(full, ns=times, follow_symlinks=False)
        return self.stat_open(session, ino, path) if ino else self.stat(session, path)

    def close(self, session: str, ino: int) -> None:
        with self._lock:
            kept = self._open.get(ino)
            if kept is None:
                return
            descriptor, sessions = kept
            sessions[session] -= 1
            if sessions[session] <= 0:
                del sessions[session]
            if not sessions:
                del self._open[ino]
                os.close(descriptor)

    def forget(self, session: str) -> None:
        """Closes what a client that is gone had open."""
        with self._lock:
            for ino, (descriptor, sessions) in list(self._open.items()):
                if sessions.pop(session, 0) and not sessions:
                    del self._open[ino]
                    os.close(descriptor)

    # Space

    def _left(self) -> int:
        used = 0
        for base, _, names in os.walk(self._root):
            for name in names:
                try:
                    used += os.lstat(os.path.join(base, name)).st_size
                except FileNotFoundError:
                    continue
        return max(0, (self.limit or 0) - used)

    def statfs(self, session: str, path: bytes) -> tuple[int, int, int]:
        """Size of a block, blocks, free blocks."""
        if self.limit is not None:
            return 512, self.limit // 512, self._left() // 512
        found = os.statvfs(self._root)
        return found.f_frsize, found.f_blocks, found.f_bavail


class _Handler(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        directory = self.server.directory
        session = ""
        try:
            session = wire.receive(self.request)
            self.server.arrived(session)
            while True:
                operation, arguments = wire.receive(self.request)
                try:
                    answer = 0, getattr(directory, operation)(session, *arguments)
                except OSError as error:
                    answer = error.errno or errno.EIO, None
                wire.send(self.request, answer)
        except (OSError, EOFError):
            pass  # the client is gone
        finally:
            if session:
                self.server.left(session)


class Server(socketserver.ThreadingTCPServer):
    """Serves a directory; each connection has a thread, each client several connections."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: Directory, address: tuple[str, int]) -> None:
        self.directory = directory
        self._connections: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def arrived(self, session: str) -> None:
        with self._lock:
            self._connections[session] += 1

    def left(self, session: str) -> None:
        with self._lock:
            self._connections[session] -= 1
            if not self._connections[session]:
                self.directory.forget(session)


def main(root: str, host: str, port: str) -> None:
    directory = Directory(root)
    server = Server(directory, (host, int(port)))
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "limit" in command:
            directory.limit = command["limit"]
        print("{}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
