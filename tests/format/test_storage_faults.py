"""Faults of a mount: what passes is tried again and counted, what lasts is told, and no bytes are lost or mixed."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pileshard.errors import StorageError
from pileshard.format.retry import Retries, Retry
from pileshard.format.storage import Storage, open_url

TRANSIENT = ["EIO", "ESTALE", "EAGAIN", "EINTR", "ETIMEDOUT", "ECONNRESET", "EHOSTDOWN", "ENOTCONN", "EBUSY"]
LASTING = ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "ENAMETOOLONG", "EFBIG", "EMFILE"]
DATA = bytes(range(256)) * 5000


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "root"), retry=Retry.within(0.05))


class Faults:
    """Lets calls of the system fail: `times` of those that `wanted` says yes to, after `skip` of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.injected = 0

    def fail(
        self,
        name: str,
        code: str,
        times: int = 1,
        skip: int = 0,
        wanted: Callable[..., bool] = lambda *_: True,
        done: bool = False,
        module: Any = os,
    ) -> None:
        real = getattr(module, name)
        seen = 0

        def call(*args: Any, **options: Any) -> Any:
            nonlocal seen
            if wanted(*args):
                seen += 1
                if skip < seen <= skip + times:
                    self.injected += 1
                    if done:
                        real(*args, **options)
                    number = getattr(errno, code)
                    raise OSError(number, os.strerror(number))
            return real(*args, **options)

        self._patch.setattr(module, name, call)

    def fail_files(self, method: str, code: str, times: int = 1) -> None:
        """Lets a method of files that are open for writing fail."""
        real = builtins.open
        faults = self

        class Failing(io.BufferedWriter):
            def _maybe(self) -> None:
                if faults.injected < times:
                    faults.injected += 1
                    raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

            def write(self, data: Any) -> int:
                if method == "write" and faults.injected < times:
                    super().write(bytes(data)[: len(data) // 2])
                    self._maybe()
                return super().write(data)

            def close(self) -> None:
                was_open = not self.closed
                super().close()
                if method == "close" and was_open:
                    self._maybe()

        def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            return Failing(io.FileIO(path, "w")) if mode == "wb" else real(path, mode, *rest, **options)

        self._patch.setattr("pileshard.format.local_files.open", opened, raising=False)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def _is_file(path: Any, *_: Any) -> bool:
    return str(path).endswith((".bin", "tmp")) or "/tmp/" in str(path)


WRITING = ["open", "fsync", "replace", "makedirs", "stat"]


@pytest.mark.parametrize("code", TRANSIENT)
@pytest.mark.parametrize("call", WRITING)
def test_write_gets_through_a_fault_that_passes(storage: Storage, faults: Faults, call: str, code: str) -> None:
    faults.fail(call, code, times=2)
    storage.write_bytes("a/b/c.bin", DATA)
    assert faults.injected == 2
    assert storage.retries.by_fault() == {code: 2}
    assert storage.read_bytes("a/b/c.bin") == DATA
    assert storage.files() == ["a/b/c.bin"]


@pytest.mark.parametrize("code", ["EIO", "ESTALE"])
@pytest.mark.parametrize("method", ["write", "close"])
def test_file_that_lost_bytes_is_written_anew(storage: Storage, faults: Faults, method: str, code: str) -> None:
    faults.fail_files(method, code, times=2)
    seen: list[int] = []

    def write(file: Any) -> str:
        seen.append(file.tell())
        for at in range(0, len(DATA), 100_000):
            file.write(DATA[at : at + 100_000])
        return "written"

    assert storage.publish("a/c.bin", write) == "written"
    assert seen == [0, 0, 0]  # each attempt is a new file
    assert storage.retries.by_fault() == {code: 2}
    assert storage.read_bytes("a/c.bin") == DATA
    assert storage.files() == ["a/c.bin"]


@pytest.mark.parametrize("code", LASTING)
@pytest.mark.parametrize("method", ["write", "close", "fsync", "replace"])
def test_fault_that_lasts_is_told_at_once_with_the_file(
    storage: Storage, faults: Faults, method: str, code: str
) -> None:
    storage.write_bytes("a/c.bin", b"before")
    if method in ("write", "close"):
        faults.fail_files(method, code)
    else:
        faults.fail(method, code)
    with pytest.raises(OSError) as caught:
        storage.write_bytes("a/c.bin", DATA)
    assert caught.value.errno == getattr(errno, code)
    assert caught.value.filename == storage.path("a/c.bin")
    assert faults.injected == 1
    assert storage.retries.total == 0
    assert storage.read_bytes("a/c.bin") == b"before"
    assert storage.files() == ["a/c.bin"]


@pytest.mark.parametrize("method", ["write", "close", "fsync", "replace"])
def test_transient_fault_that_stays_is_told_with_the_number_of_attempts(
    storage: Storage, faults: Faults, method: str
) -> None:
    storage.write_bytes("other.bin", b"")
    if method in ("write", "close"):
        faults.fail_files(method, "EIO", times=1000)
    else:
        faults.fail(method, "EIO", times=1000)
    with pytest.raises(OSError, match=r"Input/output error \(tried 8 times\).*c\.bin"):
        storage.write_bytes("c.bin", DATA)
    assert faults.injected == 8  # and no attempt of attempts
    assert not storage.exists("c.bin")


@pytest.mark.parametrize("code", ["ENOENT", "EEXIST", "EIO", "ESTALE", "ETIMEDOUT"])
def test_rename_that_was_done_and_is_said_not_to_be_is_done(storage: Storage, faults: Faults, code: str) -> None:
    storage.write_bytes("c.bin", b"before")
    faults.fail("replace", code, done=True)
    storage.write_bytes("c.bin", DATA)
    assert faults.injected == 1
    assert storage.read_bytes("c.bin") == DATA
    assert storage.files() == ["c.bin"]


def test_half_written_file_that_someone_removes_is_no_success(storage: Storage, faults: Faults) -> None:
    storage.write_bytes("c.bin", DATA[::-1])

    def write(file: Any) -> None:
        file.write(DATA)
        storage.remove_tree(storage.temp_dir)

    with pytest.raises((OSError, StorageError), match=r"c\.bin|tmp"):
        storage.publish("c.bin", write)
    assert storage.read_bytes("c.bin") == DATA[::-1]


def test_file_that_is_shorter_than_what_was_written_is_written_anew(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = 0
    close = io.BufferedWriter.close

    class Losing(io.BufferedWriter):
        def close(self) -> None:
            nonlocal lost
            if not self.closed and lost < 2:
                lost += 1
                self.flush()
                self.truncate(100)
            close(self)

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        return Losing(io.FileIO(path, "w")) if mode == "wb" else builtins.open(path, mode, *rest, **options)

    monkeypatch.setattr("pileshard.format.local_files.open", opened, raising=False)
    storage.write_bytes("c.bin", DATA)
    assert (lost, storage.retries.total) == (2, 2)
    assert storage.read_bytes("c.bin") == DATA


READING: dict[str, Callable[[Storage], Any]] = {
    "read_bytes": lambda storage: storage.read_bytes("c.bin"),
    "read_range": lambda storage: storage.read_range("c.bin", 0, len(DATA)),
    "open": lambda storage: storage.open("c.bin").read(),
    "size": lambda storage: DATA if storage.size("c.bin") == len(DATA) else b"",
    "exists": lambda storage: DATA if storage.exists("c.bin") else b"",
    "files": lambda storage: DATA if storage.files() == ["c.bin"] else b"",
    "names": lambda storage: DATA if "c.bin" in storage.names() else b"",
}


@pytest.mark.parametrize("code", TRANSIENT)
@pytest.mark.parametrize(
    ("read", "call"),
    [
        *[("read_bytes", "pread"), ("read_range", "pread"), ("open", "open"), ("open", "preadv"), ("open", "fstat")],
        *[("size", "stat"), ("exists", "stat"), ("files", "scandir"), ("names", "listdir")],
    ],
)
def test_reads_and_listings_get_through_a_fault_that_passes(
    storage: Storage, faults: Faults, read: str, call: str, code: str
) -> None:
    storage.write_bytes("c.bin", DATA)
    faults.fail(call, code, times=2)
    assert READING[read](storage) == DATA
    assert faults.injected == 2
    assert storage.retries.by_fault() == {code: 2}


@pytest.mark.parametrize(("read", "call"), [("files", "scandir"), ("exists", "stat"), ("size", "stat")])
def test_what_cannot_be_told_is_an_error_and_no_absence(storage: Storage, faults: Faults, read: str, call: str) -> None:
    storage.write_bytes("c.bin", DATA)
    faults.fail(call, "EIO", times=1000)
    with pytest.raises(OSError, match="Input/output error"):
        READING[read](storage)


def test_stream_goes_on_where_it_was_in_the_file_opened_anew(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input.bin"
    path.write_bytes(DATA * 4)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:9999]], at))  # and short reads
    faults.fail("preadv", "ESTALE", times=3, skip=40)
    retries = Retries()
    file = open_url(str(path), retry=Retry.within(0.05), retries=retries)
    parts = []
    while part := file.read(30_000):
        parts.append(part)
    assert b"".join(parts) == DATA * 4
    assert retries.by_fault() == {"ESTALE": 3}
    file.check_unchanged()


