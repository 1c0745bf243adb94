"""How a new file gets its name on each kind of file system: at the end, whole, or not at all.

Each of these is one attempt. Where the block raises, nothing appears, and what was half written is removed.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from pileshard.format import local_files
from pileshard.format.retry import LocalAttempts


@contextlib.contextmanager
def renamed(temp: str, target: str, attempts: LocalAttempts) -> Iterator[BinaryIO]:
    """A file of this machine that is written under one name, synced, and given another."""
    local_files.make_directories(os.path.dirname(temp), attempts)
    local_files.make_directories(os.path.dirname(target), attempts)
    file = None
    try:
        file = local_files.create_file(temp, attempts)
        yield cast(BinaryIO, file)
        file.settle()
        local_files.publish_file(temp, target, file, attempts)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename in (None, temp):
            error.filename = target  # a full disk does not say where
        if file is not None:
            file.abandon()
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise


@contextlib.contextmanager
def moved(fs: Any, temp: str, target: str) -> Iterator[BinaryIO]:
    """The same on a remote file system that has directories (SFTP, HDFS)."""
    fs.makedirs(os.path.dirname(temp), exist_ok=True)
    fs.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        with fs.open(temp, "wb") as file:
            yield cast(BinaryIO, file)
        size = fs.info(temp)["size"]
        try:
            fs.mv(temp, target)
        except Exception:
            fs.invalidate_cache()
            if not fs.exists(target):
                raise
            if not fs.exists(temp) and fs.info(target)["size"] == size:
                return  # it was done, and is said not to be
            # HDFS renames onto no file that is there.
            fs.rm_file(target)
            fs.mv(temp, target)
    except BaseException:
        with contextlib.suppress(Exception):
            fs.rm_file(temp)
        raise


@contextlib.contextmanager
def uploaded(fs: Any, target: str) -> Iterator[BinaryIO]:
    """An object that appears with the last request of its upload."""
    file = fs.open(target, "wb")
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


@contextlib.contextmanager
def in_memory(fs: Any, target: str) -> Iterator[BinaryIO]:
    """A file of fsspec's memory, whose open files would be seen as they are written."""
    buffer = io.BytesIO()
    yield buffer
    fs.pipe_file(target, buffer.getvalue())
