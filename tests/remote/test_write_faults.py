"""What a network does for a while while files are written and inputs are streamed changes no byte, and is counted."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.leftovers import end_uploads
from pileshard.errors import StorageError
from pileshard.format.retry import Retries, Retry
from pileshard.format.storage import Storage, open_url
from tests.servers.faults import Proxy, proxied
from tests.servers.ranges import RangeHandler
from tests.servers.stores import Store

QUICK = Retry(attempts=8, pause=0.01, longest_pause=0.05, timeout=5.0)
#: What happens to requests that write; a "short" or "long" answer is one of a range read.
WRITE_FAULTS = ("refuse", "reset", "500", "503", "429", "truncate")

_MIB = os.urandom(1 << 20)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own repeats would hide faults from what is tested."""
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1, raising=False)


@pytest.fixture
def storage(s3: Store, proxy: Proxy) -> Storage:
    return Storage(s3.url(), s3.options(proxy.port), retry=QUICK)


def test_small_files_are_written_under_faults_of_all_kinds(s3: Store, storage: Storage, proxy: Proxy) -> None:
    proxy.plan(1, share=0.5, faults=WRITE_FAULTS)
    for number in range(40):
        storage.write_bytes(f"d/{number:02d}.bin", _MIB[number : number + 1000])
    assert storage.files() == [f"d/{number:02d}.bin" for number in range(40)]
    assert set(proxy.injected) == set(WRITE_FAULTS), proxy.injected
    assert storage.retries.total >= 20
    direct = Storage(storage.url, s3.options())
    for number in range(40):
        assert direct.read_bytes(f"d/{number:02d}.bin") == _MIB[number : number + 1000]
    for number in range(40):
        storage.remove(f"d/{number:02d}.bin")
    assert direct.files() == []


@pytest.mark.parametrize("fault", WRITE_FAULTS)
def test_large_file_is_uploaded_anew_after_a_fault_of_any_of_its_requests(
    s3: Store, storage: Storage, proxy: Proxy, fault: str
) -> None:
    """The first, a middle and the last request of the upload fail, each once."""
    failed: set[str] = set()

    def once(method: str, path: str, ranged: str) -> str:
        kind = {"POST": "complete" if "uploadId" in path else "begin", "PUT": "part"}.get(method, "")
        if not kind or kind in failed:
            return ""
        failed.add(kind)
        return fault

    proxy.fault = once

    def write(file: Any) -> None:
        for _ in range(11):
            file.write(_MIB)

    storage.options["default_block_size"] = 5 << 20  # what is larger is an upload of several requests
    storage.publish("large.bin", write)
    assert failed == {"begin", "part", "complete"}
    direct = Storage(storage.url, s3.options())
    assert direct.read_bytes("large.bin") == _MIB * 11
    # One whose first answer was lost is known to nobody, and is found by `pileshard clean` alone.
    assert end_uploads(direct, dry_run=True) <= 1
    end_uploads(direct, dry_run=False)
    assert end_uploads(direct, dry_run=True) == 0


def test_fault_that_stays_is_one_sentence_and_leaves_what_was_there(s3: Store, storage: Storage, proxy: Proxy) -> None:
    storage.write_bytes("a.bin", b"before")
    proxy.fault = lambda method, path, ranged: "503" if method == "PUT" else ""
    with pytest.raises(StorageError, match=r"s3://.*/a\.bin: cannot be written after 8 attempts; the last error: "):
        storage.write_bytes("a.bin", b"after")
    proxy.fault = lambda method, path, ranged: ""
    assert storage.read_bytes("a.bin") == b"before"


def test_bucket_that_is_not_there_is_told_soon(s3: Store) -> None:
    storage = Storage("s3://no-such-bucket-here/x", s3.options(), retry=QUICK)
    with pytest.raises((StorageError, FileNotFoundError), match="bucket"):
        storage.write_bytes("a.bin", b"x")


