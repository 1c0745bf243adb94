"""Files of this machine, whose paths may lie on a mount of a server far away (NFS, EFS, Lustre, FUSE).

Such mounts fail where a disk does not. A call may fail and succeed a moment later; an open file may go stale; data that
was taken by `write` may be refused by `fsync` or `close`; a rename may be done and said not to be; a name that is there
may not be seen for a while. So reads go on after a fault in a file that is opened anew, and a file that is written
counts only when its bytes are synced, closed, of the right number, and found under its name.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from typing import Any, BinaryIO

import xxhash

from pileshard.errors import StorageError
from pileshard.format.remote import changed
from pileshard.format.retry import LocalAttempts, WrongLength

_READ_BYTES = 8 << 20

#: A directory cannot be synced there; that is no fault.
_NO_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.EISDIR}


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


def read_part(path: str, start: int, length: int) -> bytes:
    """Bytes at an offset of a file; fewer where it ends before."""
    with open(path, "rb", buffering=0) as file:
        return read_at(file.fileno(), start, length)


def read_whole(path: str) -> bytes:
    """All bytes of a file.

    Raises:
      WrongLength: fewer came than it has.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = read_at(file.fileno(), 0, size + 1)  # a file that says to be empty may be none
        if len(data) < size:
            raise WrongLength(f"{len(data):,} bytes came of {size:,}")
        return file.read() if len(data) > size else data


class LocalFile(io.RawIOBase):
    """A file for reading that goes on after a fault: opened anew, and held against what was opened first."""

    def __init__(self, path: str, attempts: LocalAttempts) -> None:
        self._path = path
        self._attempts = attempts
        self._descriptor = -1
        self._version: tuple[int, int] | None = None
        self._at = 0
        attempts.run(self._open, path)

    def _open(self) -> None:
        self._drop()
        self._descriptor = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        state = os.fstat(self._descriptor)
        version = state.st_size, state.st_mtime_ns
        if self._version is None:
            self._version = version
        elif self._version != version:
            raise changed(self._path)

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """The descriptor; another one after a fault."""
        return self._descriptor

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset."""
        assert self._version is not None
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._version[0]}[whence]
        if base + offset < 0:
            raise ValueError(f"negative offset {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer; fewer bytes than it takes are no end of the file, none are."""
        view = memoryview(buffer).cast("B")

        def some() -> int:
            try:
                if self._descriptor < 0:
                    self._open()
                got = os.preadv(self._descriptor, [view], self._at)
                if not got and len(view) and self._version and self._at < self._version[0]:
                    raise WrongLength(f"it ends at byte {self._at:,} of {self._version[0]:,}")
            except (OSError, WrongLength):
                self._drop()
                raise
            return got

        got = self._attempts.run(some, self._path)
        self._at += got
        return got

    def check_unchanged(self) -> None:
        """Raises StorageError where the file of that name is not the one that was opened."""
        state = self._attempts.run(lambda: os.stat(self._path), self._path)
        if (state.st_size, state.st_mtime_ns) != self._version:
            raise changed(self._path)

    def close(self) -> None:
        """Closes it."""
        self._drop()
        super().close()


class WrittenFile(io.RawIOBase):
    """A file being written: knows how many bytes it was given, and their hash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self.size = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def write(self, data: Any) -> int:
        """Writes all of the data."""
        length = self._file.write(data)
        self._digest.update(data)
        self.size += length
        return length

    def digest(self) -> bytes:
        """Hash of what was written."""
        return self._digest.digest()

    def settle(self) -> None:
        """Syncs and closes; an error of either means that bytes may be lost, whichever call had taken them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Closes it, whatever becomes of its bytes."""
        with contextlib.suppress(OSError, ValueError):
            self._file.close()


def make_directories(path: str, attempts: LocalAttempts) -> None:
    """Makes a directory and those above it, lasting through a crash; that it is there already is no error."""
    missing = []
    at = path
    while at and not attempts.run(lambda at=at: is_there(at), at):  # type: ignore[misc]
        missing.append(at)
        above = os.path.dirname(at.rstrip("/"))
        if above == at:
            break
        at = above
    # A name that is there and was not seen is told by an error that passes.
    for folder in reversed(missing):
        made = lambda folder=folder: os.makedirs(folder, exist_ok=True)  # noqa: E731
        attempts.run(made, folder, (FileExistsError, FileNotFoundError))
        sync_directory(os.path.dirname(folder), attempts)


def is_there(path: str) -> bool:
    """Whether a name is there. What cannot be told is an error, and no "no"."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def create_file(temp: str, attempts: LocalAttempts) -> WrittenFile:
    """Opens a new file of a unique name for writing, in a directory that is made if need be."""

    def once() -> BinaryIO:
        os.makedirs(os.path.dirname(temp), exist_ok=True)
        return open(temp, "wb")

    return WrittenFile(attempts.run(once, temp, (FileExistsError, FileNotFoundError)))


