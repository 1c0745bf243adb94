"""One driver at a time for an output: each tells that it lives, and a second one is refused while the first does.

No file here is a lock. A driver leaves a small file that it rewrites every few seconds; one that is not rewritten any
more belongs to a driver that is gone, and stands in nobody's way. Where two drivers miss each other all the same (one
slept for minutes and was taken for dead), both do the same work to the same bytes, since every file is written whole,
under its own name, from the same inputs. So the lease saves work and says what is going on; the bytes do not depend on
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from types import TracebackType

import msgspec

from pileshard.errors import BuildError, PileshardError
from pileshard.format.paths import BUILD
from pileshard.format.retry import Retry
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.build")

DRIVERS = f"{BUILD}/drivers"

_EVERY_LOCAL, _SILENT_LOCAL = 5.0, 30.0
_EVERY_REMOTE, _SILENT_REMOTE = 20.0, 90.0

#: How long a killed process takes to die, at most.
_DYING = 1.0

#: A file is rewritten in place: whoever opens it, on whatever mount, then sees what it holds now.
_LENGTH = 512


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """A command that works on an output.

    Attributes:
      id: names it.
      command: build or repair.
      host: where it runs.
      space: the process namespace there, for process numbers mean something only within it.
      pid: of its process.
      started: of its process, in clock ticks of the host.
      began: seconds since 1970.
      beats: how often it has told that it lives.
      time: of the last time, in seconds since 1970.
      running: whether it works; false while it waits to see whether others do.
    """

    id: str
    command: str
    host: str
    space: str
    pid: int
    started: str
    began: float
    beats: int = 0
    time: float = 0.0
    running: bool = False

    def __str__(self) -> str:
        return f"`pileshard {self.command}` on {self.host}, process {self.pid}"


def this_driver(command: str) -> Driver:
    """This process as a driver."""
    pid = os.getpid()
    now = time.time()
    return Driver(
        id=f"{socket.gethostname()}-{pid}-{uuid.uuid4().hex[:8]}",
        command=command,
        host=socket.gethostname(),
        space=_space(),
        pid=pid,
        started=_started(pid) or "",
        began=now,
        time=now,
    )


def lives_here(driver: Driver) -> bool | None:
    """Whether the driver's process lives; None where it is of another host, and cannot be looked at."""
    if driver.host != socket.gethostname() or driver.space != _space() or not driver.space:
        return None
    return _started(driver.pid) == driver.started


def _lives_on(driver: Driver) -> bool | None:
    """As `lives_here`; a process that was killed just now is given the time to die."""
    deadline = time.monotonic() + _DYING
    while (lives := lives_here(driver)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return lives


def _space() -> str:
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(pid: int) -> str | None:
    """When a process of this host began, in clock ticks; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else rest[18]


def silent_seconds(storage: Storage) -> float:
    """How long a driver must not be heard of to be taken for gone."""
    return _SILENT_LOCAL if storage.is_local else _SILENT_REMOTE


def drivers(storage: Storage) -> list[Driver]:
    """All that left a file and did not remove it, the living and the dead."""
    found = (_read(storage, path) for path in storage.files(DRIVERS))
    return [driver for driver in found if driver is not None]


def forget_dead(storage: Storage) -> None:
    """Removes the files of drivers of this host that were killed."""
    for driver in drivers(storage):
        if driver.pid != os.getpid() and _lives_on(driver) is False:
            storage.remove(path_of(driver))
    _remove_folder(storage)


def _remove_folder(storage: Storage) -> None:
    """Removes the drivers' folder, where there is one and no driver is left in it."""
    if (folder := storage.local_path(DRIVERS)) is not None:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _read(storage: Storage, path: str) -> Driver | None:
    try:
        return msgspec.json.decode(storage.read_bytes(path).rstrip(b"\0"), type=Driver)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def path_of(driver: Driver) -> str:
    """Where a driver's file lies."""
    return f"{DRIVERS}/{driver.id}.json"


class Lease:
    """The time of a command's work on an output; within the block no other command is known to work on it.

    Args:
      storage: the output.
      command: build or repair.

    Raises:
      BuildError: another command works on the output.
    """

    def __init__(self, storage: Storage, command: str = "build") -> None:
        self._storage = storage
        # A beat that fails is late already: the next one is better than the same one again.
        self._once = Storage(storage.url, storage.options, retry=Retry(attempts=1, timeout=storage.retry.timeout))
        self._me = this_driver(command)
        self._every = _EVERY_LOCAL if storage.is_local else _EVERY_REMOTE
        self._silent = silent_seconds(storage)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pileshard-lease", daemon=True)
        self.lost = False

    def __enter__(self) -> Lease:
        self._storage.write_bytes(path_of(self._me), self._bytes())
        try:
            self._await_others()
            self._tell(running=True)
            self._give_way()
            self._thread.start()
        except BaseException:
            self.release()
            raise
        return self

    def _bytes(self) -> bytes:
        return msgspec.json.encode(self._me).ljust(_LENGTH, b"\0")

    def _tell(self, running: bool) -> None:
        self._me = msgspec.structs.replace(self._me, beats=self._me.beats + 1, time=time.time(), running=running)
        try:
            if (path := self._storage.local_path(path_of(self._me))) is not None:
                with open(path, "r+b", buffering=0) as file:
                    file.write(self._bytes())
            elif self._once.exists(path_of(self._me)):
                self._once.write_bytes(path_of(self._me), self._bytes())
            else:
                self.lost = True
        except FileNotFoundError:
            self.lost = True
        except (OSError, PileshardError) as error:
            _log.debug("%s", error)

    def _beat(self) -> None:
        while not self._stop.wait(self._every) and not self.lost:
            self._tell(running=True)

    def _await_others(self) -> None:
        """Waits until each other driver is known to be gone, or raises."""
        first: dict[str, Driver] = {}
        deadline = time.monotonic() + self._silent
        while True:
            waiting = None
            for other in drivers(self._storage):
                if other.id == self._me.id:
                    continue
                lives = _lives_on(other)
                if lives is None and first.setdefault(other.id, other) != other:
                    lives = True
                if lives is None and time.monotonic() < deadline:
                    waiting = other
                elif not lives:
                    self._storage.remove(path_of(other))
                elif other.running or self._is_older(other):
                    raise self._refused(other)
            if waiting is None:
                return
            if self._me.beats == 0:
                _log.warning("%s worked on this output; waiting %.0f s to see if it lives", waiting, self._silent)
            time.sleep(self._every / 5)
            self._tell(running=False)

    def _give_way(self) -> None:
        """Raises where an older driver came between the look at the others and the word that this one works.

        Such an older one has seen no other at work, so it will; a younger one that came then finds this one at work.
        """
        for other in drivers(self._storage):
            if other.id != self._me.id and self._is_older(other) and lives_here(other) is not False:
                raise self._refused(other)

    def _is_older(self, other: Driver) -> bool:
        return (other.began, other.id) < (self._me.began, self._me.id)

    def _refused(self, other: Driver) -> BuildError:
        return BuildError(
            f"{self._storage.url}: {other} works on this output; wait until it has ended, or end it, and run the same "
            "command again"
        )

    def check(self) -> None:
        """Raises BuildError where another command took this one for gone, and works on the output now."""
        if self.lost:
            raise BuildError(
                f"{self._storage.url}: this command was not heard of for so long that another one took its place; "
                "run it again once that one has ended"
            )

    def release(self) -> None:
        """Ends the lease."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError, PileshardError):
            self._storage.remove(path_of(self._me))
            _remove_folder(self._storage)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
