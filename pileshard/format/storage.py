"""A directory on any fsspec file system, and how a file appears in it: whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pileshard.errors import DatasetError, MissingExtraError, OptionError
from pileshard.format.remote import REQUEST_BYTES, RangeFile, Retry, WrongLength, attempts, describe, is_transient

T = TypeVar("T")

#: An object of these appears when its upload completes; a rename there is a copy.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"}

#: Package and extra behind each protocol.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("abfs", "abfss", "az"), ("adlfs", "azure")),
    **dict.fromkeys(("http", "https"), ("aiohttp", "http")),
}

TEMP_DIR = "_build/tmp"

#: File systems that a forked process inherited: never used again, and never finalized, which may wait for the threads
#: that were left behind in the parent.
_inherited: list[Any] = []


def open_filesystem(url: str, options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path there. It belongs to this process.

    What has no `://` is a path of this machine, whatever characters it holds (fsspec would take `::` for a chain).
    Listings are not kept where that can be chosen: fsspec answers from them what other clients have changed since.

    Raises:
      MissingExtraError: the package for this kind of storage is not installed.
      OptionError: there is no such kind of storage, or an option of it is wrong.
    """
    if "://" not in url:
        return LocalFileSystem(), os.path.abspath(os.path.expanduser(url))
    protocol = url.split("://", 1)[0]
    package = _PACKAGES.get(protocol)
    fresh = {"use_listings_cache": False} if package else {}
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url, **{**fresh, **(options or {})}))
    except ImportError as error:
        if package:
            raise MissingExtraError(*package, f"{protocol}:// storage") from error
        raise OptionError(f"{url}: this storage needs a package that is not installed ({describe(error)})") from error
    except (ValueError, TypeError) as error:
        raise OptionError(f"{url}: cannot be opened: {describe(error)}") from error


def open_url(url: str, options: dict[str, Any] | None = None) -> BinaryIO:
    """Opens any file for reading, by URL or path."""
    fs, path = open_filesystem(url, options)
    return cast(BinaryIO, open(path, "rb") if isinstance(fs, LocalFileSystem) else fs.open(path, "rb"))


