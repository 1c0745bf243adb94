"""The merge stage: the runs' slices of one range of keys -> a shard, its index and a receipt."""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec
import numpy as np

from beam_jobs.duplicates import find_duplicates
from beam_jobs.job import Job, MergeItem, MergeReceipt
from beam_jobs.memory import give_back, rows_at_once
from beam_jobs.progress import Heartbeat
from beam_jobs.reads import side_by_side
from beam_jobs.runs import ROW, identities, read_rows
from beam_jobs.shard_plan import RunSlice, group_path
from beam_jobs.shard_writer import ShardWriter
from pileshard.errors import BuildError
from pileshard.format.identity import hex64, identity_hashes, sum64
from pileshard.format.manifest import ShardEntry
from pileshard.format.mounts import on_own_disk
from pileshard.format.paths import index_path, shard_path
from pileshard.format.retry import Retries
from pileshard.format.storage import Storage

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
    path = shard_path(item.source, item.split, item.number, item.count)

    def write(file: BinaryIO) -> tuple[ShardWriter, _Sums, _Sums]:
        kept, dropped = _Sums(), _Sums()
        with ThreadPoolExecutor(1) as behind:
            writer = ShardWriter(file, eod_id.to_bytes(token_bytes, "little"), token_bytes, behind)
            for step in _steps(item, runs, rows_at_once(job.run_bytes)):
                rows = _gather_rows(temp, runs, step, token_bytes)
                if job.record.options.dedup == "exact":
                    duplicates = find_duplicates(storage, temp, step, rows, rows_at_once(job.run_bytes))
                    dropped.add(rows[duplicates])
                    rows = rows[~duplicates]
                kept.add(rows)
                for slab in _slabs(rows, token_bytes, slab_bytes(job.run_bytes)):
                    writer.write(slab, _read_tokens(temp, runs, slab, token_bytes))
                    heartbeat.beat(writer.size, writer.documents, writer.tokens)
            writer.finish()
        return writer, kept, dropped

    writer, kept, dropped = storage.publish(path, write)
    index_size, index_sha256 = writer.write_index(storage, index_path(path))
    give_back(job.worker_memory)
    shard = ShardEntry(
        path=path,
        source=item.source,
        split=item.split,
        number=item.number,
        count=item.count,
        size=writer.size,
        sha256=writer.sha256(),
        index_path=index_path(path),
        index_size=index_size,
        index_sha256=index_sha256,
        records=writer.records,
        documents=kept.documents,
        tokens=writer.tokens,
        text_bytes=kept.text_bytes,
        key_first=hex64(item.key_first),
        key_last=hex64(item.key_last),
        identity_sum=hex64(kept.identity_sum),
    )
    return MergeReceipt(
        item=item,
        shard=msgspec.to_builtins(shard),
        duplicates={str(number): count for number, count in sorted(dropped.by_input.items())},
        duplicate_tokens=dropped.tokens,
        duplicate_text_bytes=dropped.text_bytes,
        duplicates_identity_sum=dropped.identity_sum,
        seconds=round(time.monotonic() - began, 3),
    )


@dataclass
class _Sums:
    """Sums over documents; tokens with an end-of-document id each."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    identity_sum: int = 0
    by_input: Counter[int] = field(default_factory=Counter)

    def add(self, rows: np.ndarray[Any, Any]) -> None:
        self.documents += len(rows)
        self.tokens += int(rows["tokens"].sum()) + len(rows)
        self.text_bytes += int(rows["text_bytes"].sum())
        hashes = identity_hashes(rows["input"], rows["line"])
        self.identity_sum = (self.identity_sum + sum64(hashes)) & (2**64 - 1)
        numbers, counts = np.unique(rows["input"], return_counts=True)
        self.by_input.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


def _steps(item: MergeItem, runs: list[RunSlice], most: int) -> Iterator[MergeItem]:
    """The shard's range of keys in as many parts as it takes to have about `most` documents in each."""
    span = item.key_last - item.key_first + 1
    # Keys are evenly spread, so a share of all keys holds that share of the documents.
    expected = sum(run.group.documents for run in runs) * span >> 64
    steps = max(1, -(-expected // most))
    for step in range(steps):
        first = item.key_first + span * step // steps
        last = item.key_first + span * (step + 1) // steps - 1
        yield msgspec.structs.replace(item, key_first=first, key_last=last)


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
    parts.clear()
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
