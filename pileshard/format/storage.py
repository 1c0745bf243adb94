"""A directory on any fsspec file system, and how a file appears in it: whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Iterator
from functools import cached_property
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

#: An object of these appears when its upload completes; a rename there is a copy.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "memory"}

TEMP_DIR = "_build/tmp"


class Storage:
    """The root of a dataset, and paths relative to it.

    Pickles as its URL and options; each process opens its own file system.

    Attributes:
      url: the root, without a slash at its end.
      options: fsspec's storage options (credentials, endpoints); never written to any file.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url = url.rstrip("/") or url
        self.options = dict(options or {})

    def __reduce__(self) -> tuple[type[Storage], tuple[str, dict[str, Any]]]:
        return Storage, (self.url, self.options)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    @cached_property
    def _resolved(self) -> tuple[Any, str]:
        fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        return fs, root

    @property
    def fs(self) -> Any:
        """The fsspec file system."""
        return self._resolved[0]

    @property
    def root(self) -> str:
        """The root as the file system names it."""
        return self._resolved[1]

    @cached_property
    def is_local(self) -> bool:
        """Whether paths are files of this machine (a shared mount included)."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def _renames(self) -> bool:
        protocols = self.fs.protocol
        names = {protocols} if isinstance(protocols, str) else set(protocols)
        return not names & _OBJECT_STORES

    def path(self, relative: str) -> str:
        """Full path on the file system."""
        return f"{self.root}/{relative}" if relative else self.root

    def url_of(self, relative: str) -> str:
        """URL of a file below the root, for messages."""
        return f"{self.url}/{relative}"

    def local_path(self, relative: str) -> str | None:
        """The path for the operating system, or None where the files are remote."""
        return self.path(relative) if self.is_local else None

    # Reading

    def open(self, relative: str) -> BinaryIO:
        """Opens a file for reading."""
        if self.is_local:
            return open(self.path(relative), "rb")
        return cast(BinaryIO, self.fs.open(self.path(relative), "rb"))

    def read_bytes(self, relative: str) -> bytes:
        """A whole file."""
        if self.is_local:
            with open(self.path(relative), "rb") as file:
                return file.read()
        return cast(bytes, self.fs.cat_file(self.path(relative)))

    def read_range(self, relative: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of a file; fewer where it ends before."""
        if start >= end:
            return b""
        if self.is_local:
            with open(self.path(relative), "rb", buffering=0) as file:
                return read_at(file.fileno(), start, end - start)
        return cast(bytes, self.fs.cat_file(self.path(relative), start=start, end=end))

    def exists(self, relative: str) -> bool:
        """Whether a file or directory is there now."""
        if self.is_local:
            return os.path.exists(self.path(relative))
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self.path(relative)))

    def size(self, relative: str) -> int:
        """Size of a file in bytes; FileNotFoundError if it is not there."""
        if self.is_local:
            return os.stat(self.path(relative)).st_size
        return int(self.fs.info(self.path(relative))["size"])

    def files(self, relative: str = "") -> list[str]:
        """Paths (relative to the root) of all files below a directory, sorted; [] if it is not there."""
        if self.is_local:
            top = self.path(relative)
            found = (os.path.join(base, name) for base, _, names in os.walk(top) for name in names)
            return sorted(os.path.relpath(path, self.root) for path in found)
        self.fs.invalidate_cache()
        try:
            paths = self.fs.find(self.path(relative))
        except FileNotFoundError:
            return []
        head = len(self.root.rstrip("/")) + 1
        return sorted(path[head:] for path in paths)

    def names(self) -> list[str]:
        """Names of the files and directories at the root, sorted; [] if it is not there."""
        try:
            if self.is_local:
                return sorted(os.listdir(self.root))
            self.fs.invalidate_cache()
            return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in self.fs.ls(self.root, detail=False))
        except FileNotFoundError:
            return []

    # Writing

    @contextlib.contextmanager
    def create(self, relative: str) -> Iterator[BinaryIO]:
        """A file to be written, which appears under its name when the block ends, whole and synced.

        On a file system it is written under a unique name in `_build/tmp` and renamed; on an object store it is one
        upload that completes at the end. When the block raises, nothing appears. Replaces a file of that name.
        """
        target = self.path(relative)
        if isinstance(self.fs, MemoryFileSystem):  # its open files are seen as they are written
            buffer = io.BytesIO()
            yield buffer
            self.fs.pipe_file(target, buffer.getvalue())
            return
        if not self._renames:
            file = self.fs.open(target, "wb")
            try:
                yield cast(BinaryIO, file)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.discard()
                    file.closed = True
                raise
            file.close()
            return
        temp = self.path(f"{TEMP_DIR}/{uuid.uuid4().hex}")
        if not self.is_local:
            self.fs.makedirs(os.path.dirname(temp), exist_ok=True)
            self.fs.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                with self.fs.open(temp, "wb") as file:
                    yield cast(BinaryIO, file)
                self.fs.mv(temp, target)
            except BaseException:
                with contextlib.suppress(Exception):
                    self.fs.rm_file(temp)
                raise
            return
        os.makedirs(os.path.dirname(temp), exist_ok=True)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            with open(temp, "wb") as file:
                yield cast(BinaryIO, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise
        sync_directory(os.path.dirname(target))

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Writes a whole file atomically."""
        with self.create(relative) as file:
            file.write(data)

    def remove(self, relative: str) -> None:
        """Removes a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            if self.is_local:
                os.unlink(self.path(relative))
            else:
                self.fs.rm_file(self.path(relative))

    def remove_tree(self, relative: str) -> None:
        """Removes a directory and all below it, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path(relative), recursive=True)


def read_at(descriptor: int, start: int, length: int) -> bytes:
    """Reads `length` bytes at an offset, going on after short reads; fewer only at the end of the file."""
    data = os.pread(descriptor, length, start)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length:
        data = os.pread(descriptor, length - got, start + got)
        if not data:
            break
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def sync_directory(path: str) -> None:
    """Makes a rename in a directory last through a crash, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