def test_stream_never_mixes_two_versions(tmp_path: Path, faults: Faults) -> None:
    path = tmp_path / "input.bin"
    path.write_bytes(DATA * 20)
    file = open_url(str(path), retry=Retry.within(0.05))
    file.read(3_000_000)
    other = tmp_path / "other"
    other.write_bytes(DATA[::-1] * 20)
    os.utime(other, ns=(1, 1))
    os.replace(other, path)
    faults.fail("preadv", "ESTALE")
    with pytest.raises(StorageError, match=r"input\.bin: changed while it was read"):
        file.read()
    with pytest.raises(StorageError, match="changed while it was read"):
        open_url(str(path)).check_unchanged() or file.check_unchanged()


def test_stream_that_ends_early_is_read_again_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input.bin"
    path.write_bytes(DATA)
    preadv = os.preadv
    left = [0]

    def short(fd: int, buffers: list[Any], at: int) -> int:
        if at > 100_000 and left[0]:
            left[0] -= 1
            return 0
        return preadv(fd, [buffers[0][:90_000]], at)

    monkeypatch.setattr(os, "preadv", short)
    left[0] = 3
    assert open_url(str(path), retry=Retry.within(0.05)).read() == DATA
    left[0] = 1000
    with pytest.raises(StorageError, match=r"input\.bin: it ends at byte [\d,]+ of 1,280,000 \(tried 8 times\)"):
        open_url(str(path), retry=Retry.within(0.05)).read()


