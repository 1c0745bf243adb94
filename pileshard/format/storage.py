"""A directory on any fsspec file system, and how a file appears in it: whole, or not at all."""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pileshard.errors import StorageError
from pileshard.format import local_files, publishing
from pileshard.format.filesystems import open_filesystem, options_by_name
from pileshard.format.local_files import read_at, sync_directory
from pileshard.format.remote import REQUEST_BYTES, RangeFile, StreamFile, modified_of, version_of
from pileshard.format.retry import LocalAttempts, Retries, Retry, WrongLength, attempts, is_refusal, is_transient

__all__ = ["TEMP_DIR", "Storage", "WholeFile", "open_filesystem", "open_url", "read_at", "sync_directory"]

T = TypeVar("T")

#: An object of these appears when its upload completes; a rename there is a copy.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"}

TEMP_DIR = "_build/tmp"

_LOCAL_BUFFER = 1 << 20

#: File systems that a forked process inherited: never used again, and never finalized, which may wait for the threads
#: that were left behind in the parent.
_inherited: list[Any] = []


def open_url(
    url: str, options: dict[str, Any] | None = None, *, retry: Retry | None = None, retries: Retries | None = None
) -> WholeFile:
    """Opens any file for reading, by URL or path, as `Storage.open_whole` does.

    Args:
      url: of the file.
      options: fsspec's.
      retry: how often and how long reads are tried.
      retries: counts what was tried again.
    """
    return Storage(url, options, retry=retry, retries=retries).open_whole("")


class WholeFile(io.BufferedReader):
    """A file for reading from its first byte to its last, all of one version."""

    def check_unchanged(self) -> None:
        """Raises StorageError where the file of that name is not the one that was opened."""
        cast(Any, self.raw).check_unchanged()


