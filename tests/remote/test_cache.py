"""The local cache: right whatever happens to its files, within its limit, shared without locks."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pileshard
from pileshard.errors import OptionError
from pileshard.readers import cache as cache_module
from pileshard.readers.cache import BLOCK_BYTES, BlockCache
from tests.readers.made import Made
from tests.remote.reading import batches
from tests.servers.faults import Proxy
from tests.servers.stores import Store


class Source:
    """A remote file, and how many bytes of it were fetched."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.data = random.Random(seed).randbytes(size)
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.fetched = 0

    def fetch(self, begin: int, end: int) -> bytes:
        assert 0 <= begin < end <= len(self.data)
        self.fetched += end - begin
        return self.data[begin:end]

    def read(self, cache: BlockCache, begin: int, end: int) -> bytes:
        return cache.read(self.sha256, len(self.data), begin, end, self.fetch)


def blocks(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def test_second_read_fetches_nothing(tmp_path: Path) -> None:
    source = Source(5 * BLOCK_BYTES + 777)
    cache = BlockCache(tmp_path)
    rng = random.Random(1)
    ranges = [sorted(rng.sample(range(len(source.data) + 1), 2)) for _ in range(200)]
    ranges += [[0, len(source.data)], [BLOCK_BYTES, 2 * BLOCK_BYTES], [7, 7]]
    for turn in range(2):
        for begin, end in ranges:
            assert source.read(cache, begin, end) == source.data[begin:end]
        assert source.fetched == len(source.data), turn
    assert Source(len(source.data)).read(BlockCache(tmp_path), 10, 900_000) == source.data[10:900_000]


def test_contents_do_not_mix(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path)
    sources = [Source(3 * BLOCK_BYTES, seed) for seed in range(3)]
    for _ in range(2):
        for source in sources:
            assert source.read(cache, 5, 600_000) == source.data[5:600_000]


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty", "swap", "folder"])
def test_damaged_block_is_fetched_again(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    source = Source(3 * BLOCK_BYTES)
    cache = BlockCache(tmp_path)
    source.read(cache, 0, len(source.data))
    files = blocks(tmp_path)
    rng = random.Random(2)
    for number, path in enumerate(files):
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif damage == "cut":
            del data[rng.randrange(len(data)) :]
        elif damage == "grow":
            data += b"x"
        elif damage == "empty":
            data.clear()
        elif damage == "swap":
            data[:] = files[(number + 1) % len(files)].read_bytes()
        path.write_bytes(data)
        if damage == "folder":
            path.unlink()
            path.mkdir()
            (path / "x").touch()
    source.fetched = 0
    for _ in range(2):
        assert source.read(cache, 0, len(source.data)) == source.data
    if damage not in ("folder", "swap"):
        assert source.fetched == len(source.data)
        assert "damaged block" in caplog.text


def test_every_flipped_byte_of_the_header_is_noticed(tmp_path: Path) -> None:
    source = Source(1000)
    cache = BlockCache(tmp_path)
    source.read(cache, 0, 1000)
    (path,) = blocks(tmp_path)
    good = path.read_bytes()
    for at in range(64):
        path.write_bytes(good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :])
        assert source.read(cache, 0, 1000) == source.data
        assert path.read_bytes() == good


@pytest.mark.parametrize("limit", [1, 300_000, 1 << 20, 40 << 20])
def test_total_stays_within_the_limit(tmp_path: Path, limit: int) -> None:
    source = Source(60 << 20)
    cache = BlockCache(tmp_path, limit)
    rng = random.Random(3)
    for _ in range(300):
        begin = rng.randrange(len(source.data) - 500_000)
        assert source.read(cache, begin, begin + 500_000) == source.data[begin : begin + 500_000]
        assert on_disk(tmp_path) <= limit
    if limit >= 1 << 20:
        assert on_disk(tmp_path) >= limit // 2


def test_least_recently_read_blocks_go_first(tmp_path: Path) -> None:
    source = Source(20 * BLOCK_BYTES)
    cache = BlockCache(tmp_path, 8 * (BLOCK_BYTES + 4096))
    for number in range(20):
        source.read(cache, 0, 10)  # block 0 is read all the time
        source.read(cache, number * BLOCK_BYTES, number * BLOCK_BYTES + 10)
        time.sleep(0.002)
    source.fetched = 0
    source.read(cache, 0, 10)
    source.read(cache, 19 * BLOCK_BYTES, 20 * BLOCK_BYTES)
    assert source.fetched == 0


def test_another_limit_replaces_what_was_there(tmp_path: Path) -> None:
    source = Source(4 << 20)
    (tmp_path / "mine.txt").write_text("not of the cache")
    source.read(BlockCache(tmp_path, 200 << 20), 0, len(source.data))
    source.read(BlockCache(tmp_path, 1 << 20), 0, len(source.data))
    assert on_disk(tmp_path) <= (1 << 20) + 20
    assert (tmp_path / "mine.txt").exists()


def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    source = Source(2 * BLOCK_BYTES)
    cache = BlockCache(tmp_path, 1 << 20)
    source.read(cache, 0, 10)
    folder = blocks(tmp_path)[0].parent
    for name, age in ((".1-old", 3600), (".2-new", 0)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age,) * 2)
    source.read(cache, BLOCK_BYTES, BLOCK_BYTES + 10)
    assert sorted(path.name for path in folder.glob(".*")) == [".2-new"]


