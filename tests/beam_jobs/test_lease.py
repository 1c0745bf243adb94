"""One driver at a time: a second one is refused while the first lives, and a dead one stands in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import beam_jobs.lease as lease_module
from beam_jobs.lease import DRIVERS, Driver, Lease, drivers, forget_dead, lives_here, path_of, this_driver
from pileshard.errors import BuildError
from pileshard.format.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "root"))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_EVERY_LOCAL", 0.1)
    monkeypatch.setattr(lease_module, "_SILENT_LOCAL", 1.0)
    monkeypatch.setattr(lease_module, "_DYING", 0.1)


def _leave(storage: Storage, **changes: object) -> Driver:
    """A driver's file, as it would lie there."""
    driver = msgspec.structs.replace(this_driver("build"), **changes)
    storage.write_bytes(path_of(driver), msgspec.json.encode(driver).ljust(512, b"\0"))
    return driver


def test_second_driver_is_refused_while_the_first_lives(storage: Storage) -> None:
    with Lease(storage):
        with pytest.raises(BuildError, match=rf"`pileshard build` on .*, process {os.getpid()} works on this output"):
            Lease(storage).__enter__()
        assert len(drivers(storage)) == 1
    assert storage.files() == []
    assert not storage.exists(DRIVERS)
    with Lease(storage):
        pass


def test_driver_that_was_killed_is_no_hindrance(storage: Storage) -> None:
    script = (
        "import sys, time\nfrom beam_jobs.lease import Lease\nfrom pileshard.format.storage import Storage\n"
        "with Lease(Storage(sys.argv[1])):\n    print('working', flush=True)\n    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, storage.url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        with pytest.raises(BuildError, match=f"process {process.pid} works on this output"):
            Lease(storage).__enter__()
    finally:
        process.kill()
    began = time.monotonic()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with Lease(storage):  # even where nobody has waited for the dead process yet
        assert time.monotonic() - began < 5
        assert len(drivers(storage)) == 1
    process.wait()


def test_number_of_a_dead_process_that_another_has_now_is_not_taken_for_it(storage: Storage) -> None:
    driver = _leave(storage, started="1", running=True)
    assert lives_here(driver) is False
    with Lease(storage):
        assert [found.id for found in drivers(storage)] != [driver.id]


@pytest.mark.usefixtures("_quick")
def test_driver_of_another_host_that_falls_silent_is_waited_for_and_replaced(storage: Storage) -> None:
    driver = _leave(storage, host="elsewhere", running=True)
    assert lives_here(driver) is None
    began = time.monotonic()
    with Lease(storage):
        assert time.monotonic() - began > 0.9
        assert driver.id not in {found.id for found in drivers(storage)}


@contextmanager
def _beating(storage: Storage, driver: Driver) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        beats = 0
        while not stop.wait(0.05):
            beats += 1
            now = msgspec.structs.replace(driver, beats=beats)
            storage.write_bytes(path_of(driver), msgspec.json.encode(now).ljust(512, b"\0"))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_driver_of_another_host_that_beats_is_alive_whatever_its_clock_says(storage: Storage, hours: int) -> None:
    now = time.time() + 3600 * hours
    driver = _leave(storage, host="elsewhere", running=True, time=now, began=now)
    with _beating(storage, driver), pytest.raises(BuildError, match="`pileshard build` on elsewhere"):
        Lease(storage).__enter__()
    assert [found.id for found in drivers(storage)] == [driver.id]


@pytest.mark.usefixtures("_quick")
def test_of_two_that_come_at_once_the_older_works(storage: Storage) -> None:
    now = time.time()
    younger = _leave(storage, host="elsewhere", began=now + 100)
    with _beating(storage, younger), Lease(storage):
        pass
    storage.remove(path_of(younger))
    older = _leave(storage, host="elsewhere", began=now - 100)
    with _beating(storage, older), pytest.raises(BuildError, match="on elsewhere"):
        Lease(storage).__enter__()


@pytest.mark.usefixtures("_quick")
def test_driver_whose_place_was_taken_is_told(storage: Storage) -> None:
    lease = Lease(storage)
    with lease:
        lease.check()
        storage.remove_tree(DRIVERS)
        deadline = time.monotonic() + 60
        while not lease.lost and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(BuildError, match="another one took its place"):
            lease.check()
    assert storage.files() == []


@pytest.mark.usefixtures("_quick")
def test_of_many_that_come_at_once_one_works(storage: Storage) -> None:
    """Threads of one process stand for drivers; each holds the lease until all have tried."""
    barrier = threading.Barrier(8)
    done = threading.Event()
    holding: list[int] = []
    refused: list[int] = []

    def drive(number: int) -> None:
        barrier.wait()
        try:
            with Lease(storage):
                holding.append(number)
                done.wait(60)
        except BuildError:
            refused.append(number)

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(holding) + len(refused) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join()
    assert len(holding) == 1
    assert storage.files() == []


def test_file_that_was_torn_is_passed_over(storage: Storage) -> None:
    storage.write_bytes(f"{DRIVERS}/torn.json", b'{"id": "x", "comm')
    assert drivers(storage) == []
    with Lease(storage):
        pass


def test_older_driver_that_comes_between_the_look_and_the_word_is_given_way(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = Lease._tell

    def late(self: Lease, running: bool) -> None:
        if running:
            _leave(storage, host="elsewhere", began=time.time() - 100)
        tell(self, running)

    monkeypatch.setattr(Lease, "_tell", late)
    with pytest.raises(BuildError, match="on elsewhere"):
        Lease(storage).__enter__()


def test_finished_build_forgets_drivers_that_were_killed(storage: Storage) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        dead = msgspec.structs.replace(this_driver("build"), id="dead", pid=process.pid)
        process.kill()
    elsewhere = msgspec.structs.replace(this_driver("build"), id="elsewhere", host="another")
    for driver in (dead, elsewhere):
        storage.write_bytes(path_of(driver), msgspec.json.encode(driver))
    forget_dead(storage)
    assert [driver.id for driver in drivers(storage)] == ["elsewhere"]
