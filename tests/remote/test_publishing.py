"""A file on an object store appears whole or not at all, and is seen as it is now."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid

import pytest

from pileshard.errors import DatasetError, OptionError
from pileshard.format.remote import Retry
from pileshard.format.storage import Storage
from tests.servers.faults import proxied
from tests.servers.stores import Store

_MIB = os.urandom(1 << 20)


@pytest.fixture
def storage(store: Store) -> Storage:
    return Storage(store.url(), store.options())


def _write(storage: Storage, path: str, mebibytes: int, error: BaseException | None = None) -> None:
    with storage.create(path) as file:
        for _ in range(mebibytes):
            file.write(_MIB)
        if error is not None:
            raise error


def test_large_file_appears_at_its_end(store: Store, storage: Storage) -> None:
    other = store.filesystem()
    with storage.create("a/large.bin") as file:
        for _ in range(104):
            file.write(_MIB)
        assert not other.exists(storage.path("a/large.bin"))
    assert other.info(storage.path("a/large.bin"))["size"] == 104 << 20
    assert storage.read_bytes("a/large.bin") == _MIB * 104
    assert storage.read_range("a/large.bin", (60 << 20) - 5, (80 << 20) + 5) == _MIB[-5:] + _MIB * 20 + _MIB[:5]
    with storage.open("a/large.bin") as file:
        file.seek(1 << 20)
        assert file.read(3 << 20) == _MIB * 3


@pytest.mark.parametrize(("mebibytes", "kind"), [(0, RuntimeError), (1, RuntimeError), (60, KeyboardInterrupt)])
def test_broken_off_upload_leaves_what_was_there(
    store: Store, storage: Storage, mebibytes: int, kind: type[BaseException]
) -> None:
    for before in ([], ["a.bin"]):
        with pytest.raises(kind):
            _write(storage, "a.bin", mebibytes, kind())
        assert storage.files() == before
        storage.write_bytes("a.bin", b"before")
    assert storage.read_bytes("a.bin") == b"before"
    if store.kind == "s3":
        assert store.filesystem().list_multipart_uploads(store.bucket) == []


def test_upload_that_the_store_refuses_leaves_nothing(s3: Store) -> None:
    with proxied(s3.port) as proxy:
        storage = Storage(s3.url(), s3.options(proxy.port))
        proxy.fault = lambda method, path, ranged: "500" if method == "POST" and "uploadId" in path else ""
        with pytest.raises(OSError):
            _write(storage, "a.bin", 60)
    assert Storage(storage.url, s3.options()).files() == []
    assert s3.filesystem().list_multipart_uploads(s3.bucket) == []


def test_empty_and_small_files_are_whole(storage: Storage) -> None:
    for size in (0, 1, 100_000):
        storage.write_bytes(f"{size}.bin", _MIB[:size])
        assert storage.size(f"{size}.bin") == size
        assert storage.read_bytes(f"{size}.bin") == _MIB[:size]


def test_what_another_client_does_is_seen(store: Store, storage: Storage) -> None:
    other = store.filesystem()
    storage.write_bytes("d/a.bin", b"one")
    assert (storage.files(), storage.names(), storage.size("d/a.bin")) == (["d/a.bin"], ["d"], 3)
    other.pipe_file(storage.path("d/a.bin"), b"longer")
    other.pipe_file(storage.path("new.bin"), b"x")
    assert (storage.size("d/a.bin"), storage.read_bytes("d/a.bin")) == (6, b"longer")
    assert storage.exists("new.bin")
    assert (storage.files(), storage.names()) == (["d/a.bin", "new.bin"], ["d", "new.bin"])
    other.rm_file(storage.path("new.bin"))
    assert not storage.exists("new.bin")
    assert storage.files() == ["d/a.bin"]
    with pytest.raises(FileNotFoundError):
        storage.size("new.bin")


def test_ranges_end_where_the_file_does(storage: Storage) -> None:
    storage.write_bytes("a.bin", b"0123456789")
    wanted = {(2, 5): b"234", (8, 100): b"89", (5, 5): b"", (10, 12): b"", (50, 60): b""}
    assert {(begin, end): storage.read_range("a.bin", begin, end) for begin, end in wanted} == wanted


def test_missing_files_are_said_to_be_missing(storage: Storage) -> None:
    assert storage.files() == []
    assert storage.names() == []
    assert not storage.exists("none")
    for read in (storage.size, storage.read_bytes, storage.open):
        with pytest.raises(FileNotFoundError):
            read("none")
    with pytest.raises(FileNotFoundError):
        storage.read_range("none", 0, 4)
    storage.remove("none")
    storage.remove_tree("none")


def test_folders_are_removed(storage: Storage) -> None:
    for name in ("a", "d/1", "d/e/2"):
        storage.write_bytes(name, b"x")
    storage.remove_tree("d")
    assert storage.files() == ["a"]
    storage.remove("a")
    assert storage.files() == []


def _read_in_fork(storage: Storage, path: str) -> bytes:
    """What a forked child reads by the same object, through a pipe; b"" if it hangs or fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            signal.alarm(20)
            os.write(writing, storage.read_bytes(path))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return data


def test_storage_that_was_used_works_in_a_forked_child(storage: Storage) -> None:
    storage.write_bytes("a.bin", b"data")
    assert storage.read_bytes("a.bin") == b"data"
    assert _read_in_fork(storage, "a.bin") == b"data"
    assert pickle.loads(pickle.dumps(storage)).read_bytes("a.bin") == b"data"


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://b/x", "s3fs", "s3"),
        ("gs://b/x", "gcsfs", "gcs"),
        ("abfs://b@a/x", "adlfs", "azure"),
        ("http://b/x", "aiohttp", "http"),
    ],
)
def test_missing_package_is_named_with_its_extra(url: str, package: str, extra: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; import pileshard; pileshard.open({url!r})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    last = run.stderr.strip().rsplit("\n", 1)[-1]
    assert f"storage needs the package {package!r}, which is not installed: pip install 'pileshard[{extra}]'" in last


def test_unknown_storage_is_named() -> None:
    with pytest.raises(OptionError, match="nosuch"):
        Storage(f"nosuch://{uuid.uuid4().hex}").exists("x")


def test_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, s3: Store) -> None:
    options = s3.options(port=9)  # the discard port, where nothing listens
    storage = Storage("s3://bucket/x", options, retry=Retry(attempts=2, pause=0.01))
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    with pytest.raises(DatasetError, match=r"s3://bucket/x/a: cannot be read after 2 attempts; the last error"):
        storage.read_bytes("a")
