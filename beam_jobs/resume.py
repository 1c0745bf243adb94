"""What an output holds already, and whether this command may continue it."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import msgspec

from beam_jobs.inputs import InputFile
from beam_jobs.job import RECEIPTS, Job, JobRecord, TokenizeReceipt, read_job, read_receipt
from beam_jobs.options import BuildOptions
from beam_jobs.parts import joined
from beam_jobs.reads import side_by_side
from beam_jobs.shard_plan import GROUP_COUNT
from pileshard.errors import BuildError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage, open_url

_log = logging.getLogger("pileshard.build")


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
        changed = changed_inputs(storage, before, job, complete)
        read = next((change for change in changed if change.read), None)
        difference = read.what if read else None
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
    for url in here:
        if url not in was:
            return f"the input {url} is new"
    return None


@dataclass(frozen=True)
class Change:
    """An input that has other bytes than an earlier command on the output met.

    Attributes:
      number: of the input.
      what: is different, in words.
      read: whether documents of it may be in what is there already, as they were.
      leftovers: receipts of it that hold no longer.
    """

    number: int
    what: str
    read: bool
    leftovers: list[str]


def changed_inputs(storage: Storage, before: JobRecord, job: Job, complete: bool) -> list[Change]:
    """The inputs that changed since an earlier command.

    One of which no complete pass is there (it was cut off or damaged, and is copied anew) is simply read from its
    begin. Its size is asked first, then its time or tag of change; only where that alone differs, the bytes are hashed:
    a copied or touched file is the same input.

    Args:
      storage: the output.
      before: the earlier command's record; its inputs have the same URLs.
      job: of this command.
      complete: whether there is a manifest.
    """
    pairs = list(zip(before.inputs, job.record.inputs, strict=True))
    suspects = [number for number, (old, new) in enumerate(pairs) if old != new]
    if not suspects:
        return []
    receipts = _receipts(storage)
    planned = complete or storage.exists(GROUP_COUNT)
    hashes = {e.url: e.sha256 for e in Manifest.read(storage).inputs if e.sha256} if complete else {}
    found = []
    for number in suspects:
        old, new = pairs[number]
        mine = {path: receipt for path, receipt in receipts.items() if _is_of(path, number)}
        passes = [receipt for receipt in mine.values() if receipt is not None and not receipt.skipped]
        if old.size != new.size:
            what = f"the input {new.url} had {old.size:,} bytes, now {new.size:,}"
        else:
            known = hashes.get(new.url) or next((r.input_sha256 for r in passes if r.input_sha256), "")
            if not known or _sha256(new, job) == known:
                continue
            what = f"the input {new.url} has other bytes than when it was read"
        found.append(Change(number, what, planned or joined(passes) is not None, list(mine)))
    return found


def _receipts(storage: Storage) -> dict[str, TokenizeReceipt | None]:
    """Paths of all receipts, with those of tokenize items."""
    paths = storage.files(RECEIPTS)
    tokenized = [path for path in paths if path.startswith(f"{RECEIPTS}/tokenize-")]
    read = side_by_side(lambda path: read_receipt(storage, path, TokenizeReceipt), tokenized)
    return {**dict.fromkeys(paths), **dict(zip(tokenized, read, strict=True))}


def _is_of(path: str, number: int) -> bool:
    """Whether a receipt is of the first stages' work on an input."""
    return path.startswith(tuple(f"{RECEIPTS}/{stage}-{number:05d}-" for stage in ("count", "hash", "tokenize")))


def _sha256(entry: InputFile, job: Job) -> str:
    digest = hashlib.sha256()
    with open_url(entry.url, job.storage_options, retry=job.retry) as file:
        while chunk := file.read(8 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def forget_changed(storage: Storage, job: Job) -> None:
    """Drops what an earlier command found in inputs that were copied anew since: they are read from their begin.

    Raises:
      BuildError: the record of the build is damaged.
    """
    try:
        before = read_job(storage)
    except FileNotFoundError:
        return
    for change in changed_inputs(storage, before, job, complete=False):
        _log.warning("%s: it is read from its begin", change.what)
        for path in change.leftovers:
            storage.remove(path)
