"""The plan between the stages: receipts of the tokenize stage -> key ranges of shards.

Shards of one group (a source and split) are to be of one size, and a few long documents must not spoil it. So the
ranges of keys are cut not at i/N of the key space but at i/N of the group's bytes, which the runs' bucket tables give:
exact at 1,024 places of the key space, and linear between them. The sums are over documents, however they were spread
over runs, so the same documents give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import msgspec
import numpy as np

from beam_jobs.job import GROUPS, MergeItem, RunGroup, TokenizeReceipt
from beam_jobs.runs import BUCKET_BITS, BUCKET_SHIFT, Group, Ints, read_spreads
from pileshard.format.storage import Storage

#: Bytes of a record beside its tokens, about; only sizes of shards depend on it.
RECORD_OVERHEAD = 80

#: Bytes of the index for a record.
INDEX_BYTES = 32

#: Keys are 64 bits.
LAST_KEY = (1 << 64) - 1

#: A table is about 16 KB a source: the requests wait for the store, not for this process.
_READS_AT_ONCE = 16
_RECEIPTS_AT_ONCE = 256


class RunSlice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group's documents in one run.

    Attributes:
      path: of the run, below the temporary URL.
      group: where they lie in it.
      input: that they are of; None in a gathered run, whose rows tell it.
      key_first: no document has a lower key.
      key_last: no document has a higher key.
    """

    path: str
    group: RunGroup
    input: int | None = None
    key_first: int = 0
    key_last: int = LAST_KEY

    def touches(self, key_first: int, key_last: int) -> bool:
        """Whether it may hold documents of a range of keys."""
        return self.key_first <= key_last and self.key_last >= key_first


@dataclass
class GroupPlan:
    """A source and split: its totals, its runs, and its bytes by bucket of keys.

    Attributes:
      name: source and split.
      documents: accepted ones, before deduplication.
      tokens: with end-of-document ids.
      text_bytes: of their texts.
      runs: where its documents are.
      weights: Python integers [2^10], bytes of records in each bucket of keys.
    """

    name: Group
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    runs: list[RunSlice] = field(default_factory=list)
    weights: list[int] = field(default_factory=lambda: [0] * (1 << BUCKET_BITS))


#: How many groups there are: a listing may miss some.
GROUP_COUNT = f"{GROUPS}/count.json"


def group_path(number: int) -> str:
    """Where a group's list of runs lies, for the merge items to read."""
    return f"{GROUPS}/{number:05d}.json"


def plan_groups(receipts: Iterable[TokenizeReceipt], temp: Storage, token_bytes: int) -> list[GroupPlan]:
    """Adds up the groups, sorted by name.

    Args:
      receipts: of all tokenize items.
      temp: where the runs lie.
      token_bytes: bytes of a token on disk.
    """
    groups: dict[Group, GroupPlan] = {}
    sums: dict[Group, Ints] = {}
    receipts = iter(receipts)
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        while some := list(islice(receipts, _RECEIPTS_AT_ONCE)):
            for tables in pool.map(lambda receipt: read_spreads(temp, receipt), some):
                for name, table in tables:
                    weights = (table["tokens"] + table["documents"]).astype(np.int64) * token_bytes
                    weights += table["documents"].astype(np.int64) * RECORD_OVERHEAD
                    sums.setdefault(name, np.zeros(1 << BUCKET_BITS, dtype=np.int64))[table["bucket"]] += weights
            for receipt in some:
                _add_receipt(groups, receipt)
    for name, plan in groups.items():
        plan.weights = sums[name].tolist()
    return [groups[name] for name in sorted(groups)]


def _add_receipt(groups: dict[Group, GroupPlan], receipt: TokenizeReceipt) -> None:
    for run in receipt.runs:
        for part in run.groups:
            name = (part.source, part.split)
            plan = groups.get(name)
            if plan is None:
                plan = groups[name] = GroupPlan(name)
            plan.documents += part.documents
            plan.tokens += part.tokens + part.documents
            plan.text_bytes += part.text_bytes
            plan.runs.append(RunSlice(path=run.path, input=receipt.item.input, group=part))


def shard_ranges(weights: list[int], documents: int, shard_bytes: int) -> list[tuple[int, int]]:
    """Cuts the key space into ranges of equal weight.

    Args:
      weights: bytes in each of the 2^10 buckets.
      documents: how many there are; no more shards than that.
      shard_bytes: size that no shard is to exceed by more than a document; the fewest shards that keep to it are made.

    Returns:
      (first, last) keys of each shard, inclusive; together all keys from 0 to 2^64 - 1.
    """
    total = sum(weights)
    count = max(1, min(documents, -(-total // shard_bytes)))
    cuts: list[int] = []
    bucket = 0
    before = 0
    for number in range(1, count):
        # All in integers, so that every platform cuts at the same key: cumulative weight >= total * number / count.
        while (before + weights[bucket]) * count < total * number:
            before += weights[bucket]
            bucket += 1
        into = (total * number - before * count) << BUCKET_SHIFT
        cut = (bucket << BUCKET_SHIFT) + into // (weights[bucket] * count)
        cuts.append(max(cut, cuts[-1] + 1 if cuts else 1))
    firsts = [0, *cuts]
    lasts = [cut - 1 for cut in cuts] + [LAST_KEY]
    return list(zip(firsts, lasts, strict=True))


def merge_items(groups: list[GroupPlan], shard_bytes: int, content: str = "") -> list[MergeItem]:
    """The shards of all groups, each one work item.

    Args:
      groups: of the dataset.
      shard_bytes: size of a shard, about.
      content: names what the inputs hold: shards that were made of anything else are made again.
    """
    return [
        MergeItem(
            group=number,
            source=group.name[0],
            split=group.name[1],  # type: ignore[arg-type]
            number=at,
            count=len(ranges),
            key_first=first,
            key_last=last,
            content=content,
        )
        for number, group in enumerate(groups)
        for ranges in [shard_ranges(group.weights, group.documents, shard_bytes)]
        for at, (first, last) in enumerate(ranges)
    ]
