"""The client's side of the tests' shared directory: a process that mounts an export through FUSE.

It behaves as an NFS client as far as the tests are concerned: close-to-open consistency (an open asks the server, and
cached pages of a file that changed go), attributes, absences and listings that may be some seconds old, names that hide
a file which was removed while it is open here (`.nfs...`), a server that is waited for or given up.

    python -m tests.cluster.client HOST PORT MOUNTPOINT

prints `{}` when it is mounted and takes commands in JSON lines on its standard input (see `mount.Mount`). It unmounts
and ends with its standard input, or on SIGTERM.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import struct
import sys
import threading
from typing import Any

from tests.cluster import kernel
from tests.cluster.connection import Connections
from tests.cluster.faults import Fault, Plan
from tests.cluster.kernel import Attributes, Request
from tests.cluster.names import Names
from tests.cluster.nodes import Node

THREADS = 24


class Client(Names):
    """Answers all requests of the kernel."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._directories: dict[int, list[tuple[str, int, int]]] = {}
        self._handles = itertools.count(1)
        self._handlers = {
            kernel.INIT: lambda request: kernel.init_reply(request.body),
            kernel.LOOKUP: self._lookup,
            kernel.GETATTR: self._getattr,
            kernel.SETATTR: self._setattr,
            kernel.READLINK: self._readlink,
            kernel.SYMLINK: self._symlink,
            kernel.MKDIR: self._mkdir,
            kernel.UNLINK: self._unlink,
            kernel.RMDIR: self._rmdir,
            kernel.RENAME: self._rename,
            kernel.RENAME2: self._rename,
            kernel.LINK: self._link,
            kernel.OPEN: self._open,
            kernel.CREATE: self._create,
            kernel.READ: self._read,
            kernel.WRITE: self._write,
            kernel.STATFS: self._statfs,
            kernel.RELEASE: self._release,
            kernel.FLUSH: self._flush,
            kernel.FSYNC: self._fsync,
            kernel.FSYNCDIR: self._fsyncdir,
            kernel.OPENDIR: self._opendir,
            kernel.READDIR: self._readdir,
            kernel.RELEASEDIR: self._releasedir,
        }

    def answer(self, request: Request) -> tuple[int, bytes] | None:
        """The error number, or 0 and data; None where the kernel waits for no answer."""
        if request.opcode == kernel.FORGET:
            self._nodes.forget(request.node, *struct.unpack_from("=Q", request.body))
            return None
        if request.opcode == kernel.BATCH_FORGET:
            (count,) = struct.unpack_from("=I", request.body)
            for number in range(count):
                self._nodes.forget(*struct.unpack_from("=QQ", request.body, 8 + 16 * number))
            return None
        if request.opcode == kernel.INTERRUPT:
            self._interrupted.update(struct.unpack_from("=Q", request.body))
            return None
        handler = self._handlers.get(request.opcode)
        if handler is None:
            return errno.ENOSYS, b""
        self._unique.value = request.unique
        try:
            return 0, handler(request) or b""
        except OSError as error:
            return error.errno or errno.EIO, b""
        except KeyError:
            return errno.ESTALE, b""
        finally:
            self._interrupted.discard(request.unique)

    # Directories

    def _opendir(self, request: Request) -> bytes:
        path = self._nodes[request.node].path
        self._begin("list", path)
        entries = self.cache.listing(path)
        if entries is None:
            entries = []
            for name, raw in self._call("list", path):
                found = Attributes(*raw)
                entries.append((os.fsdecode(name), found.ino, found.mode))
            self.cache.keep_listing(path, entries)
        handle = next(self._handles)
        self._directories[handle] = entries
        return kernel.open_reply(handle)

    def _readdir(self, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("=QQI", request.body)
        return kernel.directory_reply(self._directories[handle], offset, size)

    def _releasedir(self, request: Request) -> None:
        (handle,) = struct.unpack_from("=Q", request.body)
        self._directories.pop(handle, None)

    def _fsyncdir(self, request: Request) -> None:
        path = self._nodes[request.node].path
        self._begin("fsync", path)
        self._call("sync_directory", path)

    # Files

    def _open(self, request: Request) -> bytes:
        (flags,) = struct.unpack_from("=I", request.body)
        node = self._nodes[request.node]
        self._begin("open", node.path)
        found = self._attributes("open", node.path, bool(flags & os.O_TRUNC))
        if found.ino != node.ino:
            self._call("close", found.ino)
            self.cache.changed(node.path)
            raise OSError(errno.ESTALE, "another file has this name now")
        if flags & os.O_TRUNC:
            self.cache.changed(node.path)
        self._nodes.handle(node.number, 1)
        return kernel.open_reply(node.number, direct=self.plan.reads)

    def _create(self, request: Request) -> bytes:
        flags, mode, umask = struct.unpack_from("=III", request.body)
        path = self._child(request, 16)
        fault = self._begin("create", path)
        found = Attributes(*self._changing(path, "create", path, flags, mode & ~umask))
        if fault is not None and fault.done:
            self._call("close", found.ino)
            self._end(fault)
        node = self._nodes.found(path, found.ino)
        self._nodes.handle(node.number, 1)
        return kernel.entry_reply(node.number, found) + kernel.open_reply(node.number)

    def _read(self, request: Request) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", request.body)
        node = self._nodes[request.node]
        fault = self._begin("read", node.path)
        if fault is not None and size > 1:
            size //= 2
        return bytes(self._call("read", node.ino, node.path, offset, size))

    def _write(self, request: Request) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", request.body)
        node = self._nodes[request.node]
        fault = self._begin("write", node.path)
        if fault is not None and fault.error == "short" and size > 1:
            size //= 2
        written = self._changing(node.path, "write", node.ino, node.path, offset, request.body[40 : 40 + size])
        self._end(fault)
        return kernel.write_reply(written)

    def _flush(self, request: Request) -> None:
        self._end(self._begin("close", self._nodes[request.node].path))

    def _fsync(self, request: Request) -> None:
        node = self._nodes[request.node]
        fault = self._begin("fsync", node.path)
        self._call("sync", node.ino, node.path)
        self._end(fault)

    def _release(self, request: Request) -> None:
        node = self._nodes.handle(request.node, -1)
        self._call("close", node.ino)
        if node.hidden and not node.handles:
            self._remove_hidden(node)

    def _remove_hidden(self, node: Node) -> None:
        try:
            self._changing(node.path, "unlink", node.path)
        except FileNotFoundError:
            return

    def _statfs(self, request: Request) -> bytes:
        path = self._nodes[request.node].path
        self._begin("statfs", path)
        return kernel.statfs_reply(*self._call("statfs", path))


def _serve(descriptor: int, client: Client) -> None:
    while (request := kernel.receive(descriptor)) is not None:
        answer = client.answer(request)
        if answer is not None:
            error, data = answer
            try:
                kernel.reply(descriptor, request.unique, error, *((data,) if data else ()))
            except OSError as failure:
                print(f"opcode {request.opcode}: {failure}", file=sys.stderr, flush=True)


def _command(client: Client, command: dict[str, Any]) -> dict[str, Any]:
    name = command["do"]
    if name == "set":
        client.latency = command["latency"]
        client.connections.timeout = command["timeout"]
        if client.cache.seconds != command["cache"]:
            client.cache.seconds = command["cache"]
            client.cache.clear()
    elif name == "plan":
        before, client.plan = client.plan, Plan([Fault(**rule) for rule in command["rules"]])
        before.over.set()
    elif name == "injected":
        return {"injected": [vars(injected) for injected in client.plan.injected]}
    elif name == "calls":
        return {"calls": dict(client.calls)}
    return {}


def main(host: str, port: str, path: str) -> None:
    client = Client(Connections(host, int(port)))
    descriptor = kernel.mount(path)

    def end(*_: object) -> None:
        kernel.unmount(path)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    for _ in range(THREADS):
        threading.Thread(target=_serve, args=(descriptor, client), daemon=True).start()
    kernel.read_ahead(path, kernel.MAX_BYTES >> 10)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(_command(client, json.loads(line))), flush=True)
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
