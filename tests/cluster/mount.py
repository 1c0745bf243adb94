"""A shared directory with the faults of one: the tests' own network file system, on one machine or on several hosts.

    with mounted(directory) as mount:                     # an export and a mount of it, on this machine
        mount.path                                        # the directory as a client sees it
        mount.set(latency=0.002, cache=3.0)               # seconds an operation takes; seconds that attributes and
                                                          # listings may be old; timeout=5.0: a soft mount
        mount.faults.plan(
            Fault("write", "_build/*", "EIO", count=2),
            Fault("rename", "shards/*", "ENOENT", done=True),
            Fault("*", chance=0.02, seed=7, count=200, rest=30),
        )
        mount.faults.counts()                             # {("write", "EIO"): 2, ...}: what was injected
        mount.export.limit(100_000_000)                   # a disk of this size; None: no limit
        mount.export.kill(); mount.export.start()         # the server is away, then back at the same port

`directory` itself is what another client sees at once. Both processes end with this one, whatever happens to it, and
the mount is detached, busy or not. Needs Linux, root and /dev/fuse: see `capability.py`.

An `ESTALE` of an operation on a path (not on an open file) is tried again once by the kernel itself before a program
sees it, so it takes two faults to make one failure. Plan faults of reads before the files are opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import kernel
from tests.cluster.faults import Fault, Injected

__all__ = ["Export", "Fault", "Faults", "Injected", "Mount", "mounted"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0


class _Process:
    """A process of the file system, and the pipe of commands that it lives by."""

    def __init__(self, name: str, arguments: Sequence[str], prefix: Sequence[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", name, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt of the tests must not take the storage from under them
        )
        try:
            self.greeting = self._answer()
        except BaseException:
            self.end()
            raise

    def command(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(f"{self.name} does not answer")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self._process.wait(PATIENCE)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Kills the process, and the one that it may run in another namespace."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._close()

    def end(self) -> None:
        """Ends the process as the end of this one would; kills it where that does not help."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait(PATIENCE)


class Export:
    """A process that serves a directory over TCP.

    Attributes:
      directory: what it serves, as its host sees it.
      host: address that it listens at.
      port: found by the first start, the same ever after.
    """

    def __init__(self, directory: Path | str, host: str = "127.0.0.1", *, prefix: Sequence[str] = ()) -> None:
        self.directory = Path(directory)
        self.host = host
        self.port = 0
        self._prefix = prefix
        self._limit: int | None = None
        self._process: _Process | None = None

    def start(self) -> None:
        """Starts the server, where it is not running."""
        if self._process is not None:
            return
        arguments = [str(self.directory), self.host, str(self.port)]
        self._process = _Process("tests.cluster.export", arguments, self._prefix)
        self.port = self._process.greeting["port"]
        if self._limit is not None:
            self.limit(self._limit)

    def limit(self, size: int | None) -> None:
        """Makes the directory a disk of so many bytes (of file contents), or unmakes it."""
        assert self._process is not None
        self._limit = size
        self._process.command({"limit": size})

    def kill(self) -> None:
        """`kill -9`; mounts wait for the next start, or give up, as they are set."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class Faults:
    """The faults of one mount, and what became of them."""

    def __init__(self, process: _Process) -> None:
        self._process = process

    def plan(self, *rules: Fault) -> None:
        """Injects these from now on, and none of an earlier plan; what was counted starts anew."""
        self._process.command({"do": "plan", "rules": [rule.as_dict() for rule in rules]})

    def clear(self) -> None:
        """Injects no more faults, and forgets which there were."""
        self.plan()

    def injected(self) -> list[Injected]:
        """Every fault of this plan that took place, in order."""
        return [Injected(**entry) for entry in self._process.command({"do": "injected"})["injected"]]

    def counts(self) -> Counter[tuple[str, str]]:
        """How often each operation failed with each error."""
        return Counter((injected.operation, injected.error) for injected in self.injected())


class Mount:
    """A mount of an export.

    Attributes:
      path: where it is mounted, in the mount namespace of its host.
      export: what it mounts.
      faults: the faults it injects.
    """

    def __init__(self, export: Export, path: Path | str, *, prefix: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self.export = export
        self._own = not prefix
        self._process = _Process("tests.cluster.client", [export.host, str(export.port), str(path)], prefix)
        self.faults = Faults(self._process)
        self._settings: dict[str, Any] = {"latency": 0.0, "cache": 0.0, "timeout": None}

    def set(self, **settings: float | None) -> None:
        """Changes `latency`, `cache` and `timeout`, those that are named.

        `latency` is the time in seconds that each operation takes at least; `cache` for how many seconds attributes,
        absences and listings may be old, where others changed them; after `timeout` seconds an operation gives EIO
        while the server is away (None: it waits).
        """
        assert settings.keys() <= self._settings.keys(), settings
        self._settings |= settings
        self._process.command({"do": "set", **self._settings})

    def calls(self) -> Counter[str]:
        """How often each operation was asked for."""
        return Counter(self._process.command({"do": "calls"})["calls"])

    def kill(self) -> None:
        """Kills the client: programs that use the mount get ENOTCONN, as from a forced unmount."""
        self._process.kill()

    def close(self) -> None:
        """Unmounts."""
        self._process.end()
        while self._own and kernel.unmount(str(self.path)):
            pass


@contextmanager
def mounted(directory: Path | str, path: Path | str | None = None) -> Iterator[Mount]:
    """An export of a directory and a mount of it on this machine.

    Args:
      directory: to be shared; made where it is not there.
      path: where to mount it; by default a new directory under the system's temporary one, removed at the end.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if path is None:
            place = Path(tempfile.mkdtemp(prefix="mount-"))
            stack.callback(place.rmdir)
        else:
            place = Path(path)
            place.mkdir(parents=True, exist_ok=True)
        export = Export(directory)
        stack.callback(export.close)
        export.start()
        mount = Mount(export, place)
        stack.callback(mount.close)
        yield mount
