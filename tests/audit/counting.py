"""Counts a dataset slowly and plainly, from what the tests' own reader of the format finds in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from pileshard.audit.statistics_report import QUANTILES, Counted, Spread, Statistics
from tests.format import mini_reader
from tests.format.mini_reader import Document

_SHARES = {name: Fraction(round(share * 1000), 1000) for name, share in QUANTILES.items()}


def _check_spread(found: Spread, values: list[Fraction], told: list[float]) -> None:
    """Quantiles exact below 16,384 (in the unit that is counted), else within 0.05%."""
    values = sorted(values)
    assert (found.min, found.max) == (float(values[0]), float(values[-1]))
    assert abs(found.mean - sum(values) / len(values)) <= 1e-9 * found.mean
    for share, got in zip(_SHARES.values(), told, strict=True):
        rank = max(1, -(-share * len(values) // 1))
        true = values[int(rank) - 1]
        assert abs(got - true) <= float(true) / 2000, (share, got, true)
        if true < 16:
            assert got == float(true)


def check_counted(found: Counted, documents: list[Document]) -> None:
    """What was counted of some documents is true of them."""
    assert found.documents == len(documents)
    assert found.tokens == sum(len(document.tokens) for document in documents)
    assert found.text_bytes == sum(document.text_bytes for document in documents)
    assert found.records == sum(-(-len(document.tokens) // 65536) for document in documents)
    if not documents:
        assert (found.lengths, found.density, found.bytes_per_token, found.histogram) == (None, None, None, [])
        return
    assert found.bytes_per_token == found.text_bytes / found.tokens
    assert found.lengths is not None
    assert found.density is not None
    lengths = [Fraction(len(document.tokens)) for document in documents]
    for name in _SHARES:
        value = getattr(found.lengths, name)
        if value < 16_384:
            assert value in lengths, "quantiles of short documents are lengths that occur"
    _check_spread(found.lengths, lengths, [getattr(found.lengths, name) for name in _SHARES])
    density = [Fraction(document.text_bytes * 1000 // len(document.tokens), 1000) for document in documents]
    _check_spread(found.density, density, [getattr(found.density, name) for name in _SHARES])
    edges = sorted({round(2 ** (half / 2)) for half in range(106)})
    for bin in found.histogram:
        assert edges.index(bin.end) == edges.index(bin.first) + 1
        within = [len(document.tokens) for document in documents if bin.first <= len(document.tokens) < bin.end]
        assert (bin.documents, bin.tokens) == (len(within), sum(within))
    assert sum(bin.documents for bin in found.histogram) == found.documents
    ends = [bin.first for bin in found.histogram][1:]
    assert all(bin.end <= first for bin, first in zip(found.histogram, ends, strict=False))


def check_statistics(found: Statistics, root: Path) -> None:
    """Every number is what the slow count gives."""
    manifest, documents = mini_reader.read_dataset(root)
    check_counted(found.counted, documents)
    groups: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for document in documents:
        groups[document.source, document.split].append(document)
    named = {(entry.name, entry.split): entry for entry in found.sources}
    assert list(named) == sorted({(shard["source"], shard["split"]) for shard in manifest["shards"]})
    for name, entry in named.items():
        check_counted(entry.counted, groups[name])
        assert entry.token_share == (entry.counted.tokens / found.counted.tokens if found.counted.tokens else None)
        files = [shard for shard in manifest["shards"] if (shard["source"], shard["split"]) == name]
        sizes = sorted((root / shard["path"]).stat().st_size for shard in files)
        assert (entry.shards.count, entry.shards.bytes) == (len(files), sum(sizes))
        assert (entry.shards.min, entry.shards.max) == (sizes[0], sizes[-1])
        assert entry.shards.median == sizes[(len(sizes) - 1) // 2]
        assert entry.shards.index_bytes == sum((root / shard["index_path"]).stat().st_size for shard in files)
    for split, counted in found.splits.items():
        check_counted(counted, [document for document in documents if document.split == split])
    sizes = [(root / shard["path"]).stat().st_size for shard in manifest["shards"]]
    for first, end, count in found.shard_histogram:
        assert sum(first <= size < end for size in sizes) == count
    assert sum(count for *_, count in found.shard_histogram) == len(sizes)
    _check_account(found, manifest, documents)
    if found.vocabulary is not None:
        _check_vocabulary(found, manifest, documents, root)


def _check_account(found: Statistics, manifest: dict[str, Any], documents: list[Document]) -> None:
    inputs = manifest["inputs"]
    account = found.account
    rejected: Counter[str] = Counter()
    for entry, told in zip(inputs, found.inputs, strict=True):
        rejected.update(entry["rejected"])
        assert (told.lines, told.accepted, told.blank) == (entry["lines"], entry["accepted"], entry["blank"])
        assert told.rejected == entry["rejected"]
        lost = sum(entry["rejected"].values())
        assert told.rejected_share == (lost / entry["lines"] if entry["lines"] else None)
    assert account.rejected == dict(rejected)
    assert account.lines == account.accepted + account.blank + rejected.total()
    unknown = [document for document in documents if document.source == "unknown"]
    assert account.unknown_documents == len(unknown)
    assert account.unknown_share == (len(unknown) / len(documents) if documents else None)
    if manifest["options"]["dedup"] == "exact":
        assert account.duplicates == account.accepted - len(documents)
        came = sum(entry["tokens"] for entry in inputs)
        assert account.duplicate_tokens == came - sum(len(document.tokens) for document in documents)
    else:
        assert account.duplicates is None
        assert account.accepted == len(documents)


def _check_vocabulary(found: Statistics, manifest: dict[str, Any], documents: list[Document], root: Path) -> None:
    from tokenizers import Tokenizer

    vocabulary = found.vocabulary
    assert vocabulary is not None
    known = set(Tokenizer.from_file(str(root / "tokenizer.json")).get_vocab(with_added_tokens=True).values())
    counts: Counter[int] = Counter()
    by_source: dict[str, Counter[int]] = defaultdict(Counter)
    for document in documents:
        by_source[document.source].update(document.tokens)
        counts.update(document.tokens)
    assert (vocabulary.ids, vocabulary.used) == (len(known), len(known & set(counts)))
    assert vocabulary.holes == manifest["vocab_size"] - len(known)
    unused = [at for first, last in vocabulary.unused for at in range(first, last + 1)]
    assert unused == sorted(known - set(counts))
    assert (vocabulary.above, vocabulary.used_holes) == (0, 0)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    assert [(entry.id, entry.count) for entry in vocabulary.top] == ranked[:100]
    assert all(ranked[rank - 1][1] == count for rank, count in vocabulary.ranks)
    if ranked:
        assert vocabulary.ranks[-1] == (len(ranked), ranked[-1][1])
    total = counts.total()
    for share, ids in vocabulary.coverage:
        held = [sum(count for _, count in ranked[:number]) for number in (ids - 1, ids)]
        assert held[0] * 1000 < round(share * 1000) * total <= held[1] * 1000
    for bin in vocabulary.frequencies:
        within = [counts[at] for at in known if bin.first <= counts[at] < bin.end]
        assert (bin.ids, bin.tokens) == (len(within), sum(within))
    assert sum(bin.ids for bin in vocabulary.frequencies) == len(known)
    assert [entry.name for entry in vocabulary.sources] == sorted(by_source)
    for entry in vocabulary.sources:
        mine = set(by_source[entry.name])
        others = {at for name, ids in by_source.items() if name != entry.name for at in ids}
        assert (entry.used, entry.only_here) == (len(mine & known), len(mine - others))