def test_cache_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    source = Source(4 * BLOCK_BYTES)
    cache = BlockCache(tmp_path / "cache")
    for turn in range(4):
        assert source.read(cache, turn * BLOCK_BYTES, len(source.data)) == source.data[turn * BLOCK_BYTES :]
        shutil.rmtree(tmp_path / "cache")
    source.read(cache, 0, 10)
    assert blocks(tmp_path)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO])
def test_reading_goes_on_where_the_disk_refuses(
    tmp_path: Path, fault: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(4 * BLOCK_BYTES)
    cache = BlockCache(tmp_path)
    source.read(cache, 0, 10)

    def refuse(*args: Any) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(cache_module.os, "rename", refuse)
    monkeypatch.setattr(cache_module, "_REST", 0.0)
    for _ in range(3):
        assert source.read(cache, 0, len(source.data)) == source.data
    monkeypatch.undo()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "reading goes on without the cache" in caplog.text
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    source.fetched = 0
    assert source.read(cache, 0, 10) == source.data[:10]
    assert source.fetched == 0


def test_cache_dir_that_is_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("a file")
    source = Source(2 * BLOCK_BYTES)
    cache = BlockCache(tmp_path / "cache")
    for _ in range(2):
        assert source.read(cache, 0, len(source.data)) == source.data
    assert "reading goes on without the cache" in caplog.text


def test_full_disk(tmp_path: Path) -> None:
    """A file system of 1 MiB, where this process may mount one."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        # The same answers are given by test_reading_goes_on_where_the_disk_refuses.
        return
    try:
        source = Source(8 * BLOCK_BYTES)
        cache = BlockCache(tmp_path)
        for _ in range(3):
            assert source.read(cache, 0, len(source.data)) == source.data
        assert 0 < len(blocks(tmp_path)) < 8
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_wrong_limit_is_an_option_error(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cache_bytes is 0; it must be a whole number of at least 1"):
        BlockCache(tmp_path, 0)


_READER = """
import hashlib, random, sys
from pileshard.readers.cache import BlockCache
folder, limit, seed, turns = sys.argv[1], *map(int, sys.argv[2:])
data = random.Random(0).randbytes(12 << 20)
sha256 = hashlib.sha256(data).hexdigest()
cache, rng = BlockCache(folder, limit), random.Random(seed)
print("ready", flush=True)
for _ in range(turns):
    begin = rng.randrange(len(data) - 400_000)
    found = cache.read(sha256, len(data), begin, begin + 400_000, lambda a, b: data[a:b])
    assert found == data[begin : begin + 400_000]
"""


def _reader(folder: Path, limit: int, seed: int, turns: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _READER, str(folder), str(limit), str(seed), str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_processes_share_a_cache_and_its_limit(tmp_path: Path) -> None:
    limit, processes = 6 << 20, 4
    running = [_reader(tmp_path, limit, seed, 400) for seed in range(processes)]
    most = 0
    while any(process.poll() is None for process in running):
        most = max(most, on_disk(tmp_path))
        time.sleep(0.005)
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    assert limit // 2 < most <= limit + processes * (BLOCK_BYTES + 4096)


def test_killed_processes_leave_a_usable_cache(tmp_path: Path) -> None:
    rng = random.Random(4)
    for turn in range(6):
        process = _reader(tmp_path, 4 << 20, turn, 1_000_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = _reader(tmp_path, 4 << 20, 99, 300)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    assert on_disk(tmp_path) <= (4 << 20) + 6 * BLOCK_BYTES


def test_readers_with_a_cache_ask_the_store_once(
    s3: Store, made: Made, on_s3: str, proxy: Proxy, tmp_path: Path
) -> None:
    options = {"storage_options": s3.options(proxy.port), "cache_dir": tmp_path}
    wanted = batches(made.url, 100)
    asked = []
    for _ in range(2):
        before = proxy.requests["GET", True]
        np.testing.assert_array_equal(batches(on_s3, 100, **options), wanted)
        asked.append(proxy.requests["GET", True] - before)
    assert asked[0] > 10
    assert asked[1] == 0
    np.testing.assert_array_equal(batches(on_s3, 100, cache_bytes=1 << 20, **options), wanted)


def test_damage_in_the_cache_changes_no_batch(s3: Store, made: Made, on_s3: str, tmp_path: Path) -> None:
    options = {"storage_options": s3.options(), "cache_dir": tmp_path}
    wanted = batches(made.url, 100)
    batches(on_s3, 100, **options)
    rng = random.Random(5)
    for _ in range(3):
        for path in blocks(tmp_path):
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 0x10
            path.write_bytes(data)
        np.testing.assert_array_equal(batches(on_s3, 100, **options), wanted)


def test_tf_and_numpy_share_a_cache(s3: Store, made: Made, on_s3: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    from tests.remote.reading import OPTIONS

    options = {**OPTIONS, "path": on_s3, "storage_options": s3.options(), "cache_dir": str(tmp_path)}
    ds = pileshard.dataset(0, **options)
    for (inputs, _), (same, _) in zip(ds.take(100), pileshard.numpy_dataset(0, **options), strict=False):
        np.testing.assert_array_equal(inputs.numpy(), same)
    assert blocks(tmp_path)
