"""The rejected lines of one item, on their way to a file."""

from __future__ import annotations

import tempfile
from typing import BinaryIO

import msgspec

from beam_jobs.job import REJECTED_PARTS, TokenizeItem
from pileshard.format.storage import Storage
from pileshard.ingest import Rejection

_IN_MEMORY = 4 << 20


class RejectedWriter:
    """Rejected lines of one item, in memory or a file of this machine until they are all there.

    Args:
      storage: where their file goes; it is there only if there are any.
      item: whose lines they are.
    """

    def __init__(self, storage: Storage, item: TokenizeItem) -> None:
        self.path = f"{REJECTED_PARTS}/{item.name}.jsonl"
        self._storage = storage
        self._lines = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115

    def __enter__(self) -> RejectedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def write(self, rejection: Rejection) -> None:
        """Takes a line."""
        record = {
            "line": rejection.line,
            "reason": rejection.reason.value,
            "offset": rejection.offset,
            "detail": rejection.detail,
            "excerpt": rejection.excerpt,
        }
        self._lines.write(msgspec.json.encode(record) + b"\n")

    def publish(self) -> None:
        """Writes the file."""
        if self._lines.tell():
            self._storage.publish(self.path, self._copy)

    def _copy(self, file: BinaryIO) -> None:
        self._lines.seek(0)
        while block := self._lines.read(_IN_MEMORY):
            file.write(block)
