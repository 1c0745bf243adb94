"""The merge stage: the runs' slices of one range of keys -> a shard, its index and a receipt."""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from array import array
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

import msgspec
import numpy as np

from beam_jobs.duplicates import find_duplicates
from beam_jobs.job import Job, MergeItem, MergeReceipt
from beam_jobs.progress import Heartbeat
from beam_jobs.reads import side_by_side
from beam_jobs.runs import ROW, identities, read_rows
from beam_jobs.shard_plan import RunSlice, group_path
from pileshard.errors import BuildError
from pileshard.format.identity import hex64, identity_hashes, sum64
from pileshard.format.index import Index
from pileshard.format.manifest import ShardEntry
from pileshard.format.mounts import on_own_disk
from pileshard.format.paths import index_path, shard_path
from pileshard.format.record import RECORD_TOKENS, frame_pieces
from pileshard.format.retry import Retries
from pileshard.format.storage import Storage

_WRITE_BYTES = 8 << 20

_MERGED = np.dtype([*ROW.descr, ("input", "<u4"), ("run", "<u4"), ("at", "<u8")])


def merge_item(
    job: Job, item: MergeItem, token_bytes: int, eod_id: int, retries: Retries | None = None
) -> MergeReceipt:
    """Writes one shard and its index, and returns its receipt; the caller publishes it.

    Args:
      job: the job.
      item: the shard.
      token_bytes: bytes of a token on disk, 2 or 4.
      eod_id: closes each document.
      retries: counts what was tried again.

    Raises:
      BuildError: a run is missing or cut off.
    """
    storage = job.storage(retries)
    with Heartbeat(storage, item.name, job.beat_seconds) as heartbeat:
        return _merge(job, item, token_bytes, eod_id, storage, heartbeat)


def _merge(
    job: Job, item: MergeItem, token_bytes: int, eod_id: int, storage: Storage, heartbeat: Heartbeat
) -> MergeReceipt:
    began = time.monotonic()
    temp = job.temp_storage(storage.retries)
    runs = msgspec.json.decode(storage.read_bytes(group_path(item.group)), type=list[RunSlice])
    rows = _gather_rows(temp, runs, item, token_bytes)
    duplicates = np.zeros(len(rows), dtype=bool)
    if job.record.options.dedup == "exact":
        duplicates = find_duplicates(storage, temp, item, rows)
    kept, dropped = rows[~duplicates], rows[duplicates]
    path = shard_path(item.source, item.split, item.number, item.count)

    def write(file: BinaryIO) -> _ShardWriter:
        with ThreadPoolExecutor(1) as behind:
            writer = _ShardWriter(file, eod_id.to_bytes(token_bytes, "little"), token_bytes, behind)
            for slab in _slabs(kept, token_bytes, slab_bytes(job.run_bytes)):
                writer.write(slab, _read_tokens(temp, runs, slab, token_bytes))
                heartbeat.beat(writer.size, writer.documents, writer.tokens)
            writer.finish()
        return writer

    writer = storage.publish(path, write)
    index = writer.index().to_bytes()
    storage.write_bytes(index_path(path), index)
    identities = identity_hashes(kept["input"], kept["line"])
    shard = ShardEntry(
        path=path,
        source=item.source,
        split=item.split,
        number=item.number,
        count=item.count,
        size=writer.size,
        sha256=writer.sha256(),
        index_path=index_path(path),
        index_size=len(index),
        index_sha256=hashlib.sha256(index).hexdigest(),
        records=writer.records,
        documents=len(kept),
        tokens=writer.tokens,
        text_bytes=int(kept["text_bytes"].sum()),
        key_first=hex64(item.key_first),
        key_last=hex64(item.key_last),
        identity_sum=hex64(sum64(identities)),
    )
    return MergeReceipt(
        item=item,
        shard=msgspec.to_builtins(shard),
        duplicates={str(number): count for number, count in sorted(Counter(dropped["input"].tolist()).items())},
        duplicate_tokens=int(dropped["tokens"].sum()) + len(dropped),
        duplicate_text_bytes=int(dropped["text_bytes"].sum()),
        duplicates_identity_sum=sum64(identity_hashes(dropped["input"], dropped["line"])),
        seconds=round(time.monotonic() - began, 3),
    )


