"""Options that several commands take."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from pileshard.errors import OptionError


def add_storage_options(command: argparse.ArgumentParser) -> None:
    """Adds `--storage-option`."""
    command.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="K=V",
        help="an option of the fsspec file system (endpoint, credentials, ...), never written anywhere; env:NAME or "
        "file:/PATH as V is read by each process for itself, so that the secret is not sent to a cluster",
    )


def parse_storage_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Storage options from pairs K=V; a value that is JSON is taken as such.

    Raises:
      OptionError: a pair has another form.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError("--storage-option: one is not of the form K=V (it is not shown: it may be a secret)")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def check_target(option: str, path: str | None) -> None:
    """A file that an option names can be written, as far as can be told before hours of reading.

    Raises:
      OptionError: it is a directory, or in none.
    """
    if path is None or path == "-":
        return
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise OptionError(f"{option} {path}: there is no directory {folder}")
    if not path or os.path.isdir(path):
        raise OptionError(f"{option} {path}: is no name of a file")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise OptionError(f"{option} {path}: may not be written")


def write_report(path: str, data: bytes) -> None:
    """Writes a report whole or not at all to a file, or to standard output where the path is `-`."""
    if path == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device
        with open(path, "wb") as file:
            file.write(data)
        return
    path = os.path.realpath(path)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(error, OSError):
            error.filename = path  # a full disk names no file
        raise
