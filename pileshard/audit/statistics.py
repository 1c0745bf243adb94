"""`stats`: a dataset in numbers, from its manifest and its indexes, and from every token where asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pileshard.audit.log_bins import Histogram
from pileshard.audit.manifest_checks import well_named
from pileshard.audit.processes import at_most
from pileshard.audit.redact import public_text, public_url
from pileshard.audit.shard_counts import EDGES, Counts, ShardCounter
from pileshard.audit.side_by_side import Progress, side_by_side
from pileshard.audit.statistics_report import (
    QUANTILES,
    Account,
    Counted,
    InputStatistics,
    LengthBin,
    ShardSizes,
    SourceStatistics,
    Spread,
    Statistics,
)
from pileshard.audit.vocabulary import VocabularyCount
from pileshard.errors import DatasetError, OptionError
from pileshard.format.manifest import InputEntry, Manifest, ShardEntry
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage

#: The source of a document whose line names none.
UNKNOWN_SOURCE = "unknown"

_ITEM_BYTES = 256 << 20
_ITEM_SHARDS = 64
_SIZE_BINS = 24


def collect(
    path: str, storage_options: dict[str, Any] | None = None, *, vocab: bool = False, workers: int | None = None
) -> Statistics:
    """Counts a dataset.

    Reads the manifest and the indexes, and with `vocab` every shard. Memory is bounded: some MB for each shard that is
    read at a time, and the counts of one source.

    Args:
      path: the dataset's root, any fsspec URL.
      storage_options: fsspec's.
      vocab: count how often each id occurs, too.
      workers: processes, at most four a core; None: threads of this process, and with `vocab` as many processes as
        there are cores.

    Raises:
      OptionError: an option is wrong.
      DatasetError: there is no dataset, or it is damaged.
      PileshardError: a worker process died.
    """
    if workers is not None and workers < 1:
        raise OptionError(f"workers {workers} is not a number of processes: 1 or more")
    storage = Storage(path, storage_options)
    manifest = Manifest.read(storage)
    _check(storage, manifest)
    vocabulary = VocabularyCount.of(storage, manifest) if vocab else None
    if vocab and workers is None:
        workers = os.cpu_count() or 1
    total = Counts()
    splits: dict[str, Counts] = {}
    sources: list[SourceStatistics] = []
    for group, counts in _groups(storage, manifest, vocab, workers):
        total.add(counts)
        splits.setdefault(group[0].split, Counts()).add(counts)
        sources.append(_source(group, counts, manifest))
        if vocabulary is not None:
            vocabulary.add(group[0].source, counts)
        total.ids = splits[group[0].split].ids = None
    return Statistics(
        url=public_url(storage.url),
        dataset_id=manifest.dataset_id,
        format_version=manifest.format_version,
        writer=manifest.writer,
        dtype=manifest.dtype,
        vocab_size=manifest.vocab_size,
        eod_id=manifest.eod_id,
        eod_token=manifest.eod_token,
        tokenizer_sha256=manifest.tokenizer_sha256,
        shard_bytes=manifest.options.shard_bytes,
        counted=_counted(total),
        splits={split: _counted(counts) for split, counts in sorted(splits.items())},
        sources=sources,
        shards=_sizes(manifest.shards),
        shard_histogram=_size_histogram(manifest.shards),
        account=_account(manifest),
        inputs=[_input(entry, manifest) for entry in manifest.inputs],
        vocabulary=None if vocabulary is None else vocabulary.result(),
    )


def _check(storage: Storage, manifest: Manifest) -> None:
    """What the counts rely on: names that lead nowhere else, shards in order, sums that agree."""
    groups = [(entry.name, entry.split) for entry in manifest.sources]
    places = [(shard.source, shard.split, shard.number) for shard in manifest.shards]
    sums = {name: sum(getattr(shard, name) for shard in manifest.shards) for name in ("documents", "tokens")}
    sound = (
        all(well_named(shard) for shard in manifest.shards)
        and places == sorted(set(places))
        and sorted({place[:2] for place in places}) == groups
        and sums == {"documents": manifest.documents, "tokens": manifest.tokens}
    )
    if not sound:
        name = storage.url_of(MANIFEST)
        raise DatasetError(f"{name}: does not agree with itself about its shards; run `pileshard verify`")


def _groups(
    storage: Storage, manifest: Manifest, vocab: bool, workers: int | None
) -> Iterator[tuple[list[ShardEntry], Counts]]:
    """Yields the shards of each source and split, and what they hold, in the manifest's order."""
    items = list(_items(manifest.shards, vocab))
    progress = Progress(sum(_work(shard, vocab) for shard in manifest.shards), "tokens" if vocab else "shards")
    count = ShardCounter.of(storage, manifest, vocab)
    group: list[ShardEntry] = []
    counts = Counts()
    try:
        for shards, found in side_by_side(count, items, workers and max(1, min(at_most(workers), len(items)))):
            if group and _name(shards[0]) != _name(group[0]):
                yield group, counts
                group, counts = [], Counts()
            group += shards
            counts.add(found)
            progress.add(sum(_work(shard, vocab) for shard in shards))
        if group:
            yield group, counts
    finally:
        progress.close()


