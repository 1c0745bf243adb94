"""Storage: a file appears whole or not at all, on a directory and on an object store."""

from __future__ import annotations

import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from pileshard.format.storage import TEMP_DIR, Storage, read_at


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "directory":
        yield Storage(str(tmp_path / "root"))
        return
    url = f"memory://storage-{uuid.uuid4().hex}"
    yield Storage(url)
    Storage(url).remove_tree("")


def _write_half(storage: Storage, path: str, error: type[BaseException]) -> None:
    with storage.create(path) as file:
        file.write(b"half")
        raise error


def test_created_file_appears_when_the_block_ends(storage: Storage) -> None:
    with storage.create("a/b/c.bin") as file:
        file.write(b"one")
        assert not storage.exists("a/b/c.bin")
        file.write(b" two")
    assert storage.read_bytes("a/b/c.bin") == b"one two"
    assert storage.size("a/b/c.bin") == 7
    assert storage.files() == ["a/b/c.bin"]


def test_block_that_raises_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(RuntimeError):
        _write_half(storage, "a/c.bin", RuntimeError)
    assert not storage.exists("a/c.bin")
    assert storage.files() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_block_that_is_interrupted_leaves_what_was_there(storage: Storage, error: type[BaseException]) -> None:
    storage.write_bytes("a.bin", b"before")
    with pytest.raises(error):
        _write_half(storage, "a.bin", error)
    assert storage.read_bytes("a.bin") == b"before"
    assert storage.files() == ["a.bin"]


def test_reader_sees_one_whole_file_or_the_other(storage: Storage) -> None:
    wanted = [bytes([number]) * 200_000 for number in range(2)]
    storage.write_bytes("a.bin", wanted[0])
    done = threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            seen.append(storage.read_bytes("a.bin"))

    thread = threading.Thread(target=read)
    thread.start()
    for turn in range(60):
        with storage.create("a.bin") as file:
            for at in range(0, 200_000, 20_000):
                file.write(wanted[turn % 2][at : at + 20_000])
    done.set()
    thread.join()
    assert seen
    assert set(seen) <= set(wanted)


def test_writers_of_one_file_do_not_meet(storage: Storage) -> None:
    with storage.create("a.bin") as one, storage.create("a.bin") as other:
        one.write(b"one")
        other.write(b"other")
    assert storage.read_bytes("a.bin") in (b"one", b"other")
    assert storage.files() == ["a.bin"]


def test_range_is_cut_at_the_end_of_the_file(storage: Storage) -> None:
    storage.write_bytes("a.bin", b"0123456789")
    assert storage.read_range("a.bin", 2, 5) == b"234"
    assert storage.read_range("a.bin", 8, 100) == b"89"
    assert storage.read_range("a.bin", 5, 5) == b""
    assert storage.read_range("a.bin", 7, 3) == b""
    assert storage.read_range("a.bin", 50, 60) == b""


def test_open_reads_from_the_first_byte(storage: Storage) -> None:
    storage.write_bytes("a.bin", b"0123456789")
    with storage.open("a.bin") as file:
        assert file.read(3) == b"012"
        assert file.read() == b"3456789"


def test_missing_files_are_said_to_be_missing(storage: Storage) -> None:
    assert not storage.exists("none")
    assert storage.files("none") == []
    for read in (storage.size, storage.read_bytes, storage.open):
        with pytest.raises(FileNotFoundError):
            read("none")
    with pytest.raises(FileNotFoundError):
        storage.read_range("none", 0, 4)
    storage.remove("none")
    storage.remove_tree("none")


def test_files_are_listed_below_a_folder_in_order(storage: Storage) -> None:
    for name in ("b/2", "b/1", "b/c/3", "d"):
        storage.write_bytes(name, b"x")
    assert storage.files() == ["b/1", "b/2", "b/c/3", "d"]
    assert storage.files("b") == ["b/1", "b/2", "b/c/3"]
    assert [name for name in storage.names() if name != "_build"] == ["b", "d"]
    storage.remove("b/1")
    storage.remove_tree("b/c")
    assert storage.files() == ["b/2", "d"]


def test_names_of_a_root_that_is_not_there(storage: Storage) -> None:
    assert storage.names() == []


def test_storage_pickles_by_its_url_and_options(storage: Storage) -> None:
    storage.write_bytes("a.bin", b"data")
    again = pickle.loads(pickle.dumps(storage))
    assert again.read_bytes("a.bin") == b"data"
    other = pickle.loads(pickle.dumps(Storage("memory://x", {"skip_instance_cache": True})))
    assert (other.url, other.options) == ("memory://x", {"skip_instance_cache": True})


def test_options_do_not_show() -> None:
    assert "secret" not in repr(Storage("memory://x", {"key": "secret"}))


def test_temporary_files_lie_in_the_build_s_folder(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with storage.create("shards/a.bin") as file:
        file.write(b"x")
        assert [path for path in storage.files() if not path.startswith(TEMP_DIR)] == []
    assert storage.files() == ["shards/a.bin"]


def test_remote_file_system_that_renames_publishes_by_a_rename(tmp_path: Path) -> None:
    storage = Storage("remote://root")
    remote = DirFileSystem(str(tmp_path), LocalFileSystem())
    storage._opened = (os.getpid(), remote, "root")
    assert not storage.is_local
    with storage.create("a/b.bin") as file:
        file.write(b"one")
        assert not storage.exists("a/b.bin")
    assert storage.read_bytes("a/b.bin") == b"one"
    with pytest.raises(RuntimeError):
        _write_half(storage, "a/b.bin", RuntimeError)
    assert storage.read_bytes("a/b.bin") == b"one"
    assert storage.files() == ["a/b.bin"]


def test_reading_at_an_offset_goes_on_after_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(100)))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, start: pread(fd, min(length, 7), start))
    with open(path, "rb") as file:
        assert read_at(file.fileno(), 10, 50) == bytes(range(10, 60))
        assert read_at(file.fileno(), 90, 50) == bytes(range(90, 100))


def test_root_with_a_slash_at_its_end_is_the_same(storage: Storage) -> None:
    storage.write_bytes("a.bin", b"x")
    assert Storage(storage.url + "/").files() == ["a.bin"]
