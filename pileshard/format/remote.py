"""Reading from remote file systems: which answers are believed, and a file read by ranges.

The clients below fsspec retry some faults themselves, each in its own way; none of them compares the length of an
answer with what was asked for, and most wait for ever on a server that stalls. So every request is checked, and goes
through `attempts`: a transient fault is tried again a bounded number of times, and then told in one sentence.
"""

from __future__ import annotations

import contextlib
import datetime
import io
from typing import TYPE_CHECKING, Any, BinaryIO

from pileshard.errors import StorageError
from pileshard.format.retry import Retry, WrongLength, attempts, describe, is_transient

if TYPE_CHECKING:
    from pileshard.format.storage import Storage

__all__ = ["REQUEST_BYTES", "RangeFile", "Retry", "StreamFile", "WrongLength", "attempts", "describe", "is_transient"]

#: Bytes of one request, at most: what a slow link (1 Mbit/s) carries within the time limit of an attempt.
REQUEST_BYTES = 8 << 20

#: What file systems tell apart versions of a file by.
_VERSION_KEYS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "created",
)


def version_of(info: dict[str, Any]) -> str:
    """What of a file's description tells this version from others (ETag, generation, time of change), or ""."""
    return next((f"{key}={info[key]}" for key in _VERSION_KEYS if info.get(key) is not None), "")


def modified_of(info: dict[str, Any]) -> float | None:
    """When a file was written, as its description tells it: seconds since 1970, or None."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "modified", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


class _RemoteFile(io.RawIOBase):
    """What both kinds of remote files share: a place in the file, and the version that was opened."""

    def __init__(self, storage: Storage, relative: str, size: int | None, version: str = "") -> None:
        self._storage = storage
        self._relative = relative
        self._size = size
        self._version = version
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset; nothing is fetched."""
        if whence == io.SEEK_END and self._size is None:
            raise io.UnsupportedOperation("the size of the file is not known")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size or 0}[whence]
        if base + offset < 0:
            raise ValueError(f"negative offset {base + offset}")
        self._at = base + offset
        return self._at

    def check_unchanged(self) -> None:
        """Raises StorageError where the file is not the one that was opened."""
        size, version = self._storage.described(self._relative)
        if (self._size is not None and size != self._size) or version != self._version:
            raise changed(self._storage.url_of(self._relative))


def changed(name: str) -> StorageError:
    """The error for a file that was replaced under its reader."""
    return StorageError(f"{name}: changed while it was read; an input must not change during a build")


class RangeFile(_RemoteFile):
    """A remote file for reading, each part fetched by a checked and repeated range read.

    Where a version is given, the bytes are all of it: it is asked for again after a fault and at the end.
    """

    def readinto(self, buffer: Any) -> int:
        """Fetches into a buffer."""
        size = self._size or 0
        view = memoryview(buffer).cast("B")
        end = min(size, self._at + min(len(view), REQUEST_BYTES))
        if end <= self._at:
            return 0
        before = self._storage.retries.total
        data = self._storage.read_range(self._relative, self._at, end)
        if self._version and (end == size or self._storage.retries.total != before or self._at + len(data) < end):
            self.check_unchanged()
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


class StreamFile(_RemoteFile):
    """A remote file of a server without range reads, or of a client without them (SFTP, HDFS, archives).

    It is one stream; after a fault it is opened anew, held against the version, and passed over to where it was.
    """

    def __init__(self, storage: Storage, relative: str, size: int | None, version: str, opened: BinaryIO) -> None:
        super().__init__(storage, relative, size, version)
        self._file: BinaryIO | None = opened
        self._file_at = 0

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer; fewer bytes than it takes are no end of the file, none are."""
        view = memoryview(buffer).cast("B")
        data = attempts(
            lambda: self._some(len(view)),
            lambda: f"{self._storage.url_of(self._relative)}, byte {self._at:,}",
            self._storage.retry,
            retries=self._storage.retries,
        )
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _some(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._storage.open_stream(self._relative)
                self._file_at = 0
                self.check_unchanged()
            self._move(self._file)
            data = self._file.read(size)
            if not data and self._size is not None and self._at < self._size:
                raise WrongLength(f"it ends at byte {self._at:,} of {self._size:,}")
        except BaseException:
            self._drop()
            raise
        self._file_at += len(data)
        return data

    def _move(self, file: BinaryIO) -> None:
        if self._file_at == self._at:
            return
        try:
            file.seek(self._at)
        except (ValueError, NotImplementedError, OSError):
            if self._at < self._file_at:
                raise
            while self._file_at < self._at:  # it cannot seek
                passed = len(file.read(min(REQUEST_BYTES, self._at - self._file_at)))
                if not passed:
                    raise WrongLength(f"it ends at byte {self._file_at:,}") from None
                self._file_at += passed
        self._file_at = self._at

    def _drop(self) -> None:
        with contextlib.suppress(Exception):
            if self._file is not None:
                self._file.close()
        self._file = None

    def close(self) -> None:
        """Closes the stream."""
        self._drop()
        super().close()
