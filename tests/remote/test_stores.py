"""Builds onto each store, from inputs on the store, are those on a disk: files, audit and batches."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import pileshard
from pileshard.errors import DatasetError, OptionError
from pileshard.format.storage import Storage
from tests.built import DATA, DEMO_INPUTS, TOKENIZER, run_build
from tests.readers.made import Made, make_dataset
from tests.remote.reading import OPTIONS, ORDER, batches, upload
from tests.servers.ranges import RangeHandler
from tests.servers.stores import Store


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build in a directory, from local inputs."""
    output = tmp_path_factory.mktemp("local") / "out"
    run_build(output)
    return output


def test_build_on_a_store_is_the_one_on_a_disk(store: Store, local: Path) -> None:
    options = store.options()
    inputs = Storage(store.url(), options)
    for path in [*DEMO_INPUTS, TOKENIZER]:
        inputs.write_bytes(Path(path).name, Path(path).read_bytes())
    url = store.url()
    run_build(url, [inputs.url + "/*.zst"], tokenizer=f"{inputs.url}/tokenizer.json", storage_options=options)
    storage = Storage(url, options)
    wanted = Storage(str(local))
    assert storage.files("shards") == wanted.files("shards")
    assert not storage.files("_build/tmp")
    for path in wanted.files("shards"):
        assert storage.read_bytes(path) == wanted.read_bytes(path)
    report = pileshard.verify(url, level="full", storage_options=options)
    assert report.sound, report
    order = {"seq_len": 32, "batch_size": 8}
    np.testing.assert_array_equal(batches(url, storage_options=options, **order), batches(str(local), **order))
    # The same command does nothing.
    before = {path: storage.fs.info(storage.path(path)).get("LastModified") for path in storage.files()}
    run_build(url, [inputs.url + "/*.zst"], tokenizer=f"{inputs.url}/tokenizer.json", storage_options=options)
    assert {path: storage.fs.info(storage.path(path)).get("LastModified") for path in storage.files()} == before


@pytest.mark.slow
def test_build_by_several_processes_on_a_store(s3: Store, local: Path) -> None:
    url = s3.url()
    run_build(url, workers=2, storage_options=s3.options())
    storage, wanted = Storage(url, s3.options()), Storage(str(local))
    for path in wanted.files("shards"):
        assert storage.read_bytes(path) == wanted.read_bytes(path)


@pytest.mark.parametrize("options", [{}, {"world_size": 3, "rank": 1}, {"slots": 1}, {"start": 333}])
def test_batches_from_a_store_are_those_from_a_disk(
    s3: Store, made: Made, on_s3: str, options: dict[str, object]
) -> None:
    found = batches(on_s3, 60, storage_options=s3.options(), **options)
    np.testing.assert_array_equal(found, batches(made.url, 60, **options))


@pytest.mark.parametrize("packing", ["best_fit", "document"])
def test_packed_batches_from_a_store_are_those_from_a_disk(s3: Store, made: Made, on_s3: str, packing: str) -> None:
    options = {**OPTIONS, "packing": packing}
    here = pileshard.numpy_dataset(0, path=made.url, **options)
    there = pileshard.numpy_dataset(0, path=on_s3, storage_options=s3.options(), **options)
    for _, one, other in zip(range(50), here, there, strict=False):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_rows_on_a_store_are_traced(s3: Store, made: Made, on_s3: str) -> None:
    plans = [pileshard.open(*where).plan(**ORDER) for where in ((made.url,), (on_s3, s3.options()))]
    for position in (0, 17, 1234):
        assert plans[0].locate(position) == plans[1].locate(position)
        np.testing.assert_array_equal(plans[0].row(position), plans[1].row(position))


def test_tf_reads_a_store(s3: Store, made: Made, on_s3: str) -> None:
    pytest.importorskip("tensorflow")
    ds = pileshard.dataset(0, path=on_s3, storage_options=s3.options(), **OPTIONS)
    for (inputs, labels), expected in zip(ds, batches(made.url, 40), strict=False):
        np.testing.assert_array_equal(inputs.numpy(), expected[:, :-1])
        np.testing.assert_array_equal(labels.numpy(), expected[:, 1:])


@contextlib.contextmanager
def _served(folder: str, ranges: bool) -> Iterator[str]:
    handler = functools.partial(RangeHandler, directory=folder, ranges=ranges)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_http_and_memory_are_read(made: Made) -> None:
    pytest.importorskip("aiohttp")
    wanted = batches(made.url, 100)
    with _served(made.url, ranges=True) as url:
        np.testing.assert_array_equal(batches(url, 100), wanted)
    memory, source = Storage("memory://remote-stores"), Storage(made.url)
    for path in source.files():
        memory.write_bytes(path, source.read_bytes(path))
    np.testing.assert_array_equal(batches(memory.url, 100), wanted)


def test_http_server_without_ranges(tmp_path: Path) -> None:
    small = make_dataset(str(tmp_path / "small"), {("a", "train"): [40_000]})
    with _served(small.url, ranges=False) as url:
        np.testing.assert_array_equal(batches(url, 20), batches(small.url, 20))


def test_golden_dataset_is_sound_on_every_store(store: Store) -> None:
    url = upload(store, str(DATA / "golden" / "dataset"))
    assert pileshard.verify(url, level="full", storage_options=store.options()).sound


def test_forked_child_reads_on_with_its_parent_s_reader(s3: Store, made: Made, on_s3: str) -> None:
    options = {**OPTIONS, "path": on_s3, "storage_options": s3.options()}
    rows = pileshard.numpy_dataset(0, **options)
    wanted = batches(made.url, 200)
    np.testing.assert_array_equal(next(rows)[0], wanted[0, :, :-1])
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        code = 1
        try:
            same = all(np.array_equal(next(rows)[0], wanted[n, :, :-1]) for n in range(1, 200))
            again = np.array_equal(next(pileshard.numpy_dataset(0, **options))[0], wanted[0, :, :-1])
            code = 0 if same and again else 2
        finally:
            os._exit(code)
    # The parent goes on meanwhile.
    assert all(np.array_equal(next(rows)[0], wanted[n, :, :-1]) for n in range(1, 200))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_dataset_that_is_not_there(store: Store) -> None:
    with pytest.raises(DatasetError, match="not found"):
        pileshard.open(store.url(), store.options())
    with pytest.raises(OptionError, match="nosuch"):
        pileshard.open("nosuch://bucket/x")
