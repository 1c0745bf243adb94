"""Makes a lost or damaged manifest again: by the same build, from `_build/job.json` and the inputs, beside the dataset.

Without the manifest nothing says which bytes are due. So the build is done once more below `_build/rebuild`, and what
it gives is held against the shards that are there. If each of them is the same, or is damaged by its own CRCs, the new
manifest is the old one's (but for the times of the build), and is put in place last of all. A shard that is whole and
another proves that an input, the tokenizer or the release changed since: then everything stays as it was.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from typing import TYPE_CHECKING

import msgspec

from beam_jobs.inputs import expand
from beam_jobs.install import install
from beam_jobs.job import JOB, JobRecord, read_job
from beam_jobs.lease import DRIVERS, Lease
from beam_jobs.options import BuildOptions
from pileshard.audit.repair import file_sha256, is_whole
from pileshard.errors import BuildError, DatasetError
from pileshard.format.manifest import FORMAT_VERSION, Manifest
from pileshard.format.paths import BUILD, MANIFEST, SHARDS, TOKENIZER
from pileshard.format.storage import Storage

if TYPE_CHECKING:
    from beam_jobs.repair import RepairOptions

_log = logging.getLogger("pileshard.repair")

STAGING = f"{BUILD}/rebuild"
_COPY = "restore it from a copy, or build into a new output"


class _Head(msgspec.Struct):
    format_version: int = 0


def rebuild(options: RepairOptions, storage: Storage, lease: Lease) -> str:
    """Puts a new manifest in place, and whatever else of the dataset is missing or damaged.

    Args:
      options: of the repair.
      storage: the dataset's root.
      lease: of the repair.

    Returns:
      By what it was made.

    Raises:
      BuildError: it cannot be; nothing was changed.
    """
    with contextlib.suppress(OSError, DatasetError, msgspec.DecodeError):
        version = msgspec.json.decode(storage.read_bytes(MANIFEST), type=_Head).format_version
        if version > FORMAT_VERSION:
            raise BuildError(f"it is of format {version}, and this release writes {FORMAT_VERSION}: upgrade pileshard")
    try:
        record = read_job(storage, _COPY)
    except FileNotFoundError:
        raise BuildError(f"there is no record of the build ({JOB}): {_COPY}") from None
    if not storage.exists(MANIFEST) and not storage.exists(TOKENIZER):
        raise BuildError("the build is not finished: run the same `pileshard build` command again")
    staging = Storage(f"{storage.url}/{STAGING}", options.storage_options)
    manifest = _build(options, storage, staging, record)
    try:
        _compare(storage, manifest)
    except BuildError:
        lease.check()
        staging.remove_tree("")
        raise
    lease.check()
    _install(storage, staging, manifest)
    return f"from {JOB} and the inputs"


def _build(options: RepairOptions, storage: Storage, staging: Storage, record: JobRecord) -> Manifest:
    from beam_jobs.build import build
    from beam_jobs.repair import find_tokenizer

    with contextlib.suppress(OSError, DatasetError, msgspec.DecodeError):
        made = Manifest.read(staging)  # by a repair that was killed as it put files into place
        if _is_of(staging, record):
            return made
    found = find_tokenizer(storage, options, record.tokenizer_sha256)
    if found is None:
        raise BuildError("no copy of the build's tokenizer was found: give the original with --tokenizer FILE")
    _log.info("repair: building again from %d inputs, to know what the manifest is to say", len(record.inputs))
    if not _goes_on(staging, record):
        staging.remove_tree("")  # of an earlier repair, that met other files
    staging.remove_tree(DRIVERS)  # of a repair that was killed, which the lease has told already
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(found[0])
        file.flush()
        chosen = record.options
        result = build(
            BuildOptions(
                inputs=tuple(entry.url for entry in record.inputs),
                output=staging.url,
                tokenizer=file.name,
                eod=record.eod,
                seed=chosen.seed,
                shard_bytes=chosen.shard_bytes,
                validation=chosen.validation,
                dedup=chosen.dedup,
                special_tokens=chosen.special_tokens,
                text_key=chosen.text_key,
                source_key=chosen.source_key,
                engine=options.engine,
                max_rejected=1.0,
                workers=options.processes,
                temp_url=options.temp_url,
                storage_options=options.storage_options,
                beam_args=options.beam_args,
            )
        )
    if not _is_of(staging, record):
        staging.remove_tree("")
        raise BuildError(f"the inputs are not those of {JOB} any more (their sizes differ): restore them as they were")
    return result.manifest


def _goes_on(staging: Storage, record: JobRecord) -> bool:
    """Whether the inputs are still the files that an earlier repair began to read."""
    try:
        begun = read_job(staging)
    except (FileNotFoundError, BuildError):
        return False
    found = expand([entry.url for entry in begun.inputs], staging.options)
    return begun.fingerprint() == record.fingerprint() and found == begun.inputs


def _is_of(staging: Storage, record: JobRecord) -> bool:
    """Whether what was built is of the same options, and of inputs of the same sizes."""
    made = msgspec.json.decode(staging.read_bytes(JOB), type=JobRecord)
    sizes = [[entry.size for entry in one.inputs] for one in (made, record)]
    return made.fingerprint() == record.fingerprint() and sizes[0] == sizes[1]


def _compare(storage: Storage, manifest: Manifest) -> None:
    """Refuses where a shard that is there is whole and none of those that were made."""
    width = manifest.token_dtype.itemsize
    made = {shard.path: shard.sha256 for shard in manifest.shards}
    for path in storage.files(SHARDS):
        if not path.endswith(".tfrecord") or file_sha256(storage, path) == made.get(path):
            continue
        if storage.size(path) and is_whole(storage, path, width):
            raise BuildError(
                f"{path} is whole, and what the inputs give now is another: an input, the tokenizer or the release "
                f"changed since the build, or the shard is of another dataset. {_COPY[0].upper()}{_COPY[1:]}"
            )


def _install(storage: Storage, staging: Storage, manifest: Manifest) -> None:
    files: list[tuple[str, str | None]] = []
    for shard in manifest.shards:
        files += [(shard.path, shard.sha256), (shard.index_path, shard.index_sha256)]
    files += [(entry.rejected_path, entry.rejected_sha256) for entry in manifest.inputs if entry.rejected_path]
    files.append((TOKENIZER, manifest.tokenizer_sha256))
    for path, sha256 in files:
        if file_sha256(storage, path) != sha256:
            install(staging, storage, path, sha256)
    storage.write_bytes(MANIFEST, staging.read_bytes(MANIFEST))