class Storage:
    """The root of a dataset, and paths relative to it.

    Pickles as its URL and options; each process opens its own file system.

    Attributes:
      url: the root, without a slash at its end.
      options: fsspec's storage options (credentials, endpoints); never written to any file.
      retry: how often and how long a request is tried where a fault may pass.
      retries: counts what was tried again, in this process.
      temp_dir: where files lie, below the root, until they have their names.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        *,
        retry: Retry | None = None,
        retries: Retries | None = None,
        temp_dir: str = TEMP_DIR,
    ) -> None:
        """Opens nothing yet.

        Raises:
          OptionError: the options are none by name.
        """
        self.url = url.rstrip("/") or url
        self.options = options_by_name(options)
        self.retry = retry or Retry()
        self.retries = retries if retries is not None else Retries()
        self.temp_dir = temp_dir
        self._local = LocalAttempts(self.retry, self.retries)
        self._opened: tuple[int, Any, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _storage, (self.url, self.options, self.retry, self.temp_dir)

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
    def is_http(self) -> bool:
        """Whether it is a plain web server."""
        return self.url.startswith(("http://", "https://"))

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
        return f"{self.url}/{relative}" if relative else self.url

    def local_path(self, relative: str) -> str | None:
        """The path for the operating system, or None where the files are remote."""
        return self.path(relative) if self.is_local else None

    # Reading

    def open(self, relative: str) -> BinaryIO:
        """Opens a file for reading."""
        if self.is_local:
            return self.open_whole(relative)
        return io.BufferedReader(RangeFile(self, relative, self.size(relative)), REQUEST_BYTES)

    def open_whole(self, relative: str) -> WholeFile:
        """Opens a file to be read from its first byte to its last, all of one version.

        After a fault the reading goes on where it was, in the file opened anew. A file that is another by then, or at
        its end, is a StorageError. A file of a server without range reads is one stream.
        """
        if self.is_local:
            return WholeFile(local_files.LocalFile(self.path(relative), self._local), _LOCAL_BUFFER)
        info = self._attempts(lambda: self._info(relative), relative)
        size, version = info.get("size"), version_of(info)
        fs = self.fs
        ranged = isinstance(fs, MemoryFileSystem) or getattr(fs, "async_impl", False)
        if "http" in str(fs.protocol) and not info.get("partial"):
            ranged = size is not None and size <= REQUEST_BYTES
        if ranged and size is not None:
            return WholeFile(RangeFile(self, relative, int(size), version), REQUEST_BYTES)
        opened = self._attempts(lambda: self.open_stream(relative), relative)
        return WholeFile(StreamFile(self, relative, size, version, opened), _LOCAL_BUFFER)

    def open_stream(self, relative: str) -> BinaryIO:
        """The client's own file object, unchecked; of a web server, one answer."""
        blocks = {"block_size": 0} if "http" in str(self.fs.protocol) else {}
        return cast(BinaryIO, self.fs.open(self.path(relative), "rb", **blocks))

    def described(self, relative: str) -> tuple[int | None, str]:
        """Size of a remote file, if it is known, and what tells its version from others."""
        info = self._attempts(lambda: self._info(relative), relative)
        size = info.get("size")
        return None if size is None else int(size), version_of(info)

    def read_bytes(self, relative: str) -> bytes:
        """A whole file; from a remote one, one version of it.

        Raises:
          FileNotFoundError: it is not there.
          DatasetError: the storage does not give it.
        """
        if self.is_local:
            return self._local.run(lambda: local_files.read_whole(self.path(relative)), self.path(relative))

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
            path = self.path(relative)
            return self._local.run(lambda: local_files.read_part(path, start, end - start), path)
        parts = []
        for begin in range(start, end, REQUEST_BYTES):
            upto = min(end, begin + REQUEST_BYTES)
            parts.append(
                attempts(
                    lambda begin=begin, upto=upto: self._part(relative, begin, upto),  # type: ignore[misc]
                    lambda begin=begin: f"{self.url_of(relative)}, byte {begin:,}",  # type: ignore[misc]
                    self.retry,
                    stopped,
                    retries=self.retries,
                )
            )
            if len(parts[-1]) < upto - begin:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def exists(self, relative: str) -> bool:
        """Whether a file or directory is there now."""
        if self.is_local:
            return self._local.run(lambda: local_files.is_there(self.path(relative)), self.path(relative))

        try:  # `fs.exists` would take any fault of some stores for absence
            self._attempts(lambda: self._info(relative), relative)
        except FileNotFoundError:
            return False
        except StorageError as error:
            # Servers that list nothing refuse what is not there.
            if self.is_http and is_refusal(error.__cause__):
                return False
            raise
        return True

    def size(self, relative: str) -> int:
        """Size of a file in bytes; FileNotFoundError if it is not there."""
        if self.is_local:
            return self._local.run(lambda: os.stat(self.path(relative)), self.path(relative)).st_size
        size = self._attempts(lambda: self._remote_size(relative), relative)
        if size is None:
            raise StorageError(f"{self.url_of(relative)}: the server does not tell its size")
        return size

    def _attempts(self, request: Callable[[], T], relative: str) -> T:
        return attempts(request, lambda: self.url_of(relative), self.retry, retries=self.retries)

    def _info(self, relative: str) -> dict[str, Any]:
        fs = self.fs
        fs.invalidate_cache()
        return cast(dict[str, Any], self._timed(fs, "info", self.path(relative), timeout=self.retry.timeout))

    def _remote_size(self, relative: str) -> int | None:
        size = self._info(relative)["size"]
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
            found = local_files.files_below(self.path(relative), self._local)
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
                return sorted(self._local.run(lambda: os.listdir(self.root), self.root))

            def look() -> list[str]:
                self.fs.invalidate_cache()
                return list(self.fs.ls(self.root, detail=False))

            return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in self._attempts(look, ""))
        except FileNotFoundError:
            return []

    # Writing

    def publish(self, relative: str, write: Callable[[BinaryIO], T]) -> T:
        """A file that a function writes, and which appears under its name when it returns, whole and synced.

        Where a fault may pass, the function is called again and writes a new file from its first byte: what a failed
        write, sync, close or upload left behind is not known, and never used. Replaces a file of that name.

        Args:
          relative: path below the root.
          write: writes all of the file; may be called several times.

        Returns:
          What `write` returned.

        Raises:
          OSError: a lasting fault of a directory (no space, no permission), or one that did not pass.
          StorageError: the same of remote storage.
        """

        def once() -> T:
            with self.create(relative) as file:
                return write(file)

        if self.is_local:
            return self._local.run(once, self.path(relative))
        # An upload that is completed again after its answer was lost is told to be none.
        also = (FileNotFoundError,)
        where = lambda: self.url_of(relative)  # noqa: E731
        return attempts(once, where, self.retry, retries=self.retries, what="written", also=also)

    @contextlib.contextmanager
    def create(self, relative: str) -> Iterator[BinaryIO]:
        """A file to be written, which appears under its name when the block ends, whole and synced; tried once.

        On a file system it is written under a unique name in `temp_dir` and renamed; on an object store it is one
        upload that completes at the end. When the block raises, nothing appears. Replaces a file of that name.
        """
        target = self.path(relative)
        temp = self.path(f"{self.temp_dir}/{uuid.uuid4().hex}")
        if isinstance(self.fs, MemoryFileSystem):
            made = publishing.in_memory(self.fs, target)
        elif not self._renames:
            made = publishing.uploaded(self.fs, target)
        elif self.is_local:
            made = publishing.renamed(temp, target, self._local)
        else:
            made = publishing.moved(self.fs, temp, target)
        with made as file:
            yield file

    def write_new(self, relative: str, data: bytes) -> bool:
        """Writes a whole file where there is none of that name, atomically.

        Returns:
          False where there was one, which stays as it is.
        """
        path = self.path(relative)
        if self.is_local:
            temp = f"{self.temp_dir}/{uuid.uuid4().hex}"
            self.write_bytes(temp, data)
            try:
                return self._local.run(lambda: local_files.link_new(self.path(temp), path), path)
            finally:
                self.remove(temp)

        def put() -> bool:
            try:
                self.fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            return True

        if self.exists(relative):  # clients that know no `mode` write over what is there
            return False
        return attempts(put, lambda: self.url_of(relative), self.retry, retries=self.retries, what="written")

    def modified(self, relative: str) -> float | None:
        """When a file was written, in seconds since 1970; None where that is not known or the file is not there."""
        try:
            if self.is_local:
                return self._local.run(lambda: os.stat(self.path(relative)), self.path(relative)).st_mtime
            info = self._attempts(lambda: self._info(relative), relative)
        except FileNotFoundError:
            return None
        return modified_of(info)

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Writes a whole file atomically."""
        self.publish(relative, lambda file: file.write(data))

    def remove(self, relative: str) -> None:
        """Removes a file if it is there."""
        path = self.path(relative)
        with contextlib.suppress(FileNotFoundError):
            if self.is_local:
                self._local.run(lambda: os.unlink(path), path)
            else:
                self._removing(lambda: self.fs.rm_file(path), relative)

    def remove_tree(self, relative: str) -> None:
        """Removes a directory and all below it, if it is there."""
        path = self.path(relative)
        with contextlib.suppress(FileNotFoundError):
            if self.is_local:
                local_files.remove_below(path, self._local)
            else:
                self._removing(lambda: self.fs.rm(path, recursive=True), relative)

    def _removing(self, request: Callable[[], Any], relative: str) -> None:
        def fresh() -> None:
            self.fs.invalidate_cache()
            request()

        attempts(fresh, lambda: self.url_of(relative), self.retry, retries=self.retries, what="removed")


def _storage(url: str, options: dict[str, Any], retry: Retry, temp_dir: str) -> Storage:
    return Storage(url, options, retry=retry, temp_dir=temp_dir)