def test_new_object_is_written_once(store: Store) -> None:
    storage = Storage(store.url(), store.options())
    assert storage.write_new("a.json", b"one")
    assert not storage.write_new("a.json", b"two")
    assert storage.read_bytes("a.json") == b"one"


def test_input_is_streamed_whole_under_faults_of_all_kinds(s3: Store, proxy: Proxy) -> None:
    data = os.urandom(20 << 20)
    writer = Storage(s3.url(), s3.options())
    writer.write_bytes("input.zst", data)
    proxy.plan(2, share=0.5)
    retries = Retries()
    file = open_url(writer.url_of("input.zst"), s3.options(proxy.port), retry=QUICK, retries=retries)
    parts = []
    while part := file.read(1_000_003):
        parts.append(part)
    assert b"".join(parts) == data
    assert retries.total >= 1, proxy.injected


def test_input_that_is_replaced_while_it_is_streamed_is_told(store: Store) -> None:
    storage = Storage(store.url(), store.options())
    storage.write_bytes("input.zst", _MIB * 10)
    file = storage.open_whole("input.zst")
    file.read(1 << 20)
    storage.write_bytes("input.zst", bytes(reversed(_MIB)) * 10)
    with pytest.raises(StorageError, match=r"input\.zst: changed while it was read"):
        file.read()


class _Stopping:
    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_server_without_ranges_is_one_stream_that_is_begun_again(tmp_path: Path) -> None:
    data = os.urandom(20 << 20)
    (tmp_path / "input.zst").write_bytes(data)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, ranges=False, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with contextlib.closing(_Stopping(server)), proxied(server.server_address[1]) as proxy:
        left = [2]

        def cut(method: str, path: str, ranged: str) -> str:
            if method == "GET" and left[0]:
                left[0] -= 1
                return "truncate"
            return ""

        proxy.fault = cut
        retries = Retries()
        file = open_url(f"http://127.0.0.1:{proxy.port}/input.zst", retry=QUICK, retries=retries)
        assert file.read() == data
        assert retries.total >= 1


@pytest.mark.parametrize("fault", ["503", "429"])
def test_a_question_that_fails_over_http_is_asked_again_and_is_no_absence(tmp_path: Path, fault: str) -> None:
    """fsspec says of any such failure that there is no file."""
    pytest.importorskip("aiohttp")
    (tmp_path / "input.zst").write_bytes(b"data")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, ranges=True, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with contextlib.closing(_Stopping(server)), proxied(server.server_address[1]) as proxy:
        left = [0]

        def fail(method: str, path: str, ranged: str) -> str:
            left[0] -= 1
            return fault if left[0] >= 0 else ""

        proxy.fault = fail
        storage = Storage(f"http://127.0.0.1:{proxy.port}", retry=QUICK)
        for ask in (storage.exists, storage.size):
            left[0] = 4  # two questions of a HEAD and a GET
            assert ask("input.zst")
            assert left[0] < 0
        assert not storage.exists("another.zst")
        with pytest.raises(FileNotFoundError):
            storage.size("another.zst")
        left[0] = 10**6
        with pytest.raises(StorageError, match="after 8 attempts"):
            storage.exists("input.zst")


def test_a_refusal_over_http_is_no_absence_of_what_is_read(tmp_path: Path) -> None:
    """A signed URL that ran out must not leave an input out; but who lists nothing refuses what is not there."""
    pytest.importorskip("aiohttp")
    (tmp_path / "input.zst").write_bytes(b"data")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, ranges=True, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with contextlib.closing(_Stopping(server)), proxied(server.server_address[1]) as proxy:
        proxy.fault = lambda *_: "403"
        storage = Storage(f"http://127.0.0.1:{proxy.port}", retry=QUICK)
        for ask in (storage.size, storage.read_bytes, storage.open_whole):
            with pytest.raises(StorageError, match=r"403.*check the credentials"):
                ask("input.zst")
        assert not storage.exists("input.zst")
