"""The plan of the gather stage: what brings together the runs that a shard would otherwise read from too many.

A shard reads its slice of every run that holds its source. The number of slices grows with the square of a corpus: 10 T
tokens are 150,000 runs and 40,000 shards, six billion slices of some kilobytes each. So where a source has more than
`MOST_RUNS` runs, they are dealt into batches of about the square root of their number, the keys of all sources
are cut into as many blocks, and each pair of a batch and a block becomes one run. The bytes are read and written once
more; their number of runs stays, but a shard now reads only those of the blocks it lies in, one a batch.

    runs            x  blocks of keys             runs
    r0 [a b c d]       batch 0 = r0..r3           [a a a a] [b b b b] [c c c c] [d d d d]
    r1 [a b c d]  -->
    ...                batch 1 = r4..r7           [a a a a] [b b b b] [c c c c] [d d d d]
    r7 [a b c d]                                  a shard of keys in a reads 2 runs instead of 8
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from beam_jobs.job import GATHER, GatherItem, GatherReceipt, KeyRange, RunEntry, TokenizeReceipt, write_json
from beam_jobs.runs import BUCKET_BITS, BUCKET_SHIFT
from beam_jobs.shard_plan import GroupPlan, RunSlice
from pileshard.format.storage import Storage

#: Runs of a source that a shard reads from without a gather stage.
MOST_RUNS = 4096

#: An item gathers some blocks, one after the other.
_ITEM_BYTES = 4 << 30
_MOST_BLOCKS = 16


class BatchRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that an item gathers from, and the input that its documents are of."""

    input: int
    run: RunEntry


@dataclass(frozen=True)
class GatherPlan:
    """What is gathered.

    Attributes:
      batches: runs that are read together.
      blocks: ranges of keys that become runs together, a source and split at most once in each.
      items: a batch and some consecutive blocks each.
    """

    batches: list[list[BatchRun]]
    blocks: list[list[KeyRange]]
    items: list[GatherItem]

    def write(self, storage: Storage) -> None:
        """Leaves batches and blocks for the items to read."""
        write_json(storage, blocks_path(self.items[0]), self.blocks)
        for number, batch in enumerate(self.batches):
            write_json(storage, batch_path(self.items[0], number), batch)


def batch_path(item: GatherItem, number: int) -> str:
    """Where the list of a batch's runs lies."""
    return f"{GATHER}/{item.plan}/batch-{number:05d}.json"


def blocks_path(item: GatherItem) -> str:
    """Where the blocks lie."""
    return f"{GATHER}/{item.plan}/blocks.json"


def plan_gather(
    receipts: Sequence[TokenizeReceipt], groups: Sequence[GroupPlan], most_runs: int | None = None
) -> GatherPlan | None:
    """Batches and blocks, or None where every shard reads from few enough runs.

    Args:
      receipts: of all tokenize items.
      groups: as planned from them.
      most_runs: as `MOST_RUNS`.
    """
    if max((len(group.runs) for group in groups), default=0) <= (most_runs or MOST_RUNS):
        return None
    runs = [BatchRun(input=receipt.item.input, run=run) for receipt in receipts for run in receipt.runs]
    count = batch_count(len(runs))
    batches = [runs[first:last] for first, last in pairwise(len(runs) * at // count for at in range(count + 1))]
    blocks = cut_blocks(groups, count)
    named = msgspec.json.encode(([run.run.path for run in runs], blocks))
    plan = hashlib.sha256(named).hexdigest()[:12]
    total = sum(sum(group.weights) for group in groups)
    step = blocks_an_item(total // (len(batches) * len(blocks)))
    items = [
        GatherItem(
            plan=plan,
            batch=batch,
            batches=len(batches),
            first=first,
            last=min(first + step, len(blocks)) - 1,
            size=total * min(step, len(blocks) - first) // (len(blocks) * len(batches)),
        )
        for batch in range(len(batches))
        for first in range(0, len(blocks), step)
    ]
    return GatherPlan(batches, blocks, items)


def batch_count(runs: int) -> int:
    """Batches, and blocks, for a number of runs: the square root."""
    return math.isqrt(runs - 1) + 1


def blocks_an_item(block_bytes: int) -> int:
    """Blocks that one item gathers, for the bytes that a batch has in one."""
    return max(1, min(_MOST_BLOCKS, _ITEM_BYTES // max(1, block_bytes)))


def cut_blocks(groups: Sequence[GroupPlan], count: int) -> list[list[KeyRange]]:
    """Cuts the keys of all groups, one group after the other, into at most `count` blocks of about equal bytes."""
    size = 1 << BUCKET_BITS
    ends = np.cumsum([weight for group in groups for weight in group.weights], dtype=np.float64)
    marks = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count, "left") + 1
    bounds = sorted({0, len(ends), *marks.tolist()})
    blocks = []
    for low, high in pairwise(bounds):
        block = []
        for number in range(low // size, -(-high // size)):
            first, last = max(low - number * size, 0), min(high - number * size, size)
            if any(groups[number].weights[first:last]):
                block.append(
                    KeyRange(
                        source=groups[number].name[0],
                        split=groups[number].name[1],  # type: ignore[arg-type]
                        key_first=first << BUCKET_SHIFT,
                        key_last=(last << BUCKET_SHIFT) - 1,
                    )
                )
        if block:
            blocks.append(block)
    return blocks


def gathered(groups: Sequence[GroupPlan], plan: GatherPlan, receipts: Sequence[GatherReceipt]) -> list[GroupPlan]:
    """The groups with the gathered runs in place of those that they were gathered from."""
    slices: dict[tuple[str, str], list[RunSlice]] = {group.name: [] for group in groups}
    for receipt in receipts:
        for number, run in receipt.runs:
            spans = {(span.source, span.split): span for span in plan.blocks[number]}
            for part in run.groups:
                span = spans[part.source, part.split]  # type: ignore[index]
                slices[part.source, part.split].append(
                    RunSlice(path=run.path, group=part, key_first=span.key_first, key_last=span.key_last)
                )
    return [
        GroupPlan(group.name, group.documents, group.tokens, group.text_bytes, slices[group.name], group.weights)
        for group in groups
    ]