def publish_file(temp: str, target: str, written: WrittenFile, attempts: LocalAttempts) -> None:
    """Gives a file its name, for good.

    A rename that is said to have failed may have been done; then the file is found under its name, and that is success.

    Raises:
      StorageError: the file was removed while it was written, or is shorter than what was written.
      OSError: the rename fails.
    """
    if attempts.run(lambda: os.stat(temp), temp, (FileNotFoundError,)).st_size != written.size:
        raise WrongLength("fewer bytes are in the file than were written to it")

    def once() -> None:
        try:
            os.replace(temp, target)
        except OSError:
            if not is_there(temp) and _holds(target, written):
                return
            with contextlib.suppress(OSError):
                os.makedirs(os.path.dirname(target), exist_ok=True)
            raise

    try:
        attempts.run(once, target, (FileNotFoundError, FileExistsError))
    except FileNotFoundError as error:
        raise StorageError(f"{target}: was removed while it was written, by another command or person") from error
    sync_directory(os.path.dirname(target), attempts)


def link_new(temp: str, target: str) -> bool:
    """Gives a file a second name, if nothing has that; tells whether it did."""
    try:
        os.link(temp, target)
    except FileExistsError:
        # A link that was made may be said to be there already.
        return os.path.samefile(temp, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV):
            raise
        with open(temp, "rb") as source:  # no links there
            data = source.read()
        try:
            with open(target, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
    sync_directory(os.path.dirname(target))
    return True


def _holds(path: str, written: WrittenFile) -> bool:
    """Whether a file has the bytes that were written."""
    try:
        if os.stat(path).st_size != written.size:
            return False
        digest = xxhash.xxh3_128()
        with open(path, "rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return False
    return digest.digest() == written.digest()


def sync_directory(path: str, attempts: LocalAttempts | None = None) -> None:
    """Makes names in a directory last through a crash, where the system can.

    Raises:
      OSError: it can, and failed.
    """

    def once() -> None:
        try:
            descriptor = os.open(path or ".", os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise

    (attempts or LocalAttempts()).run(once, path)


def files_below(top: str, attempts: LocalAttempts) -> list[str]:
    """Paths of all files below a directory; none if it is not there. What cannot be listed is an error."""
    found: list[str] = []
    folders = [top]
    while folders:
        folder = folders.pop()
        try:
            entries = attempts.run(lambda folder=folder: _entries(folder), folder)  # type: ignore[misc]
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed by another command since it was seen
        for path, is_folder in entries:
            (folders if is_folder else found).append(path)
    return found


def _entries(folder: str) -> list[tuple[str, bool]]:
    """Paths in a directory, and whether each is a directory; without links to directories."""
    with os.scandir(folder) as entries:
        found = [(entry.path, entry.is_dir(), entry.is_symlink()) for entry in entries]
    return [(path, is_folder) for path, is_folder, is_link in found if not (is_folder and is_link)]


def remove_below(path: str, attempts: LocalAttempts) -> None:
    """Removes a directory and all below it. What others remove at the same time is no error."""

    def once() -> None:
        try:
            _remove(path)
        except OSError as error:
            # A mount keeps the names of files that are open (`.nfs...`), and others may write at the same time.
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.ENOTEMPTY), error.filename) from error
            raise

    attempts.run(once, path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not os.path.isdir(path) or os.path.islink(path):
            os.unlink(path)
            return
        with os.scandir(path) as entries:
            names = [entry.path for entry in entries]
        for name in names:
            _remove(name)
        os.rmdir(path)