class Storage:
    """The root of a dataset, and paths relative to it.

    Pickles as its URL and options; each process opens its own file system.

    Attributes:
      url: the root, without a slash at its end.
      options: fsspec's storage options (credentials, endpoints); never written to any file.
      retry: how often and how long remote reads are tried.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None, *, retry: Retry | None = None) -> None:
        self.url = url.rstrip("/") or url
        self.options = dict(options or {})
        self.retry = retry or Retry()
        self._opened: tuple[int, Any, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _storage, (self.url, self.options, self.retry)

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def _resolved(self) -> tuple[int, Any, str]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            # A file system's event loop does not live on in a forked process: a request would wait for ever.
            if opened is not None:
                _inherited.append(opened[1])
            opened = self._opened = (os.getpid(), *open_filesystem(self.url, self.options))
        return opened

    @property
    def fs(self) -> Any:
        """The fsspec file system of this process."""
        return self._resolved()[1]

    @property
    def root(self) -> str:
        """The root as the file system names it."""
        return self._resolved()[2]

    @property
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
        return io.BufferedReader(RangeFile(self, relative, self.size(relative)), REQUEST_BYTES)

    def read_bytes(self, relative: str) -> bytes:
        """A whole file; from a remote one, one version of it.

        Raises:
          FileNotFoundError: it is not there.
          DatasetError: the storage does not give it.
        """
        if self.is_local:
            with open(self.path(relative), "rb") as file:
                return file.read()

        def whole() -> bytes:
            size = self._remote_size(relative)
            timeout = self.retry.timeout * (1 + (size or 0) // REQUEST_BYTES)
            data = self._cat(relative, None, None, timeout)
            if size is not None and len(data) != size:
                raise WrongLength(f"{len(data):,} bytes came of {size:,}")
            return data

        return self._attempts(whole, relative)

    def read_range(
        self, relative: str, start: int, end: int, *, stopped: Callable[[float], bool] | None = None
    ) -> bytes:
        """Bytes [start, end) of a file; fewer where it ends before.

        Args:
          relative: path below the root.
          start: first byte.
          end: byte after the last.
          stopped: waits for some seconds between attempts, and tells whether to give up.

        Raises:
          FileNotFoundError: the file is not there.
          DatasetError: the storage does not give it.
        """
        if start >= end:
            return b""
        if self.is_local:
            with open(self.path(relative), "rb", buffering=0) as file:
                return read_at(file.fileno(), start, end - start)
        parts = []
        for begin in range(start, end, REQUEST_BYTES):
            upto = min(end, begin + REQUEST_BYTES)
            parts.append(
                attempts(
                    lambda begin=begin, upto=upto: self._part(relative, begin, upto),  # type: ignore[misc]
                    lambda begin=begin: f"{self.url_of(relative)}, byte {begin:,}",  # type: ignore[misc]
                    self.retry,
                    stopped,
                )
            )
            if len(parts[-1]) < upto - begin:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def exists(self, relative: str) -> bool:
        """Whether a file or directory is there now."""
        if self.is_local:
            return os.path.exists(self.path(relative))

        def look() -> bool:
            self.fs.invalidate_cache()
            return bool(self.fs.exists(self.path(relative)))

        return self._attempts(look, relative)

    def size(self, relative: str) -> int:
        """Size of a file in bytes; FileNotFoundError if it is not there."""
        if self.is_local:
            return os.stat(self.path(relative)).st_size
        size = self._attempts(lambda: self._remote_size(relative), relative)
        if size is None:
            raise DatasetError(f"{self.url_of(relative)}: the server does not tell its size")
        return size

    def _attempts(self, request: Callable[[], T], relative: str) -> T:
        return attempts(request, lambda: self.url_of(relative), self.retry)

    def _remote_size(self, relative: str) -> int | None:
        fs = self.fs
        fs.invalidate_cache()
        size = self._timed(fs, "info", self.path(relative), timeout=self.retry.timeout)["size"]
        return None if size is None else int(size)

    def _cat(self, relative: str, start: int | None, end: int | None, timeout: float) -> bytes:
        return cast(bytes, self._timed(self.fs, "cat_file", self.path(relative), start=start, end=end, timeout=timeout))

    @staticmethod
    def _timed(fs: Any, method: str, *args: Any, timeout: float, **options: Any) -> Any:
        """Calls a method of the file system, for a limited time where it runs on an event loop."""
        wrapped = getattr(fs, "fs", fs)  # fsspec's own wrappers are asynchronous by type, what they wrap may not be
        if not (getattr(fs, "async_impl", False) and getattr(wrapped, "async_impl", True)):
            return getattr(fs, method)(*args, **options)
        return fsspec.asyn.sync(fs.loop, getattr(fs, f"_{method}"), *args, timeout=timeout, **options)

    def _part(self, relative: str, start: int, end: int) -> bytes:
        """One range read. A short answer is believed where the file ends there, and no other."""
        try:
            data = self._cat(relative, start, end, self.retry.timeout)
        except Exception as error:
            if isinstance(error, FileNotFoundError) or is_transient(error):
                raise
            size = self._remote_size(relative)
            if size is None or start < size:
                raise
            return b""  # servers refuse a range behind the end
        if len(data) == end - start:
            return data
        size = self._remote_size(relative)
        if size is not None:
            if len(data) == max(0, min(end, size) - start):
                return data
            if len(data) == size <= REQUEST_BYTES:  # the server knows no ranges
                return data[start:end]
        raise WrongLength(f"{len(data):,} bytes came where {end - start:,} were asked for")

    def files(self, relative: str = "") -> list[str]:
        """Paths (relative to the root) of all files below a directory, sorted; [] if it is not there."""
        if self.is_local:
            top = self.path(relative)
            found = (os.path.join(base, name) for base, _, names in os.walk(top) for name in names)
            return sorted(os.path.relpath(path, self.root) for path in found)

        def look() -> list[str]:
            self.fs.invalidate_cache()
            return list(self.fs.find(self.path(relative)))

        try:
            paths = self._attempts(look, relative)
        except FileNotFoundError:
            return []
        head = len(self.root.rstrip("/")) + 1
        return sorted(path[head:] for path in paths)

    def names(self) -> list[str]:
        """Names of the files and directories at the root, sorted; [] if it is not there."""
        try:
            if self.is_local:
                return sorted(os.listdir(self.root))

            def look() -> list[str]:
                self.fs.invalidate_cache()
                return list(self.fs.ls(self.root, detail=False))

            return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in self._attempts(look, ""))
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
            with self._upload(relative) as file:
                yield file
            return
        temp = self.path(f"{TEMP_DIR}/{uuid.uuid4().hex}")
        if not self.is_local:
            self.fs.makedirs(os.path.dirname(temp), exist_ok=True)
            self.fs.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                with self.fs.open(temp, "wb") as file:
                    yield cast(BinaryIO, file)
                try:
                    self.fs.mv(temp, target)
                except Exception:
                    if not self.exists(relative):
                        raise
                    # HDFS renames onto no file that is there.
                    self.fs.rm_file(target)
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
        except BaseException as error:
            if isinstance(error, OSError) and error.filename is None:
                error.filename = target  # a full disk does not say where
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise
        sync_directory(os.path.dirname(target))

    @contextlib.contextmanager
    def _upload(self, relative: str) -> Iterator[BinaryIO]:
        """An object that appears with the last request of its upload, or not at all."""
        file = self.fs.open(self.path(relative), "wb")
        try:
            yield cast(BinaryIO, file)
            file.close()
        except BaseException:
            try:
                with contextlib.suppress(Exception):
                    file.discard()
            finally:
                # Else it would be closed, and so completed, when the last reference goes.
                file.closed = True
                file.buffer = None
            raise

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


def _storage(url: str, options: dict[str, Any], retry: Retry) -> Storage:
    return Storage(url, options, retry=retry)


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
