"""A bounded cache of remote shards on a local disk: files only, shared by any number of processes.

    CACHE_DIR/pileshard-blocks-16/b/<sha256 of the shard>-<number of the block>

A block is 256 KiB of a shard or index, named by its content's hash, so that datasets, seeds and versions never mix. A
file appears under its name when it is whole (a rename), and holds a checksum of its bytes: what a crash, a full disk or
a failing one left is noticed and fetched again. There are no locks and no list of what is there.

The least recently read blocks are removed. So that nobody ever looks at all files, blocks are spread over folders by
hash (of 128 blocks at least, 256 folders at most), and each folder has its part of the limit: a process looks at one
folder before it adds to it, every time while folders are small, after it has added 1/64 of the folder else. The total
stays within the limit plus one block for each process that writes at the time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from pileshard.errors import OptionError
from pileshard.order.schedule import whole

_log = logging.getLogger("pileshard.cache")

BLOCK_BYTES = 256 << 10

#: Default limit of a cache.
CACHE_BYTES = 64 << 30

_MAGIC = b"PSBLOCK1"
_HEADER_BYTES = 24  # magic, length of the payload, checksum: 8 bytes each
_FILE_BYTES = BLOCK_BYTES + 4096  # on disk
_FOLDER_BLOCKS = 128
_MOST_FOLDERS = 256
_NAME = "pileshard-blocks-"
#: A temporary file older than this many seconds was left by a process that died.
_ABANDONED = 600
#: Seconds without writing after the disk has refused to.
_REST = 60.0


def cache_limit(cache_bytes: Any) -> int:
    """The bytes that a cache may take; 64e9 is a whole number too.

    Raises:
      OptionError: they are no whole number of at least 1.
    """
    written_short = isinstance(cache_bytes, float) and cache_bytes.is_integer()
    return whole("cache_bytes", int(cache_bytes) if written_short else cache_bytes, 1)


class BlockCache:
    """Blocks of remote files on a local disk.

    Any fault of the disk means that blocks are fetched from the remote storage; it is logged once.

    Attributes:
      folder: where the blocks lie.
      limit: bytes on disk, at most.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = CACHE_BYTES) -> None:
        """Nothing is made or read before the first block.

        Raises:
          OptionError: the folder is no path, or the limit no number of bytes.
        """
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder) or isinstance(os.fspath(folder), bytes):
            raise OptionError(f"cache_dir is {folder!r}; it takes a folder on a local disk")
        limit = cache_limit(limit)
        folders = 1
        while folders < _MOST_FOLDERS and limit // (2 * folders) >= _FOLDER_BLOCKS * _FILE_BYTES:
            folders *= 2
        self.limit = limit
        self.folder = Path(os.fspath(folder)).absolute() / f"{_NAME}{folders}"
        self._folders = folders
        self._folder_limit = limit // folders
        self._step = self._folder_limit // 64 if self._folder_limit >= 64 * _FILE_BYTES else 0
        self._added: dict[str, int] = {}  # bytes by folder since it was looked at
        self._warned = False
        self._resting_until = 0.0

    def read(self, sha256: str, size: int, begin: int, end: int, fetch: Callable[[int, int], bytes]) -> bytes:
        """Bytes [begin, end) of a file.

        Args:
          sha256: of the file, hexadecimal.
          size: of the file.
          begin: first byte.
          end: byte after the last; at most the size.
          fetch: gets bytes [a, b) from the remote storage, all of them; called for runs of missing blocks.
        """
        if begin >= end:
            return b""
        first, last = begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        blocks: dict[int, bytes | memoryview] = {}
        for number in range(first, last):
            found = self._load(sha256, number, min(BLOCK_BYTES, size - number * BLOCK_BYTES))
            if found is not None:
                blocks[number] = found
        number = first
        while number < last:
            upto = number
            while upto < last and upto not in blocks:
                upto += 1
            if upto > number:
                start = number * BLOCK_BYTES
                data = memoryview(fetch(start, min(size, upto * BLOCK_BYTES)))
                for missing in range(number, upto):
                    at = (missing - number) * BLOCK_BYTES
                    blocks[missing] = data[at : at + BLOCK_BYTES]
                    self._store(sha256, missing, blocks[missing])
            number = upto + 1
        skip = begin - first * BLOCK_BYTES
        if last - first == 1:
            return bytes(blocks[first][skip : skip + end - begin])
        joined = b"".join(blocks[number] for number in range(first, last))
        return joined[skip : skip + end - begin]

    def forget(self, sha256: str, begin: int, end: int) -> None:
        """Removes the blocks that hold bytes [begin, end) of a file, so that they are fetched again."""
        for number in range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            with contextlib.suppress(OSError):
                os.unlink("/".join(self._path(sha256, number)))

    def _path(self, sha256: str, block: int) -> tuple[str, str]:
        """Folder and file of a block."""
        spread = xxhash.xxh3_64_intdigest(f"{sha256}-{block}".encode()) % self._folders
        return f"{self.folder}/{spread:x}", f"{sha256}-{block}"

    def _load(self, sha256: str, block: int, length: int) -> memoryview | None:
        folder, name = self._path(sha256, block)
        path = f"{folder}/{name}"
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read(_HEADER_BYTES + BLOCK_BYTES + 1)
        except OSError:
            return None
        payload = memoryview(data)[_HEADER_BYTES:]
        if len(payload) != length or data[:_HEADER_BYTES] != _header(name, payload):
            _log.warning("%s: a damaged block in the cache; it is fetched again", path)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return payload

    def _store(self, sha256: str, block: int, payload: bytes | memoryview) -> None:
        if time.monotonic() < self._resting_until:
            return
        folder, name = self._path(sha256, block)
        temporary = f"{folder}/.{os.getpid()}-{uuid.uuid4().hex}"
        try:
            try:
                self._write(folder, name, temporary, payload)
            except FileNotFoundError:  # it is new, or was removed
                self._make_folder(folder)
                self._added.pop(folder, None)
                self._write(folder, name, temporary, payload)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, FileNotFoundError):
                return  # removed again
            self._resting_until = time.monotonic() + _REST
            if not self._warned:
                self._warned = True
                _log.warning(
                    "%s: blocks cannot be kept (%s); reading goes on without the cache", folder, error.strerror
                )

    def _write(self, folder: str, name: str, temporary: str, payload: bytes | memoryview) -> None:
        self._make_room(folder)
        if self._folder_limit < _FILE_BYTES:
            return
        with open(temporary, "xb", buffering=0) as file:
            written = file.write(_header(name, payload))
            while written < _HEADER_BYTES + len(payload):
                written += file.write(payload[written - _HEADER_BYTES :])
        os.rename(temporary, f"{folder}/{name}")
        self._added[folder] = self._added.get(folder, 0) + _FILE_BYTES

    def _make_folder(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        # What a cache with another limit has left: the limit would not hold with both.
        for other in self.folder.parent.glob(f"{_NAME}*"):
            if other.name != self.folder.name and other.name[len(_NAME) :].isdigit():
                shutil.rmtree(other, ignore_errors=True)

    def _make_room(self, folder: str) -> None:
        """Removes the blocks that were not read for the longest time, so that one more has room."""
        added = self._added.get(folder)
        if added is not None and added < self._step:
            return
        files = []
        total = 0
        abandoned = time.time() - _ABANDONED
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                    if entry.name.startswith(".") and status.st_mtime < abandoned:
                        os.unlink(entry.path)
                        continue
                except OSError:
                    continue
                size = -(-status.st_size // 4096) * 4096
                total += size
                if not entry.name.startswith("."):
                    files.append((status.st_mtime_ns, size, entry.path))
        # With room for what this process and seven others add before they look again.
        needed = _FILE_BYTES + 8 * self._step
        if total + needed > self._folder_limit:
            aim = self._folder_limit * 7 // 8 - needed
            for _, size, path in sorted(files):
                if total <= aim:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                total -= size
        self._added[folder] = 0


def _header(name: str, payload: bytes | memoryview) -> bytes:
    """Of a block's file. The name counts, so that a file under another's name is no block of it."""
    seed = xxhash.xxh3_64_intdigest(name.encode())
    check = xxhash.xxh3_64_intdigest(payload, seed=seed)
    return _MAGIC + len(payload).to_bytes(8, "little") + check.to_bytes(8, "little")
