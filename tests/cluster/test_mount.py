"""The tests' own shared directory behaves as one, and fails as it is told to."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.capability import needs_mounts
from tests.cluster.mount import Fault, Mount, mounted

pytestmark = needs_mounts


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(tmp_path / "shared") as mount:
        yield mount


@contextmanager
def fails(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as raised:
        yield
    assert raised.value.errno == number


def test_files_are_what_was_written(mount: Mount, tmp_path: Path) -> None:
    rng = random.Random(1)
    data = rng.randbytes(5_000_001)
    (mount.path / "a/b").mkdir(parents=True)
    (mount.path / "a/b/file ä").write_bytes(data)
    assert (tmp_path / "shared/a/b/file ä").read_bytes() == data
    with open(mount.path / "a/b/file ä", "r+b") as file:
        for _ in range(50):
            at = rng.randrange(len(data))
            piece = rng.randbytes(rng.randrange(300_000))
            data = data[:at] + piece + data[at + len(piece) :]
            file.seek(at)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        file.truncate(4_000_000)
    assert (mount.path / "a/b/file ä").read_bytes() == data[:4_000_000]
    with open(mount.path / "a/b/file ä", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert mapped[:] == data[:4_000_000]
        mapped.close()
    with open(mount.path / "a/b/file ä", "ab") as file:
        file.write(b"more")
    assert (mount.path / "a/b/file ä").stat().st_size == 4_000_004
    os.replace(mount.path / "a/b", mount.path / "a/c")
    os.link(mount.path / "a/c/file ä", mount.path / "linked")
    os.symlink("linked", mount.path / "symbolic")
    assert sorted(os.listdir(mount.path)) == ["a", "linked", "symbolic"]
    assert (mount.path / "symbolic").read_bytes()[-4:] == b"more"
    with fails(errno.EEXIST):
        os.open(mount.path / "linked", os.O_CREAT | os.O_EXCL)
    shutil.rmtree(mount.path / "a")
    assert sorted(os.listdir(tmp_path / "shared")) == ["linked", "symbolic"]


def test_thousands_of_entries_are_listed_once_each(mount: Mount, tmp_path: Path) -> None:
    names = {f"{number:05d}-{'x' * (number % 150)}" for number in range(3000)}
    for name in names:
        (tmp_path / "shared" / name).touch()
    found = os.listdir(mount.path)
    assert len(found) == 3000
    assert set(found) == names


def test_threads_read_and_write_at_once(mount: Mount) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(10):
            data = rng.randbytes(rng.randrange(400_000))
            path = mount.path / f"{number}"
            temporary = mount.path / f"{number}.new"
            temporary.write_bytes(data)
            os.replace(temporary, path)
            if path.read_bytes() != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_others_change_is_seen_late_and_an_open_asks_the_server(mount: Mount, tmp_path: Path) -> None:
    mount.set(cache=3600)
    (mount.path / "file").write_text("old")
    assert os.listdir(mount.path) == ["file"]
    assert not (mount.path / "other").exists()
    assert (mount.path / "file").stat().st_size == 3
    (tmp_path / "shared/other").touch()
    (tmp_path / "shared/file").write_text("newer")
    assert os.listdir(mount.path) == ["file"]
    assert not (mount.path / "other").exists()
    assert (mount.path / "file").stat().st_size == 3
    assert (mount.path / "file").read_text() == "newer"
    (mount.path / "mine").touch()
    assert sorted(os.listdir(mount.path)) == ["file", "mine", "other"]
    mount.set(cache=0)
    assert (mount.path / "other").exists()


@pytest.mark.parametrize("error", ["EIO", "ESTALE", "EDQUOT", "ENOSPC"])
def test_a_planned_fault_takes_place_so_often_and_no_more(mount: Mount, error: str) -> None:

    def attempt() -> None:
        path = mount.path / "new"
        with open(path, "wb", buffering=0) as file:
            file.write(b"text")
            os.fsync(file.fileno())
        assert path.read_bytes() == b"text"
        os.replace(path, mount.path / "moved")
        os.unlink(mount.path / "moved")
        os.listdir(mount.path)
        os.makedirs(mount.path / "made", exist_ok=True)

    by_path = ("mkdir", "create", "rename", "unlink", "list")
    for operation in (*by_path, "read", "write", "fsync", "close"):
        count = 4 if error == "ESTALE" and operation in by_path else 2  # the kernel tries again
        mount.faults.plan(Fault(operation, error=error, count=count, in_a_row=count))
        for _ in range(2):
            with fails(getattr(errno, error)):
                attempt()
        attempt()
        assert mount.faults.counts() == {(operation, error): count}
        os.rmdir(mount.path / "made")


def test_a_rename_may_take_place_and_report_failure(mount: Mount) -> None:
    (mount.path / "old").write_bytes(b"data")
    mount.faults.plan(Fault("rename", "new", "ENOENT", done=True))
    with fails(errno.ENOENT):
        os.replace(mount.path / "old", mount.path / "new")
    assert os.listdir(mount.path) == ["new"]
    mount.faults.plan(Fault("create", "lock", "EEXIST", done=True), Fault("create", "raced", "EEXIST"))
    for name in ("lock", "raced"):
        with fails(errno.EEXIST):
            os.open(mount.path / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert sorted(os.listdir(mount.path)) == ["lock", "new"]


def test_reads_and_writes_may_be_short(mount: Mount) -> None:
    mount.faults.plan(Fault("write", error="short"), Fault("read", error="short", count=2))
    with open(mount.path / "file", "wb", buffering=0) as file:
        assert file.write(b"x" * 1000) == 500
        assert file.write(b"y" * 500) == 500
    with open(mount.path / "file", "rb", buffering=0) as file:
        assert [len(file.read(size) or b"") for size in (1000, 500, 500)] == [500, 250, 250]
        if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 6):  # older ones map no file past the page cache
            assert mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:] == b"x" * 500 + b"y" * 500
    with open(mount.path / "file", "rb") as file:
        assert file.read() == b"x" * 500 + b"y" * 500


def test_a_file_deleted_by_another_is_stale_and_one_deleted_here_is_hidden(mount: Mount, tmp_path: Path) -> None:
    with mounted(tmp_path / "shared") as unused:
        del unused  # a second client changes nothing for the first
    for name in ("theirs", "replaced", "mine"):
        (mount.path / name).write_bytes(bytes(300_000))
    files = {name: os.open(mount.path / name, os.O_RDONLY) for name in ("theirs", "replaced", "mine")}
    os.unlink(tmp_path / "shared/theirs")
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", tmp_path / "shared/replaced")
    os.unlink(mount.path / "mine")
    for name in ("theirs", "replaced"):
        with fails(errno.ESTALE):
            os.pread(files[name], 10, 200_000)
    assert os.pread(files["mine"], 10, 200_000) == bytes(10)
    assert [name[:4] for name in os.listdir(mount.path)] == [".nfs", "repl"]
    assert (mount.path / "replaced").read_bytes() == b"new"
    for descriptor in files.values():
        os.close(descriptor)
    until = time.monotonic() + 60
    while os.listdir(mount.path) != ["replaced"] and time.monotonic() < until:
        time.sleep(0.01)  # a release is not waited for
    assert os.listdir(mount.path) == ["replaced"]


def test_a_full_disk_says_so(mount: Mount) -> None:
    (mount.path / "file").write_bytes(bytes(400_000))
    mount.export.limit(1_000_000)
    found = os.statvfs(mount.path)
    assert found.f_frsize * found.f_blocks == 1_000_000 // 512 * 512
    assert found.f_frsize * found.f_bavail == 600_000 // 512 * 512
    with fails(errno.ENOSPC):
        (mount.path / "large").write_bytes(bytes(700_000))
    assert (mount.path / "large").stat().st_size == 600_000
    assert os.statvfs(mount.path).f_bavail == 0
    (mount.path / "file").unlink()
    (mount.path / "small").write_bytes(bytes(400_000))
    mount.export.limit(None)
    (mount.path / "large").write_bytes(bytes(2_000_000))


def test_random_faults_are_bounded(mount: Mount) -> None:
    mount.faults.plan(Fault("write", chance=0.9, count=40, in_a_row=2, seed=3))
    row = most = 0
    for number in range(200):
        try:
            (mount.path / f"{number:032x}").write_bytes(b"x")
            row = 0
        except OSError:
            row += 1
            most = max(most, row)
    assert most == 2
    assert len(mount.faults.injected()) == 40
    mount.faults.plan(Fault("*", chance=0.5, count=1000, rest=100))
    for _ in range(200):
        try:
            os.stat(mount.path / "none")
        except OSError:
            continue
    assert 0 < len(mount.faults.injected()) <= 10


def test_a_server_that_is_away_is_waited_for_or_given_up(mount: Mount) -> None:
    (mount.path / "file").write_bytes(b"data" * 100_000)
    with open(mount.path / "file", "rb", buffering=0) as file:
        mount.export.kill()
        mount.set(timeout=0.2)
        with fails(errno.EIO):
            os.pread(file.fileno(), 10, 300_000)
        mount.set(timeout=None)
        waiting = subprocess.Popen(["cat", str(mount.path / "file")], stdout=subprocess.PIPE)
        time.sleep(0.3)
        assert waiting.poll() is None
        mount.export.start()
        assert waiting.communicate(timeout=60)[0] == b"data" * 100_000
        assert os.pread(file.fileno(), 10, 300_000) == (b"data" * 4)[:10]


def test_a_process_that_waits_for_the_server_can_be_killed(mount: Mount) -> None:
    (mount.path / "file").write_bytes(b"data")
    mount.export.kill()
    waiting = subprocess.Popen(["cat", str(mount.path / "file")])
    time.sleep(0.3)
    waiting.kill()
    assert waiting.wait(60) == -9
    mount.export.start()
    assert (mount.path / "file").read_bytes() == b"data"


def test_nothing_is_left_when_the_client_was_killed(tmp_path: Path) -> None:
    with mounted(tmp_path / "shared", tmp_path / "mount") as mount:
        mount.kill()
        with fails(errno.ENOTCONN):
            os.listdir(mount.path)
    assert os.listdir(tmp_path / "mount") == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
