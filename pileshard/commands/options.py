"""Options that several commands take."""

from __future__ import annotations

import argparse
import json
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


def write_report(path: str, data: bytes) -> None:
    """Writes a report to a file, or to standard output where the path is `-`."""
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    with open(path, "wb") as file:
        file.write(data)