@pytest.mark.parametrize("code", ["ENOTEMPTY", "EBUSY", "EIO"])
def test_folders_are_removed_though_others_use_them(storage: Storage, faults: Faults, code: str) -> None:
    for name in ("d/1", "d/e/2"):
        storage.write_bytes(name, b"x")
    faults.fail("rmdir", code, times=2)
    storage.remove_tree("d")
    assert faults.injected == 2
    assert storage.files() == []
    assert not storage.exists("d")


@pytest.mark.parametrize("code", ["EIO", "ESTALE"])
def test_removal_that_was_done_and_is_said_not_to_be_is_done(storage: Storage, faults: Faults, code: str) -> None:
    storage.write_bytes("c.bin", b"x")
    faults.fail("unlink", code, done=True)
    storage.remove("c.bin")
    assert not storage.exists("c.bin")


def test_new_file_is_written_once(storage: Storage, faults: Faults) -> None:
    assert storage.write_new("c.bin", b"one")
    assert not storage.write_new("c.bin", b"two")
    assert storage.read_bytes("c.bin") == b"one"
    assert storage.files() == ["c.bin"]


@pytest.mark.parametrize("code", ["EPERM", "EOPNOTSUPP"])
def test_new_file_is_written_once_where_there_are_no_links(storage: Storage, faults: Faults, code: str) -> None:
    faults.fail("link", code, times=1000)
    assert storage.write_new("c.bin", b"one")
    assert not storage.write_new("c.bin", b"two")
    assert storage.read_bytes("c.bin") == b"one"


def test_new_file_whose_link_is_said_to_exist_is_new(storage: Storage, faults: Faults) -> None:
    faults.fail("link", "EEXIST", done=True)
    assert storage.write_new("c.bin", b"one")


def test_directory_that_cannot_be_synced_is_no_fault_and_one_that_fails_is(storage: Storage, faults: Faults) -> None:
    storage.write_bytes("a.bin", b"x")
    folders = [os.stat(storage.root).st_ino]

    def is_root(descriptor: int) -> bool:
        return os.fstat(descriptor).st_ino in folders

    faults.fail("fsync", "EINVAL", times=1, wanted=is_root)
    storage.write_bytes("b.bin", b"x")
    assert faults.injected == 1
    faults.fail("fsync", "ENOSPC", times=1, wanted=is_root)
    with pytest.raises(OSError, match="No space left"):
        storage.write_bytes("c.bin", b"x")
