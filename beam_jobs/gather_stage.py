"""The gather stage: slices of many runs -> runs of fewer keys each, and a receipt; `gather_plan.py` says why."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from beam_jobs.gather_plan import BatchRun, batch_path, blocks_path
from beam_jobs.job import GatherItem, GatherReceipt, Job, KeyRange, RunEntry
from beam_jobs.progress import Heartbeat
from beam_jobs.reads import side_by_side
from beam_jobs.runs import RunBuffer, read_buckets, read_rows, run_prefix
from pileshard.errors import BuildError
from pileshard.format.identity import pack_identity
from pileshard.format.retry import Retries
from pileshard.format.storage import Storage

_Slice = tuple[KeyRange, int, npt.NDArray[Any], npt.NDArray[Any]]


def gather_item(job: Job, item: GatherItem, token_bytes: int, retries: Retries | None = None) -> GatherReceipt:
    """Writes a run for each block of the item, and returns its receipt; the caller publishes it.

    A worker holds the documents of one block, about as much as a run.

    Args:
      job: the job.
      item: a batch of runs, and blocks.
      token_bytes: bytes of a token on disk, 2 or 4.
      retries: counts what was tried again.

    Raises:
      BuildError: a run is missing or cut off.
    """
    began = time.monotonic()
    storage = job.storage(retries)
    temp = job.temp_storage(storage.retries)
    batch = msgspec.json.decode(storage.read_bytes(batch_path(item, item.batch)), type=list[BatchRun])
    blocks = msgspec.json.decode(storage.read_bytes(blocks_path(item)), type=list[list[KeyRange]])
    source = _Batch(temp, batch, np.dtype(f"<u{token_bytes}"))
    prefix = run_prefix(job.fingerprint, item.name)
    buffer = RunBuffer(source.dtype, job.run_bytes)
    runs: list[tuple[int, RunEntry]] = []
    documents = tokens = 0
    with Heartbeat(storage, item.name, job.beat_seconds) as heartbeat:
        for number in range(item.first, item.last + 1):
            for slices in side_by_side(partial(source.read, blocks[number]), range(len(batch))):
                for span, of, rows, held in slices:
                    group = buffer.group_number(span.source, span.split)
                    documents += len(rows)
                    tokens += len(held)
                    buffer.add(
                        held,
                        np.cumsum(rows["tokens"].astype(np.int64)),
                        np.full(len(rows), group, dtype=np.int64),
                        rows["key"],
                        pack_identity(of, rows["line"]),
                        rows["text_bytes"],
                        rows["twin"],
                    )
                heartbeat.beat((documents * 80 + tokens * token_bytes), documents, tokens)
            if not buffer.empty:
                runs.append((number, buffer.write(temp, prefix)))
    return GatherReceipt(item=item, runs=runs, documents=documents, seconds=round(time.monotonic() - began, 3))


class _Batch:
    """The runs of a batch, and the tables of where what lies in them."""

    def __init__(self, temp: Storage, runs: list[BatchRun], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._temp = temp
        self._runs = runs
        self._groups = [{(group.source, group.split): group for group in run.run.groups} for run in runs]
        self._tables: dict[tuple[int, str, str], npt.NDArray[Any]] = {}

    def read(self, block: list[KeyRange], at: int) -> list[_Slice]:
        """The documents of one run that lie in a block: by range of keys, the run's input, rows and tokens."""
        found: list[_Slice] = []
        path = self._runs[at].run.path
        try:
            for span in block:
                group = self._groups[at].get((span.source, span.split))
                if group is None:
                    continue
                key = (at, span.source, span.split)
                if key not in self._tables:
                    self._tables[key] = read_buckets(self._temp, path, group)
                rows, before = read_rows(self._temp, path, group, span.key_first, span.key_last, self._tables[key])
                if not len(rows):
                    continue
                width = self.dtype.itemsize
                start = group.tokens_at + before * width
                end = start + int(rows["tokens"].sum()) * width
                data = self._temp.read_range(path, start, end)
                if len(data) != end - start:
                    raise BuildError(f"{self._temp.url_of(path)}: the run is cut off at byte {start + len(data):,}")
                found.append((span, self._runs[at].input, rows, np.frombuffer(data, dtype=self.dtype)))
        except FileNotFoundError:
            message = f"{self._temp.url_of(path)}: the run is missing; run the same command again, which makes it anew"
            raise BuildError(message) from None
        return found