def _name(shard: ShardEntry) -> tuple[str, str]:
    return shard.source, shard.split


def _work(shard: ShardEntry, vocab: bool) -> int:
    return shard.tokens if vocab else 1


def _items(shards: Sequence[ShardEntry], vocab: bool) -> Iterator[list[ShardEntry]]:
    """Consecutive shards of one source and split, some at a time."""
    item: list[ShardEntry] = []
    size = 0
    for shard in shards:
        if item and (_name(shard) != _name(item[0]) or size >= _ITEM_BYTES or len(item) >= _ITEM_SHARDS):
            yield item
            item, size = [], 0
        item.append(shard)
        size += shard.size if vocab else shard.index_size
    if item:
        yield item


def _source(group: list[ShardEntry], counts: Counts, manifest: Manifest) -> SourceStatistics:
    return SourceStatistics(
        name=group[0].source,
        split=group[0].split,
        token_share=_ratio(counts.tokens, manifest.tokens),
        counted=_counted(counts),
        shards=_sizes(group),
    )


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _counted(counts: Counts) -> Counted:
    return Counted(
        documents=counts.documents,
        records=counts.records,
        tokens=counts.tokens,
        text_bytes=counts.text_bytes,
        bytes_per_token=_ratio(counts.text_bytes, counts.tokens),
        lengths=_spread(counts.lengths, counts.tokens, 1),
        density=_spread(counts.density, counts.density_sum, 1000),
        histogram=_length_bins(counts),
    )


def _spread(histogram: Histogram, total: int, unit: int) -> Spread | None:
    """How values, counted in parts of which `unit` make one, are spread."""
    if histogram.least is None or histogram.largest is None:
        return None
    values = histogram.quantiles(list(QUANTILES.values()))
    return Spread(
        min=histogram.least / unit,
        max=histogram.largest / unit,
        mean=total / histogram.total / unit,
        **{name: value / unit for name, value in zip(QUANTILES, values, strict=True)},
    )


def _length_bins(counts: Counts) -> list[LengthBin]:
    rows = zip(EDGES.tolist(), EDGES[1:].tolist(), *counts.by_length().tolist(), strict=False)
    return [LengthBin(*row) for row in rows if row[2]]


def _sizes(shards: Sequence[ShardEntry]) -> ShardSizes:
    sizes = sorted(shard.size for shard in shards)
    return ShardSizes(
        count=len(sizes),
        bytes=sum(sizes),
        index_bytes=sum(shard.index_size for shard in shards),
        min=sizes[0] if sizes else None,
        median=sizes[(len(sizes) - 1) // 2] if sizes else None,
        max=sizes[-1] if sizes else None,
    )


def _size_histogram(shards: Sequence[ShardEntry]) -> list[tuple[int, int, int]]:
    if not shards:
        return []
    sizes = np.array([shard.size for shard in shards], dtype=np.int64)
    low = int(sizes.min())
    width = max(1, -(-(int(sizes.max()) + 1 - low) // _SIZE_BINS))
    counts = np.bincount((sizes - low) // width)
    return [(low + at * width, low + (at + 1) * width, count) for at, count in enumerate(counts.tolist())]


def _account(manifest: Manifest) -> Account:
    inputs = manifest.inputs
    rejected: Counter[str] = Counter()
    for entry in inputs:
        rejected.update(entry.rejected)
    lines = sum(entry.lines for entry in inputs)
    unknown = sum(entry.documents for entry in manifest.sources if entry.name == UNKNOWN_SOURCE)
    exact = manifest.options.dedup == "exact"
    return Account(
        lines=lines,
        accepted=sum(entry.accepted for entry in inputs),
        rejected=dict(rejected.most_common()),
        rejected_share=_ratio(rejected.total(), lines),
        blank=sum(entry.blank for entry in inputs),
        duplicates=sum(entry.duplicates for entry in inputs) if exact else None,
        duplicate_tokens=sum(entry.tokens for entry in inputs) - manifest.tokens if exact else None,
        unknown_documents=unknown,
        unknown_share=_ratio(unknown, manifest.documents),
        skipped_inputs=sum(entry.skipped is not None for entry in inputs),
    )


def _input(entry: InputEntry, manifest: Manifest) -> InputStatistics:
    return InputStatistics(
        url=public_url(entry.url),
        size=entry.size,
        lines=entry.lines,
        accepted=entry.accepted,
        rejected=dict(sorted(entry.rejected.items())),
        rejected_share=_ratio(sum(entry.rejected.values()), entry.lines),
        blank=entry.blank,
        duplicates=entry.duplicates if manifest.options.dedup == "exact" else None,
        tokens=entry.tokens,
        text_bytes=entry.text_bytes,
        skipped=None if entry.skipped is None else public_text(entry.skipped),
    )
