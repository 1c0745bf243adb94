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
import time
from collections import Counter
from typing import Any

from tests.cluster import kernel
from tests.cluster.connection import Connections
from tests.cluster.faults import Fault, Plan
from tests.cluster.kernel import Attributes, Request
from tests.cluster.nodes import Cache, Node, Nodes

THREADS = 24


class Client:
    """Answers the kernel's requests.

    Attributes:
      latency: seconds that each operation takes at least.
      plan: the faults to inject.
      calls: how often each operation was asked for.
    """

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.latency = 0.0
        self.plan = Plan([])
        self.calls: Counter[str] = Counter()
        self.cache = Cache()
        self._nodes = Nodes()
        self._hidden = itertools.count()
        self._interrupted: set[int] = set()
        self._unique = threading.local()
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

    # Faults, latency, the server

    def _call(self, operation: str, *arguments: Any) -> Any:
        unique = self._unique.value
        encoded = [os.fsencode(value) if isinstance(value, str) else value for value in arguments]
        return self.connections.call(operation, *encoded, interrupted=lambda: unique in self._interrupted)

    def _attributes(self, operation: str, *arguments: Any) -> Attributes:
        return Attributes(*self._call(operation, *arguments))

    def _begin(self, operation: str, *paths: str) -> Fault | None:
        """Waits for the latency, and raises the fault that is planned; returns one that comes with success."""
        self.calls[operation] += 1
        if self.latency:
            time.sleep(self.latency)
        plan = self.plan
        fault = plan.decide(operation, *paths)
        if fault is None or fault.error == "short" or fault.done:
            return fault
        if fault.error == "hang":
            plan.over.wait(fault.seconds)
            return None
        raise OSError(getattr(errno, fault.error), operation)

    @staticmethod
    def _end(fault: Fault | None) -> None:
        if fault is not None and fault.done:
            raise OSError(getattr(errno, fault.error), "reported after it was done")

    def _child(self, request: Request, skip: int) -> str:
        name = os.fsdecode(request.body[skip:].split(b"\0", 1)[0])
        parent = self._nodes[request.node].path
        return f"{parent}/{name}" if parent else name

    # Attributes

    def _stat(self, path: str) -> Attributes:
        known, found = self.cache.attributes(path)
        if not known:
            try:
                found = self._attributes("stat", path)
            except FileNotFoundError:
                found = None
            self.cache.keep(path, found)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        return found

    def _entry(self, path: str, attributes: Attributes) -> bytes:
        return kernel.entry_reply(self._nodes.found(path, attributes.ino).number, attributes)

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

    def _changing(self, path: str, operation: str, *arguments: Any) -> Any:
        """Calls what changes a path: whatever came of it, nothing old is told of the path from now on."""
        try:
            return self._call(operation, *arguments)
        finally:
            self.cache.changed(path)

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
        self._directories.pop(*struct.unpack_from("=Q", request.body), None)

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
