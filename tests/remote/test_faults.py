"""Whatever a network does for a while, the batches are the same; what it does for good is one sentence."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import pileshard
from pileshard.errors import DatasetError
from pileshard.format.remote import Retry
from pileshard.format.storage import Storage
from pileshard.readers.remote_shards import RemoteShards
from tests.readers.made import Made
from tests.remote.reading import OPTIONS, ORDER, batches, upload
from tests.servers.faults import FAULTS, Proxy, proxied
from tests.servers.stores import Store


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses here, and none in the clients, whose own repeats would hide faults from what is tested."""
    quick = Retry(attempts=8, pause=0.01, longest_pause=0.05, timeout=1.0)
    monkeypatch.setattr("pileshard.format.storage.Retry", lambda: quick)
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1, raising=False)


def test_batches_do_not_change_under_faults_of_all_kinds(s3: Store, made: Made, on_s3: str, proxy: Proxy) -> None:
    wanted = batches(made.url, count=100)
    proxy.plan(0, share=0.4)
    np.testing.assert_array_equal(batches(on_s3, count=100, storage_options=s3.options(proxy.port)), wanted)
    assert set(proxy.injected) == set(FAULTS), proxy.injected
    assert proxy.injected.total() >= 100, proxy.injected


@pytest.mark.parametrize("kind", ["gcs", "azure"])
def test_batches_do_not_change_under_faults_on_other_stores(
    kind: str, request: pytest.FixtureRequest, made: Made
) -> None:
    store: Store = request.getfixturevalue(kind)
    url = upload(store, made.url)
    with proxied(store.port) as proxy:
        # What their clients repeat themselves, after a second and more, is left out.
        proxy.plan(0, share=0.4, faults=("truncate", "short", "long"))
        found = batches(url, count=30, storage_options=store.options(proxy.port))
    np.testing.assert_array_equal(found, batches(made.url, count=30))
    assert proxy.injected.total() >= 5


@pytest.mark.parametrize("fault", ["503", "refuse", "short", "long", "truncate"])
def test_fault_that_lasts_is_one_sentence(s3: Store, on_s3: str, proxy: Proxy, fault: str) -> None:
    rows = pileshard.numpy_dataset(0, path=on_s3, storage_options=s3.options(proxy.port), **OPTIONS)
    proxy.fault = lambda method, path, ranged: fault if ranged else ""
    with pytest.raises(DatasetError, match=r"s3://.*, byte [\d,]+: cannot be read after 8 attempts; the last error: "):
        next(rows)


def test_faults_are_not_taken_for_damage(s3: Store, made: Made, on_s3: str, proxy: Proxy) -> None:
    options = {"storage_options": s3.options(proxy.port), "on_damage": "skip", **OPTIONS}
    rows = pileshard.numpy_dataset(0, path=on_s3, **options)
    proxy.plan(1, share=0.4)
    for wanted in batches(made.url, count=40):
        np.testing.assert_array_equal(next(rows)[0], wanted[:, :-1])
    assert proxy.injected.total() >= 20
    proxy.fault = lambda method, path, ranged: "503" if ranged else ""
    with pytest.raises(DatasetError, match="cannot be read after 8 attempts"):
        next(pileshard.numpy_dataset(0, path=on_s3, **options))
    assert rows.left_out.rows == 0
    assert not rows.left_out.places


def test_error_surfaces_at_the_row_that_needs_it(s3: Store, made: Made, on_s3: str, proxy: Proxy) -> None:
    options = {**OPTIONS, "slots": 4}
    wanted = batches(made.url, **options)
    broken = made.manifest.shards[1].path.rsplit("/", 1)[1]
    rows = pileshard.numpy_dataset(0, path=on_s3, storage_options=s3.options(proxy.port), **options)
    plan = rows.plan
    shards = plan.rows(np.arange(plan.samples_per_epoch)).shard
    first = int(np.argmax(shards == 1)) // 16
    proxy.fault = lambda method, path, ranged: "500" if path.split("?")[0].endswith(broken) else ""
    taken: list[np.ndarray] = []
    with pytest.raises(DatasetError, match=broken):
        taken.extend(inputs for inputs, _ in rows)
    assert len(taken) <= first
    assert taken or first == 0
    for batch, expected in zip(taken, wanted, strict=False):
        np.testing.assert_array_equal(batch, expected[:, :-1])


