"""Writes a shard, record after record, and its index."""

from __future__ import annotations

import hashlib
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np

from pileshard.format.index import npy_header
from pileshard.format.record import RECORD_TOKENS, frame_pieces
from pileshard.format.storage import Storage

_WRITE_BYTES = 8 << 20
_PIECES = 1 << 17  # of tiny documents, these objects take more than their bytes
_ROWS_AS_LISTS = 1 << 15


class ShardWriter:
    """Records into an open file, with their index and hash; hashed and written by a thread, one block behind."""

    def __init__(self, file: BinaryIO, eod: bytes, token_bytes: int, behind: ThreadPoolExecutor) -> None:
        self._behind = behind
        self._writing: Future[None] | None = None
        self._file = file
        self._eod = eod
        self._token_bytes = token_bytes
        self._digest = hashlib.sha256()
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._offsets = array("Q", [0])
        self._tokens = array("Q", [0])
        self._text_bytes = array("Q")
        self._keys = array("Q")
        self.size = 0
        self.tokens = 0
        self.documents = 0

    @property
    def records(self) -> int:
        """Records written."""
        return len(self._offsets) - 1

    def sha256(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()

    def write(self, slab: np.ndarray[Any, Any], spans: dict[int, tuple[int, memoryview]]) -> None:
        """Writes the documents of a slab, each closed by the end-of-document id and cut into parts."""
        for begin in range(0, len(slab), _ROWS_AS_LISTS):
            self._write_rows(slab[begin : begin + _ROWS_AS_LISTS], spans)

    def _write_rows(self, rows: np.ndarray[Any, Any], spans: dict[int, tuple[int, memoryview]]) -> None:
        width = self._token_bytes
        most = RECORD_TOKENS * width
        columns = [rows[name].tolist() for name in ("input", "line", "key", "text_bytes", "run", "at", "tokens")]
        for number, line, key, text_bytes, run, at, count in zip(*columns, strict=True):
            base, data = spans[run]
            tokens = data[at - base : at - base + count * width]
            if count < RECORD_TOKENS:
                self._put(frame_pieces(number, line, 0, tokens, self._eod), count + 1, text_bytes, key)
                continue
            whole = bytes(tokens) + self._eod
            for part, start in enumerate(range(0, len(whole), most)):
                piece = whole[start : start + most]
                record = frame_pieces(number, line, part, piece)
                self._put(record, len(piece) // width, 0 if part else text_bytes, key)
        self.documents += len(rows)

    def _put(self, record: tuple[list[bytes | memoryview], int], tokens: int, text_bytes: int, key: int) -> None:
        pieces, size = record
        self._pending += pieces
        self._pending_bytes += size
        self.size += size
        self.tokens += tokens
        self._offsets.append(self.size)
        self._tokens.append(self.tokens)
        self._text_bytes.append(text_bytes)
        self._keys.append(key)
        if self._pending_bytes >= _WRITE_BYTES or len(self._pending) >= _PIECES:
            self.flush()

    def flush(self) -> None:
        """Hands over what is pending, when the block before it is written."""
        pieces, self._pending, self._pending_bytes = self._pending, [], 0
        if self._writing is not None:
            self._writing.result()
        self._writing = self._behind.submit(self._write, pieces)

    def finish(self) -> None:
        """Writes the rest and waits for it."""
        self.flush()
        assert self._writing is not None
        self._writing.result()

    def _write(self, pieces: list[bytes | memoryview]) -> None:
        data = b"".join(pieces)
        self._digest.update(data)
        self._file.write(data)

    def write_index(self, storage: Storage, path: str) -> tuple[int, str]:
        """Writes the index, row after row, and returns its size and sha256."""
        self._text_bytes.append(0)
        self._keys.append(0)

        def write(file: BinaryIO) -> tuple[int, str]:
            digest = hashlib.sha256()
            size = 0
            rows = (self._tokens, self._offsets, self._text_bytes, self._keys)
            for row in (None, *rows):
                data: Any = npy_header(len(self._tokens))
                if row is not None:
                    data = np.frombuffer(row, dtype="u8").astype("<u8", copy=False).data.cast("B")
                digest.update(data)
                file.write(data)
                size += len(data)
            return size, digest.hexdigest()

        return storage.publish(path, write)
