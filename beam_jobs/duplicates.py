"""Exact deduplication: which documents of a shard are texts that came before, in whatever source.

With `--dedup exact` keys are hashes of texts, so equal texts have equal keys in every source. A merge item reads,
beside its own rows, the rows (not the tokens) of the other sources in its range of keys; of equal texts the first by
input and line stays, wherever it is. Equal texts are always of one split. The price is that each source's merge reads
the rows of all sources once more, 40 bytes a document.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from beam_jobs.job import MergeItem
from beam_jobs.reads import side_by_side
from beam_jobs.runs import identities, read_rows
from beam_jobs.shard_plan import GROUP_COUNT, RunSlice, group_path
from pileshard.format.storage import Storage

_SEEN = np.dtype([("key", "<u8"), ("twin", "<u8"), ("input", "<u8"), ("line", "<u8"), ("mine", "<i8")])


def find_duplicates(
    storage: Storage, temp: Storage, item: MergeItem, rows: npt.NDArray[Any], at_once: int
) -> npt.NDArray[np.bool_]:
    """Marks the documents of a shard whose text came before.

    Args:
      storage: the dataset's root, where the groups' lists of runs lie.
      temp: where the runs lie.
      item: the shard.
      rows: its documents, sorted by key; with fields key, twin, input and line.
      at_once: rows of other sources in memory at a time, about.

    Returns:
      bool [len(rows)].
    """
    duplicates = np.zeros(len(rows), dtype=bool)
    if not len(rows):
        return duplicates
    others = _other_runs(storage, item)
    span = item.key_last - item.key_first + 1
    # Keys are evenly spread, so a share of the range holds that share of the rows.
    expected = sum(run.group.documents for run in others) * span >> 64
    steps = max(1, -(-expected // at_once))
    for step in range(steps):
        first = item.key_first + span * step // steps
        last = item.key_first + span * (step + 1) // steps - 1
        low = int(np.searchsorted(rows["key"], np.uint64(first), "left"))
        high = int(np.searchsorted(rows["key"], np.uint64(last), "right"))
        if low == high:
            continue
        parts = [_seen(rows[low:high], 0, np.arange(low, high))]
        parts[0]["input"] = rows["input"][low:high]
        near = [run for run in others if run.touches(first, last)]
        found = side_by_side(lambda run: read_rows(temp, run.path, run.group, first, last)[0], near)  # noqa: B023
        parts += [_seen(rows, run.input, -1) for run, rows in zip(near, found, strict=True) if len(rows)]
        seen = np.concatenate(parts)
        seen = seen[np.lexsort((seen["line"], seen["input"], seen["twin"], seen["key"]))]
        again = np.zeros(len(seen), dtype=bool)
        again[1:] = (seen["key"][1:] == seen["key"][:-1]) & (seen["twin"][1:] == seen["twin"][:-1])
        mine = seen["mine"][again]
        duplicates[mine[mine >= 0]] = True
    return duplicates


def _other_runs(storage: Storage, item: MergeItem) -> list[RunSlice]:
    count = msgspec.json.decode(storage.read_bytes(GROUP_COUNT), type=int)
    paths = [group_path(number) for number in range(count) if number != item.group]
    runs = [run for path in paths for run in msgspec.json.decode(storage.read_bytes(path), type=list[RunSlice])]
    return [run for run in runs if run.group.split == item.split]


def _seen(rows: npt.NDArray[Any], number: int | None, mine: Any) -> npt.NDArray[Any]:
    out = np.zeros(len(rows), dtype=_SEEN)
    for name in ("key", "twin"):
        out[name] = rows[name]
    out["input"], out["line"] = identities(rows, number)
    out["mine"] = mine
    return out
