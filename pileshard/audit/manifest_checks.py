"""Checks of the manifest against itself: its hashes, its sums, and its shards' ranges of keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pileshard.audit.report import Fault, FaultKind
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.paths import MANIFEST, TOKENIZER, index_path, rejected_names, shard_path

_MASK = (1 << 64) - 1
_LAST_KEY = _MASK

#: What to do about the manifest and the tokenizer.
REMEDY = "restore the file from a copy, or run `pileshard repair`"


def _fault(kind: FaultKind, message: str) -> Fault:
    return Fault(kind=kind, path=MANIFEST, message=message, remedy=REMEDY)


def check_manifest(manifest: Manifest, data: bytes) -> Iterator[Fault]:
    """Yields the faults of a manifest that could be decoded.

    Args:
      manifest: decoded.
      data: the file's bytes.
    """
    if not Manifest.bytes_are_whole(data):
        yield _fault(FaultKind.MANIFEST_CHECKSUM, "its bytes are not those that its manifest_sha256 names")
    if manifest.dataset_id != manifest.content_id():
        yield _fault(FaultKind.MANIFEST_CHECKSUM, "its dataset_id is not that of its shards")
    width = "uint16" if manifest.vocab_size <= 1 << 16 else "uint32"
    if manifest.dtype != width or manifest.eod_id >= manifest.vocab_size:
        message = (
            f"a vocabulary of {manifest.vocab_size:,} ids needs {width} and an end-of-document id below it; it names "
            f"{manifest.dtype} and {manifest.eod_id:,}"
        )
        yield _fault(FaultKind.TOKENIZER, message)
    if manifest.tokenizer_path != TOKENIZER:
        yield _fault(FaultKind.TOKENIZER, f"the tokenizer is to be {TOKENIZER}, not {manifest.tokenizer_path!r}")
    yield from _check_inputs(manifest)
    yield from _check_sources(manifest)
    yield from _check_shard_list(manifest)


def well_named(shard: ShardEntry) -> bool:
    """Whether a shard's paths follow from its source and number; no other path is ever opened."""
    wanted = shard_path(shard.source, shard.split, shard.number, shard.count)
    return shard.path == wanted and shard.index_path == index_path(wanted)


def _check_inputs(manifest: Manifest) -> Iterator[Fault]:
    names = rejected_names([entry.url for entry in manifest.inputs])
    for entry, name in zip(manifest.inputs, names, strict=True):
        if entry.rejected_path not in ((None,) if not sum(entry.rejected.values()) else (name,)):
            message = f"{entry.url}: its rejected lines are not to be in {entry.rejected_path!r}"
            yield _fault(FaultKind.REJECTED, message)
        if entry.skipped is not None and (entry.lines or entry.accepted or entry.tokens or entry.text_bytes):
            yield _fault(FaultKind.ACCOUNT, f"{entry.url}: was left out, and yet gave lines or documents")
        out = entry.accepted + entry.blank + sum(entry.rejected.values())
        if entry.lines != out:
            yield _fault(FaultKind.ACCOUNT, f"{entry.url}: {entry.lines:,} lines in, {out:,} accounted for")
    accepted = sum(entry.accepted - entry.duplicates for entry in manifest.inputs)
    held = sum(shard.documents for shard in manifest.shards)
    if accepted != held:
        yield _fault(FaultKind.ACCOUNT, f"inputs gave {accepted:,} documents, shards hold {held:,}")
    came = sum(int(entry.identity_sum, 16) for entry in manifest.inputs) & _MASK
    went = sum(int(shard.identity_sum, 16) for shard in manifest.shards)
    went = (went + int(manifest.duplicates_identity_sum, 16)) & _MASK
    if came != went:
        yield _fault(FaultKind.ACCOUNT, "the sum of identities over the inputs is not that over the shards")
    if not any(entry.duplicates for entry in manifest.inputs):
        for name in ("tokens", "text_bytes"):
            came = sum(getattr(entry, name) for entry in manifest.inputs)
            if came != getattr(manifest, name):
                yield _fault(FaultKind.ACCOUNT, f"inputs gave {came:,} {name}, shards hold {getattr(manifest, name):,}")


def _check_sources(manifest: Manifest) -> Iterator[Fault]:
    groups: dict[tuple[str, str], list[ShardEntry]] = defaultdict(list)
    for shard in manifest.shards:
        groups[shard.source, shard.split].append(shard)
    for name in ("documents", "tokens", "text_bytes"):
        total = sum(getattr(shard, name) for shard in manifest.shards)
        if total != getattr(manifest, name):
            yield _fault(FaultKind.ACCOUNT, f"{name} is {getattr(manifest, name):,}, its shards add up to {total:,}")
    for entry in manifest.sources:
        label = f"source {entry.name!r} ({entry.split})"
        members = groups.pop((entry.name, entry.split), [])
        for name in ("documents", "tokens", "text_bytes"):
            total = sum(getattr(shard, name) for shard in members)
            if total != getattr(entry, name):
                message = f"{label}: {name} is {getattr(entry, name):,}, its shards add up to {total:,}"
                yield _fault(FaultKind.ACCOUNT, message)
        if len(members) != entry.shards:
            yield _fault(FaultKind.ACCOUNT, f"{label}: {entry.shards:,} shards named, {len(members):,} listed")
    for source, split in groups:
        yield _fault(FaultKind.ACCOUNT, f"source {source!r} ({split}) has shards and no totals")


def _check_shard_list(manifest: Manifest) -> Iterator[Fault]:
    places = [(shard.source, shard.split, shard.number) for shard in manifest.shards]
    if places != sorted(set(places)):
        yield _fault(FaultKind.ACCOUNT, "its shards are not in the order of source, split and number, each once")
    members = Counter((shard.source, shard.split) for shard in manifest.shards)
    next_key: dict[tuple[str, str], int] = {}
    for shard in manifest.shards:
        group = (shard.source, shard.split)
        if not shard.number < shard.count == members[group]:
            message = f"{shard.path}: is number {shard.number:,} of {shard.count:,}, and {members[group]:,} are listed"
            yield _fault(FaultKind.ACCOUNT, message)
        if not well_named(shard):
            wanted = shard_path(shard.source, shard.split, shard.number, shard.count)
            yield _fault(FaultKind.ACCOUNT, f"{shard.path}: its name does not fit its source and number ({wanted})")
        if int(shard.key_first, 16) != next_key.get(group, 0):
            yield _fault(FaultKind.KEY_RANGE, f"{shard.path}: its keys do not begin where those before it end")
        if shard.key_last < shard.key_first:
            yield _fault(FaultKind.KEY_RANGE, f"{shard.path}: its last key is before its first")
        next_key[group] = int(shard.key_last, 16) + 1
    for (source, split), key in next_key.items():
        if key != _LAST_KEY + 1:
            yield _fault(FaultKind.KEY_RANGE, f"source {source!r} ({split}): its shards leave out the highest keys")
