"""Hosts on one machine: namespaces with addresses, names, processes, mounts and temporary directories of their own.

A host lives by its first process, in a process namespace: when that is killed, all of the host's processes are gone at
once, and with them its mounts and its network. The first process ends when its standard input does, so hosts never
outlive the tests. What joins them is a switch: a network namespace with a bridge, held in the same way.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.mount import PATIENCE, ROOT, Export, Mount

_NEEDED = [path.resolve() for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix))]


def _holds_what_is_needed(place: Path) -> bool:
    return any(path.is_relative_to(place.resolve()) for path in _NEEDED)


#: Where each host has a disk of its own, a few directories for mounts.
DISK = next(place for place in map(Path, ("/mnt", "/srv", "/media")) if not _holds_what_is_needed(place))

#: The shared directory on every host.
SHARED = DISK / "shared"

#: On the host that serves it: what it serves.
EXPORTED = DISK / "exported"

_NETWORK = "10.77.0"


class Held:
    """Namespaces that are held by a process of ours.

    Attributes:
      pid: of the first process, as this machine's processes see it.
    """

    def __init__(self, spaces: Sequence[str], setup: str) -> None:
        # A first process that ignores SIGCHLD buries the orphans that come to it.
        script = f"set -e\n{setup}\ntrap '' CHLD\necho ready\nexec cat >/dev/null"
        self._holder = subprocess.Popen(
            ["unshare", *spaces, "--fork", "--kill-child", "--", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        try:
            ready = select.select([self._holder.stdout], [], [], PATIENCE)[0] and self._holder.stdout.readline()
            if ready != b"ready\n":
                self._holder.kill()
                _, printed = self._holder.communicate(timeout=PATIENCE)
                raise RuntimeError(f"no namespaces: {printed.decode().strip()}")
            (child,) = psutil.Process(self._holder.pid).children()
        except BaseException:
            self.kill()
            raise
        self.pid = child.pid

    def kill(self) -> None:
        """Kills the first process, and so every process there."""
        if self._holder.poll() is None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self._holder.pid).children():
                    child.kill()
            try:
                self._holder.wait(20)
            except subprocess.TimeoutExpired:
                self._holder.kill()
                self._holder.wait(PATIENCE)
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()


class Switch(Held):
    """The network between the hosts."""

    def __init__(self) -> None:
        setup = "ip link add bridge type bridge && ip link set bridge up"
        super().__init__(["--net", "--mount", "--pid", "--mount-proc"], setup)

    def _ip(self, *arguments: str, check: bool = True) -> None:
        command = ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
        if check and done.returncode:
            raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def plug(self, number: int, pid: int) -> None:
        """Joins a host: its end of the cable is `eth0` in the network namespace of a process."""
        port = f"port{number}"
        self._ip("link", "delete", port, check=False)  # the cable of a host that died may be there still
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._ip("link", "set", port, "master", "bridge")
        self._ip("link", "set", port, "up")

    def cut(self, number: int) -> None:
        """Pulls a host's cable: what it sends and what is sent to it is lost, and nobody is told."""
        self._ip("link", "set", f"port{number}", "down")


class Program:
    """A program on a host, which writes to a log."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def printed(self) -> str:
        """What it wrote so far."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float = 600.0) -> int:
        """Waits for its end and returns its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"still running after {timeout} s: {self.printed()[-5000:]}") from None

    def freeze_children(self) -> None:
        """Stops what the program started where it is: it hangs, and none of its connections closes."""
        (program,) = psutil.Process(self._process.pid).children()  # of nsenter, which would stop with it
        for child in program.children(recursive=True):
            child.suspend()

    def kill(self) -> None:
        """`kill -9` of the program and its children."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)


class Host:
    """One host. It is running from the start; after a `kill` it can be started again, empty.

    Attributes:
      name: its host name.
      address: in the network of the lab.
      mount: its mount of the shared directory, or None.
    """

    def __init__(self, number: int, name: str, switch: Switch, logs: Path, exported: Path | None = None) -> None:
        self.number = number
        self.name = name
        self.address = f"{_NETWORK}.{number}"
        self.mount: Mount | None = None
        self._switch = switch
        self._logs = logs
        self._exported = exported
        self._held: Held | None = None
        self._programs: list[Program] = []
        self.start()

    @property
    def running(self) -> bool:
        return self._held is not None

    def start(self) -> None:
        assert self._held is None
        setup = [f"hostname {self.name}", f"mount -t tmpfs disk {DISK}", f"mkdir {SHARED} {EXPORTED}"]
        if self._exported is not None:
            setup.append(f"mount --bind {shlex.quote(str(self._exported))} {EXPORTED}")
        setup += [f"mount -t tmpfs own {place}" for place in _private_directories()]
        spaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc"]
        self._held = Held(spaces, "\n".join(setup))
        self._switch.plug(self.number, self._held.pid)
        setup = [f"ip addr add {self.address}/24 dev eth0", "ip link set eth0 up", "ip link set lo up"]
        self.run("sh", "-c", " && ".join(setup))

    @property
    def prefix(self) -> list[str]:
        """What a command line begins with to run here, in the checkout's directory."""
        assert self._held is not None, f"{self.name} is not running"
        spaces = ["--net", "--mount", "--uts", "--ipc", "--pid"]
        inside = ["env", f"--chdir={ROOT}", "PYTHONUNBUFFERED=1"]
        return ["nsenter", f"--target={self._held.pid}", *spaces, "--", *inside]

    def attach(self, export: Export) -> Mount:
        """Mounts an export at SHARED."""
        self.mount = Mount(export, SHARED, prefix=self.prefix)
        return self.mount

    def run(self, *command: str | Path, check: bool = True, timeout: float = 600.0) -> Any:
        """Runs a command to its end; returns it with what it printed."""
        done = subprocess.run(
            [*self.prefix, *map(str, command)], capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {command} ended with {done.returncode}: {done.stderr[-5000:]}")
        return done

    def python(self, *arguments: str | Path, check: bool = True, timeout: float = 600.0) -> Any:
        return self.run(sys.executable, *arguments, check=check, timeout=timeout)

    def start_python(self, name: str, *arguments: str | Path, environment: dict[str, str] | None = None) -> Program:
        """Starts a Python program; its log has the name."""
        settings = [f"{key}={value}" for key, value in (environment or {}).items()]
        command = [*self.prefix, *settings, sys.executable, *map(str, arguments)]
        program = Program(name, command, self._logs / f"{self.name}-{name}.log")
        self._programs.append(program)
        return program

    def stop_programs(self, name: str = "") -> None:
        """Kills the programs that were started here, or those of which the name begins so."""
        for program in [program for program in self._programs if program.name.startswith(name)]:
            program.kill()
            self._programs.remove(program)

    def kill(self) -> None:
        """Kills every process of the host at once: peers see its connections close."""
        held, self._held = self._held, None
        if held is not None:
            held.kill()
        self.stop_programs()
        if self.mount is not None:
            self.mount.kill()
            self.mount = None

    def vanish(self) -> None:
        """As a host whose power fails: peers are told nothing, and what they send is lost."""
        self._switch.cut(self.number)
        self.kill()


def _private_directories() -> list[Path]:
    """Temporary directories that a host can have for itself: those that hold nothing which all hosts need."""
    places = map(Path, ("/tmp", "/var/tmp", "/dev/shm"))
    return [place for place in places if place.is_dir() and not _holds_what_is_needed(place)]
