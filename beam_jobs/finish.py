"""The end of a build: the account is closed, and only then is there a manifest."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import msgspec

from beam_jobs.job import (
    FAILURES,
    GATHER,
    GROUPS,
    JOB_TOKENIZER,
    PROGRESS,
    RECEIPTS,
    REJECTED_PARTS,
    SEEN,
    STAGE,
    Job,
    MergeReceipt,
    TokenizeReceipt,
    receipt_path,
    runs_dir,
)
from beam_jobs.lease import forget_dead
from beam_jobs.leftovers import find_leftovers, remove_quietly
from beam_jobs.parts import PARTS, joined
from beam_jobs.reads import side_by_side
from pileshard.errors import BuildError, PileshardError
from pileshard.format.identity import hex64
from pileshard.format.manifest import InputEntry, Manifest, ShardEntry, SourceEntry
from pileshard.format.paths import BUILD, MANIFEST, SHARDS, TOKENIZER, rejected_names
from pileshard.format.retry import describe
from pileshard.format.storage import TEMP_DIR, Storage
from pileshard.tokenize import Tokenizer
from pileshard.version import __version__

_log = logging.getLogger("pileshard.build")

_MASK = (1 << 64) - 1


def input_accounts(job: Job, receipts: list[TokenizeReceipt]) -> list[InputEntry]:
    """Adds up the parts of each input and checks that they agree; where they do not, they are forgotten.

    Raises:
      BuildError: the parts of an input saw different bytes, or their lines are not all its lines.
    """
    parts: dict[int, list[TokenizeReceipt]] = defaultdict(list)
    for receipt in receipts:
        parts[receipt.item.input].append(receipt)
    urls = [entry.url for entry in job.record.inputs]
    names = rejected_names(urls)
    entries = []
    for number, entry in enumerate(job.record.inputs):
        mine = parts[number]
        skipped = next((receipt.skipped for receipt in mine if receipt.skipped), None)
        if skipped:
            entries.append(InputEntry(url=entry.url, size=entry.size, sha256="", skipped=skipped))
            continue
        parts_of_it = joined(mine)
        if parts_of_it is None or (end := parts_of_it[-1].end) is None:
            for receipt in mine:
                job.storage().remove(receipt_path(job.fingerprint, receipt.item))
            raise BuildError(
                f"{entry.url}: changed while it was read; an input must not change during a build. The same command "
                "reads it from its begin"
            )
        rejected: dict[str, int] = {}
        for receipt in mine:
            for reason, count in receipt.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + count
        account = InputEntry(
            url=entry.url,
            size=parts_of_it[-1].input_size,
            sha256=parts_of_it[-1].input_sha256,
            lines=sum(receipt.lines for receipt in mine),
            accepted=sum(receipt.accepted for receipt in mine),
            rejected=dict(sorted(rejected.items())),
            blank=sum(receipt.blank for receipt in mine),
            tokens=sum(receipt.tokens for receipt in mine),
            text_bytes=sum(receipt.text_bytes for receipt in mine),
            identity_sum=hex64(sum(receipt.identity_sum for receipt in mine)),
            rejected_path=names[number] if rejected else None,
        )
        if account.lines != end.lines_begun or account.lines != account.accepted + account.blank + sum(
            rejected.values()
        ):
            raise BuildError(f"{entry.url}: the account of its lines does not close; this is a defect of pileshard")
        entries.append(account)
    return entries


def content_of(inputs: list[InputEntry]) -> str:
    """A name for what the inputs hold, as they were read."""
    read = [(entry.sha256, entry.accepted, entry.tokens, entry.identity_sum) for entry in inputs]
    return hashlib.sha256(msgspec.json.encode(read)).hexdigest()[:16]


def remove_surplus(storage: Storage, manifest: Manifest) -> None:
    """Removes shards that were made of what the inputs held before, and that the manifest does not name."""
    named = {path for shard in manifest.shards for path in (shard.path, shard.index_path)}
    for path in storage.files(SHARDS):
        if path not in named:
            storage.remove(path)


def check_rejected(inputs: list[InputEntry], limit: float, storage: Storage) -> None:
    """Stops a build of which more than a share of the lines was rejected.

    Raises:
      BuildError: with the share, the reasons and where the lines are.
    """
    lines = sum(entry.lines for entry in inputs)
    rejected = sum(sum(entry.rejected.values()) for entry in inputs)
    if rejected > limit * lines:
        reasons: dict[str, int] = {}
        for entry in inputs:
            for reason, count in entry.rejected.items():
                reasons[reason] = reasons.get(reason, 0) + count
        named = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
        worst = max(inputs, key=lambda entry: sum(entry.rejected.values()))
        raise BuildError(
            f"{rejected:,} of {lines:,} lines were rejected ({named}), more than --max-rejected {limit:g}; most of "
            f"them in {worst.url}; they are listed in {storage.url_of(REJECTED_PARTS)}. Mend the input and build "
            "into a new output, or raise --max-rejected and run the command again"
        )


def write_rejected(storage: Storage, receipts: list[TokenizeReceipt], inputs: list[InputEntry]) -> list[InputEntry]:
    """Writes each input's rejected lines in line order, from its parts; returns the inputs with the files' hashes."""
    paths: dict[int, list[str]] = defaultdict(list)
    for receipt in receipts:
        if receipt.rejected_path is not None:
            paths[receipt.item.input].append(receipt.rejected_path)

    def written(numbered: tuple[int, InputEntry]) -> InputEntry:
        number, entry = numbered
        if entry.rejected_path is None:
            return entry
        digest = storage.publish(entry.rejected_path, partial(_merge_rejected, storage, entry.url, paths[number]))
        return msgspec.structs.replace(entry, rejected_sha256=digest.hexdigest())

    return list(side_by_side(written, enumerate(inputs)))


def _merge_rejected(storage: Storage, url: str, paths: list[str], file: BinaryIO) -> hashlib._Hash:
    digest = hashlib.sha256()
    for record in heapq.merge(*(_records(storage, path) for path in paths), key=lambda record: record["line"]):
        line = msgspec.json.encode({"input": url, **record}) + b"\n"
        digest.update(line)
        file.write(line)
    return digest


def _records(storage: Storage, path: str) -> Iterator[dict[str, Any]]:
    with storage.open(path) as file:
        for line in file:
            yield msgspec.json.decode(line)


def make_manifest(
    job: Job,
    tokenizer: Tokenizer,
    inputs: list[InputEntry],
    merges: list[MergeReceipt],
    build: dict[str, Any],
) -> Manifest:
    """Closes the account and puts the manifest together.

    Raises:
      BuildError: documents, tokens, text bytes or identities of the shards are not those of the inputs.
    """
    shards = [msgspec.convert(receipt.shard, ShardEntry) for receipt in merges]
    shards.sort(key=lambda shard: (shard.source, shard.split, shard.number))
    dropped: dict[int, int] = defaultdict(int)
    for receipt in merges:
        for number, count in receipt.duplicates.items():
            dropped[int(number)] += count
    inputs = [
        msgspec.structs.replace(entry, duplicates=dropped[number]) if dropped[number] else entry
        for number, entry in enumerate(inputs)
    ]
    duplicates_sum = sum(receipt.duplicates_identity_sum for receipt in merges) & _MASK
    came = (
        sum(entry.accepted for entry in inputs),
        sum(entry.tokens for entry in inputs),
        sum(entry.text_bytes for entry in inputs),
        sum(int(entry.identity_sum, 16) for entry in inputs) & _MASK,
    )
    went = (
        sum(shard.documents for shard in shards) + sum(dropped.values()),
        sum(shard.tokens for shard in shards) + sum(receipt.duplicate_tokens for receipt in merges),
        sum(shard.text_bytes for shard in shards) + sum(receipt.duplicate_text_bytes for receipt in merges),
        (sum(int(shard.identity_sum, 16) for shard in shards) + duplicates_sum) & _MASK,
    )
    if came != went:
        raise BuildError(
            f"the account does not close: documents, tokens, text bytes, identities in {came} and out {went}; nothing "
            "was published. This is a defect of pileshard or a damaged run: build into a new output"
        )
    return Manifest(
        writer=f"pileshard {__version__}",
        dtype="uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
        vocab_size=tokenizer.vocab_size,
        eod_id=tokenizer.eod_id,
        eod_token=tokenizer.eod_token,
        tokenizer_sha256=job.record.tokenizer_sha256,
        options=job.record.options,
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        text_bytes=sum(shard.text_bytes for shard in shards),
        duplicates_identity_sum=hex64(duplicates_sum),
        inputs=inputs,
        sources=_sources(shards),
        shards=shards,
        build=build,
    )


def _sources(shards: list[ShardEntry]) -> list[SourceEntry]:
    groups: dict[tuple[str, str], list[ShardEntry]] = defaultdict(list)
    for shard in shards:
        groups[shard.source, shard.split].append(shard)
    return [
        SourceEntry(
            name=name,
            split=members[0].split,
            documents=sum(shard.documents for shard in members),
            tokens=sum(shard.tokens for shard in members),
            text_bytes=sum(shard.text_bytes for shard in members),
            shards=len(members),
        )
        for (name, _), members in sorted(groups.items())
    ]


def publish(storage: Storage, manifest: Manifest) -> None:
    """Writes the tokenizer, and last of all the manifest."""
    storage.write_bytes(TOKENIZER, storage.read_bytes(JOB_TOKENIZER))
    storage.write_bytes(MANIFEST, manifest.to_bytes())


def clean(job: Job, keep_runs: bool) -> None:
    """Removes what only the build needed, and what dead attempts left; its record stays, so that it is known as done.

    The dataset is complete by now: what cannot be removed is told and left, and is no fault of it.
    """
    storage, temp = job.storage(), job.temp_storage()
    folders = [(storage, name) for name in (FAILURES, PROGRESS, REJECTED_PARTS, TEMP_DIR)]
    files: list[tuple[Storage, str]] = []
    if keep_runs:
        folders.append((temp, temp.temp_dir))
    else:
        folders += [(storage, name) for name in (RECEIPTS, GROUPS, GATHER)] + [(temp, runs_dir(job.fingerprint))]
        files = [(storage, name) for name in (JOB_TOKENIZER, STAGE, SEEN, PARTS)]
    calls = [(place.remove_tree, name) for place, name in folders] + [(place.remove, name) for place, name in files]
    with contextlib.suppress(OSError, PileshardError):
        forget_dead(storage)
    failed = []
    for remove, name in calls:
        try:
            remove(name)
        except (OSError, PileshardError) as error:
            failed.append(f"{name} ({describe(error)})")
    if failed:
        _log.warning("left behind, and removed by `pileshard clean %s`: %s", storage.url, "; ".join(failed))
    if keep_runs and not failed:
        remove_quietly(find_leftovers(storage, temp))
    if temp.url != storage.url and (folder := temp.local_path(BUILD)) is not None:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # where no other build has its runs
