"""What an output holds already, and whether this command may continue it."""

from __future__ import annotations

import hashlib

import msgspec

from beam_jobs.inputs import InputFile
from beam_jobs.job import RECEIPTS, Job, JobRecord, TokenizeReceipt, read_job, read_receipt
from beam_jobs.options import BuildOptions
from pileshard.errors import BuildError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage, open_url


def check_same_job(storage: Storage, job: Job, options: BuildOptions) -> Manifest | None:
    """Holds a command against what its output holds.

    Returns:
      The manifest where this very dataset is complete already; None where it is to be built or continued.

    Raises:
      BuildError: the output holds another build, files that are none, or a damaged dataset.
    """
    complete = storage.exists(MANIFEST)
    try:
        before = read_job(storage)
    except FileNotFoundError:
        if complete:
            raise BuildError(
                f"{storage.url}: holds a dataset whose record of its build is gone; build into a new output "
                "(`pileshard verify` and `pileshard repair` need no such record)"
            ) from None
        strangers = [name for name in storage.names() if name != "_build"]
        if strangers:
            raise BuildError(
                f"{storage.url}: is not empty and holds no build ({strangers[0]}); choose a new output"
            ) from None
        return None
    difference = _difference(before, job.record)
    if difference is None:
        touched = any(old.version != new.version for old, new in zip(before.inputs, job.record.inputs, strict=True))
        known = _known_hashes(storage, complete) if touched else {}
        difference = _changed_input(before.inputs, job.record.inputs, known, job)
    if difference is not None:
        raise BuildError(
            f"{storage.url}: holds a {'dataset' if complete else 'build'} of something else: {difference}. "
            "Give the same options and inputs, or another --output"
        )
    if not complete:
        return None
    manifest = Manifest.read(storage)
    for shard in manifest.shards:
        for path, size in ((shard.path, shard.size), (shard.index_path, shard.index_size)):
            try:
                found = storage.size(path)
            except FileNotFoundError:
                found = -1
            if found != size:
                state = "missing" if found < 0 else f"{found:,} bytes, not {size:,}"
                raise BuildError(
                    f"{storage.url_of(path)}: is {state}, though the dataset was complete; `pileshard repair "
                    f"{storage.url}` makes it again, to the same bytes"
                )
    return manifest


def _difference(before: JobRecord, now: JobRecord) -> str | None:
    old, new = (msgspec.to_builtins(record.options) for record in (before, now))
    for name, value in old.items():
        if new[name] != value:
            return f"--{name.replace('_', '-')} was {value}, now {new[name]}"
    if before.tokenizer_sha256 != now.tokenizer_sha256:
        return "--tokenizer is another file"
    if before.eod != now.eod:
        return f"--eod was {before.eod}, now {now.eod}"
    was, here = ({entry.url: entry for entry in record.inputs} for record in (before, now))
    for url in was:
        if url not in here:
            return f"the input {url} is not among the inputs now"
    for url, entry in here.items():
        if url not in was:
            return f"the input {url} is new"
        if entry.size != was[url].size:
            return f"the input {url} had {was[url].size:,} bytes, now {entry.size:,}"
    return None


def _known_hashes(storage: Storage, complete: bool) -> dict[str, str]:
    """sha256 of the inputs that were read already, by URL or by number as text."""
    if complete:
        return {entry.url: entry.sha256 for entry in Manifest.read(storage).inputs if entry.sha256}
    known: dict[str, str] = {}
    for path in storage.files(RECEIPTS):
        if "/tokenize-" in path:
            data = read_receipt(storage, path, TokenizeReceipt)
            if data is not None and data.input_sha256:
                known[str(data.item.input)] = data.input_sha256
    return known


def _changed_input(before: list[InputFile], now: list[InputFile], known: dict[str, str], job: Job) -> str | None:
    """The first input that was read already and has other bytes now.

    Its time or tag of change is asked first; only where that differs, the bytes are hashed: a copied or touched file is
    the same input.
    """
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        wanted = known.get(new.url) or known.get(str(number))
        if old.version == new.version or not wanted:
            continue
        digest = hashlib.sha256()
        with open_url(new.url, job.storage_options, retry=job.retry) as file:
            while chunk := file.read(8 << 20):
                digest.update(chunk)
        if digest.hexdigest() != wanted:
            return f"the input {new.url} has other bytes than when it was read"
    return None