def _gather_rows(temp: Storage, runs: list[RunSlice], item: MergeItem, token_bytes: int) -> np.ndarray[Any, Any]:
    """The shard's documents in order, each with its run and the byte offset of its tokens there."""

    def read(run: RunSlice) -> tuple[np.ndarray[Any, Any], int]:
        if not run.touches(item.key_first, item.key_last):
            return np.zeros(0, dtype=ROW), 0
        try:
            return read_rows(temp, run.path, run.group, item.key_first, item.key_last)
        except FileNotFoundError:
            message = f"{temp.url_of(run.path)}: the run is missing; run the same command again, which makes it anew"
            raise BuildError(message) from None

    parts = []
    for number, (run, (rows, before)) in enumerate(zip(runs, side_by_side(read, runs), strict=True)):
        if not len(rows):
            continue
        part = np.zeros(len(rows), dtype=_MERGED)
        for name in ROW.names or ():
            part[name] = rows[name]
        part["input"], part["line"] = identities(rows, run.input)
        part["run"] = number
        ends = np.cumsum(rows["tokens"])
        part["at"] = run.group.tokens_at + (before + ends - rows["tokens"]) * token_bytes
        parts.append(part)
    if not parts:
        return np.zeros(0, dtype=_MERGED)
    rows = np.concatenate(parts)
    return rows[np.lexsort((rows["line"], rows["input"], rows["twin"], rows["key"]))]


def slab_bytes(run_bytes: int) -> int:
    """Bytes of tokens that a merge holds at once: half a run, since they are held twice for a moment.

    A shard is merged in as many steps as it needs, and each step reads once from each run.
    """
    return max(16 << 20, run_bytes // 2)


def _slabs(rows: np.ndarray[Any, Any], token_bytes: int, most: int) -> list[np.ndarray[Any, Any]]:
    """Consecutive documents of at most `most` bytes of tokens together, or one that is larger."""
    sizes = rows["tokens"].astype(np.int64) * token_bytes
    ends = np.cumsum(sizes)
    slabs = []
    first = 0
    while first < len(rows):
        budget = most + (int(ends[first - 1]) if first else 0)
        last = max(first + 1, int(np.searchsorted(ends, budget, "right")))
        slabs.append(rows[first:last])
        first = last
    return slabs


def _read_tokens(
    temp: Storage, runs: list[RunSlice], slab: np.ndarray[Any, Any], token_bytes: int
) -> dict[int, tuple[int, memoryview]]:
    """For each run in the slab: where its bytes begin in the run, and the bytes; one range read a run."""
    order = np.argsort(slab["run"], kind="stable")
    starts = slab["at"][order].astype(np.int64)
    ends = starts + slab["tokens"][order].astype(np.int64) * token_bytes
    numbers, firsts = np.unique(slab["run"][order], return_index=True)
    lows = np.minimum.reduceat(starts, firsts).tolist()
    highs = np.maximum.reduceat(ends, firsts).tolist()

    def read(wanted: tuple[int, int, int]) -> tuple[int, memoryview]:
        number, start, end = wanted
        path = runs[number].path
        data = _mapped(temp, path, start, end) or memoryview(temp.read_range(path, start, end))
        if len(data) != end - start:
            raise BuildError(f"{temp.url_of(path)}: the run is cut off at byte {start + len(data):,}")
        return start, data

    wanted = list(zip(numbers.tolist(), lows, highs, strict=True))
    return dict(zip(numbers.tolist(), side_by_side(read, wanted), strict=True))


def _mapped(temp: Storage, path: str, start: int, end: int) -> memoryview | None:
    """Bytes of a run that is a local file, without a copy: a run is never changed once it has its name."""
    local = temp.local_path(path)
    if local is None or start == end or not on_own_disk(local):
        return None  # a fault of a mount while a mapped page is read ends the process
    with open(local, "rb") as file:
        if os.fstat(file.fileno()).st_size < end:
            return None
        begin = start - start % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(file.fileno(), end - begin, access=mmap.ACCESS_READ, offset=begin)
    return memoryview(pages)[start - begin :]


class _ShardWriter:
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
        return len(self._keys)

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, slab: np.ndarray[Any, Any], spans: dict[int, tuple[int, memoryview]]) -> None:
        """Writes the documents of a slab, each closed by the end-of-document id and cut into parts."""
        width = self._token_bytes
        most = RECORD_TOKENS * width
        columns = [slab[name].tolist() for name in ("input", "line", "key", "text_bytes", "run", "at", "tokens")]
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
        self.documents += len(slab)

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
        if self._pending_bytes >= _WRITE_BYTES:
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

    def index(self) -> Index:
        table = np.zeros((4, self.records + 1), dtype="<u8")
        table[0] = self._tokens
        table[1] = self._offsets
        table[2, :-1] = self._text_bytes
        table[3, :-1] = self._keys
        return Index(table)
