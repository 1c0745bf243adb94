"""What an output holds already, and whether this command may continue it."""

from __future__ import annotations

import msgspec

from beam_jobs.changes import changes
from beam_jobs.job import Job, JobRecord, read_job
from beam_jobs.options import BuildOptions
from pileshard.errors import BuildError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import MANIFEST
from pileshard.format.storage import Storage


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
        difference = next((change.what for change in changes(storage, before, job, complete) if change.refused), None)
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
