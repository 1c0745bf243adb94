"""Puts a staged file in the place of a damaged one, if it is the one that is due."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

from pileshard.errors import DatasetError, MissingExtraError
from pileshard.format.storage import Storage, sync_directory

_READ_BYTES = 8 << 20


def install(staging: Storage, storage: Storage, path: str, sha256: str | None) -> None:
    """Moves a file from one root to the same path below another, atomically, after its bytes were read and hashed.

    Args:
      staging: where it lies.
      storage: where it goes.
      path: below both.
      sha256: that it is to have; None takes it as it is.

    Raises:
      DatasetError: it has another.
      OSError: its place cannot be taken (a directory is there, the disk is full).
    """
    here, there = staging.local_path(path), storage.local_path(path)
    if here is not None and there is not None:
        with staging.open(path) as source:
            _copy(source, None, staging.url_of(path), sha256)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        os.replace(here, there)
        sync_directory(os.path.dirname(there))
        return
    with staging.open(path) as source, storage.create(path) as target:
        _copy(source, target, staging.url_of(path), sha256)
    staging.remove(path)


def refusal(error: Exception, path: str) -> str:
    """Why a file was not put into place, in a sentence."""
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return f"something else is in the place of {path}: move it away and run the same command again"
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror or error}; mend it and run the same command again"
    if isinstance(error, MissingExtraError):
        return str(error.for_command("pileshard repair"))
    return str(error)


def _copy(source: BinaryIO, target: BinaryIO | None, name: str, sha256: str | None) -> None:
    digest = hashlib.sha256()
    while block := source.read(_READ_BYTES):
        digest.update(block)
        if target is not None:
            target.write(block)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise DatasetError(f"{name}: what was made has sha256 {digest.hexdigest()}, {sha256} is due")