def test_missing_shard_is_not_asked_for_again(s3: Store, made: Made, proxy: Proxy) -> None:
    url = upload(s3, made.url)
    Storage(url, s3.options()).remove(made.manifest.shards[0].path)
    with pytest.raises(DatasetError, match="is missing; run `pileshard repair"):
        batches(url, storage_options=s3.options(proxy.port))
    assert proxy.requests["GET", True] < 60


def test_missing_dataset_and_bucket_are_named(s3: Store) -> None:
    for url in (s3.url(), "s3://no-such-bucket-here/data"):
        with pytest.raises(DatasetError, match=r"manifest.json: not found"):
            pileshard.open(url, s3.options())


def test_wrong_credentials_are_one_sentence_at_once(s3: Store, on_s3: str, proxy: Proxy) -> None:
    options = {**s3.options(proxy.port), "secret": "wrong"}
    with pytest.raises(DatasetError, match=r"cannot be read.*check the credentials"):
        pileshard.open(on_s3, options)
    assert proxy.requests.total() <= 3


def test_shard_that_is_really_short_is_told_at_once(s3: Store, made: Made, proxy: Proxy) -> None:
    url = upload(s3, made.url)
    storage, entry = Storage(url, s3.options()), made.manifest.shards[0]
    storage.write_bytes(entry.path, storage.read_bytes(entry.path)[:-100_000])
    with pytest.raises(DatasetError, match=r"ends at byte .* where the manifest has"):
        batches(url, storage_options=s3.options(proxy.port))


def test_no_thread_outlives_a_dropped_reader(s3: Store, on_s3: str) -> None:
    plan = pileshard.open(on_s3, s3.options()).plan(**ORDER)
    ranges = [(0, first, 500) for first in range(0, 20_000, 500)]
    for _ in range(1000):
        plan.reader().expect(ranges)
    for _ in range(20):
        next(pileshard.numpy_dataset(0, path=on_s3, storage_options=s3.options(), **OPTIONS))
    _await_no_threads()


def _await_no_threads() -> None:
    deadline = time.monotonic() + 20
    while (names := [thread.name for thread in threading.enumerate() if thread.name == "pileshard-ahead"]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not names


def test_reader_closes_while_answers_are_late(s3: Store, made: Made, on_s3: str, proxy: Proxy) -> None:
    rows = pileshard.numpy_dataset(0, path=on_s3, storage_options=s3.options(proxy.port), **OPTIONS)
    next(rows)
    proxy.latency = 40.0
    started = time.monotonic()
    rows.close()
    assert time.monotonic() - started < 20.0  # long before an answer
    proxy.latency = 0.0


def test_late_answers_are_waited_for_in_parallel(s3: Store, made: Made, on_s3: str, proxy: Proxy) -> None:
    plan = pileshard.open(on_s3, s3.options(proxy.port)).plan(**ORDER)
    shards = plan.reader()
    ranges = [(0, first, 2000) for first in range(0, 80_000, 2000)]
    out = np.empty(2000, dtype=shards.dtype)
    shards.read(*ranges[0][:2], out)
    proxy.latency = 0.05
    most = []
    for ahead in (False, True):
        proxy.most_waiting = 0
        if ahead:
            shards.expect(ranges)
        for shard, first, count in ranges:
            shards.read(shard, first, out)
            np.testing.assert_array_equal(out, made.streams[shard][first : first + count])
        most.append(proxy.most_waiting)
    shards.close()
    assert most[0] == 1
    assert most[1] > 3


def test_memory_of_what_is_read_ahead_is_bounded(made: Made) -> None:
    storage = Storage("memory://remote-bounded")
    source = Storage(made.url)
    for path in source.files("shards"):
        storage.write_bytes(path, source.read_bytes(path))
    shards = RemoteShards(storage, made.manifest.shards, np.dtype("<u2"), ahead_bytes=20_000, threads=4)
    ranges = [(0, first, 1000) for first in range(0, 300_000, 1000)]
    shards.expect(ranges)
    state = shards._ahead._state  # type: ignore[union-attr]
    out = np.empty(1000, dtype="<u2")
    for shard, first, count in ranges:
        assert state.held <= 20_000
        shards.read(shard, first, out)
        np.testing.assert_array_equal(out, made.streams[shard][first : first + count])
    assert state.held == 0
    shards.close()
