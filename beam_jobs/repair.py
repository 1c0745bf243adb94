"""`pileshard repair`: makes condemned files again, to the bytes that the manifest's sha256 names, and only those.

    verify (full) --> condemned files
    index of a sound shard        <- the shard itself, where the tokenizer loses nothing
    other shards and indexes      <- runs of a build with --keep-runs, else the inputs: the build's tokenize stage,
                                     for the documents of the condemned shards alone, and its merge stage
    lists of rejected lines       <- the inputs
    manifest                      <- `_build/job.json` and the inputs (repair_manifest.py)

All is made below `_build/repair` first. A file takes the place of the damaged one by one rename (on an object store
one upload), and only if it has the sha256 that is due: so a repair can be killed at any time, the same command goes on
from the receipts, and where the inputs do not give the same bytes any more everything stays as it was.

One command at a time works on a dataset (lease.py): a repair is refused while a build or another repair does.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from beam_jobs import repair_manifest
from beam_jobs.install import install, refusal
from beam_jobs.items import os_sentence
from beam_jobs.job import JOB, JobRecord
from beam_jobs.lease import Lease
from beam_jobs.options import EngineName
from beam_jobs.repair_shards import ShardRepair
from pileshard.audit.repair import AS_BUILT, Condemned, RepairReport, condemn, file_sha256, index_of_shard
from pileshard.audit.report import Report
from pileshard.audit.verify import Audit, open_storage
from pileshard.errors import BuildError, DatasetError, OptionError, PileshardError
from pileshard.format.manifest import Manifest
from pileshard.format.paths import BUILD, MANIFEST, TOKENIZER
from pileshard.format.storage import TEMP_DIR, Storage, open_url
from pileshard.tokenize import load

_log = logging.getLogger("pileshard.repair")

STAGING = f"{BUILD}/repair"


@dataclass(frozen=True)
class RepairOptions:
    """Options of a repair, as `pileshard repair --help` explains them."""

    url: str
    workers: int | None = None
    temp_url: str | None = None
    tokenizer: str | None = None
    engine: EngineName = "auto"
    remove_surplus: bool = False
    storage_options: dict[str, Any] = field(default_factory=dict)
    beam_args: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """Processes on this machine."""
        return self.workers or os.cpu_count() or 1


def repair(options: RepairOptions) -> RepairReport:
    """Repairs a dataset.

    Args:
      options: which, and how.

    Returns:
      What was wrong, what became of each file, and whether the dataset is sound now.

    Raises:
      OptionError: an option makes no sense.
      BuildError: a build or another repair works on the dataset.
      PileshardError: the work could not be done at all (a worker died, the disk is full); run it again.
    """
    if options.workers is not None and options.workers < 1:
        raise OptionError(f"--workers {options.workers} is not a number of processes: 1 or more")
    storage = open_storage(options.url, options.storage_options)
    if storage.is_local:  # workers may start in another directory
        storage = Storage(storage.root, options.storage_options)
    try:
        lease = Lease(storage, "repair")
        if not storage.exists(MANIFEST) and not storage.exists(JOB):
            return _Repair(options, storage, lease).run()  # nothing can be made again, and nothing is written
        with _without_new_folders(storage), contextlib.ExitStack() as held:
            try:
                held.enter_context(lease)
            except NotImplementedError:
                raise BuildError(
                    f"{options.url}: this storage takes no files, so nothing can be made again there; `pileshard "
                    "verify` says whether anything has to be"
                ) from None
            return _Repair(options, storage, lease).run()
    except OSError as error:
        raise BuildError(os_sentence(error, options.url)) from error


@contextlib.contextmanager
def _without_new_folders(storage: Storage) -> Iterator[None]:
    """Leaves no empty folders of a build where the dataset has none, as a copy may."""
    there = storage.exists(BUILD)
    try:
        yield
    finally:
        for folder in () if there else (storage.local_path(TEMP_DIR), storage.local_path(BUILD)):
            with contextlib.suppress(OSError):
                if folder is not None:
                    os.rmdir(folder)


class _Repair:
    def __init__(self, options: RepairOptions, storage: Storage, lease: Lease) -> None:
        self.options = options
        self.storage = storage
        self.lease = lease

    def run(self) -> RepairReport:
        began = time.monotonic()
        before = report = self._audit()
        files: list[Condemned] = []
        if any(fault.path == MANIFEST for fault in report.faults):
            files = condemn(None, [fault for fault in report.faults if fault.path == MANIFEST])
            self._manifest(files[0])
            if not files[0].outcome:
                others = condemn(None, [fault for fault in report.faults if fault.path != MANIFEST])
                for file in others:
                    file.why = "what is due is not known without the manifest"
                return self._report(began, before, [*files, *others], report)
            report = self._audit()
        if not report.sound:
            manifest = Manifest.read(self.storage)
            more = condemn(manifest, report.faults)
            if not _is_of_record(self.storage, manifest):
                for file in more:
                    file.why = file.why or f"{MANIFEST} is not of the build that {BUILD}/job.json records"
            self._files(manifest, more)
            files += more
            report = self._audit({file.path for file in more})
        self._clean()
        return self._report(began, before, files, report)

    def _report(self, began: float, before: Report, files: list[Condemned], after: Report) -> RepairReport:
        return RepairReport(
            url=self.options.url,
            sound=not after.faults,
            files=files,
            before=before,
            after=after.faults,
            seconds=round(time.monotonic() - began, 3),
        )

    def _audit(self, only: set[str] | None = None) -> Report:
        audit = Audit(self.storage, "full", workers=self.options.workers, only=only)
        engine = None
        if self.options.beam_args and only is None:
            from beam_jobs.audit_pipeline import beam_engine

            engine = beam_engine(self.options.temp_url, self.options.beam_args, self.options.processes)
        report = audit.run(engine)
        self.lease.check()  # it took long, and what follows changes files
        return report

    def _clean(self) -> None:
        self.storage.remove_tree(STAGING)
        self.storage.remove_tree(repair_manifest.STAGING)

    def _manifest(self, file: Condemned) -> None:
        try:
            file.repaired(repair_manifest.rebuild(self.options, self.storage, self.lease))
        except (PileshardError, OSError) as error:
            file.why = refusal(error, MANIFEST)
            return
        self.storage.remove_tree(repair_manifest.STAGING)

    def _files(self, manifest: Manifest, files: list[Condemned]) -> None:
        todo = [file for file in files if not file.outcome and not file.why]
        shards = {file.number for file in todo if file.kind == "shard"}
        for file in todo:
            if file.kind == "surplus":
                self._surplus(file)
            elif file.kind == "tokenizer":
                self._tokenizer(manifest, file)
            elif file.kind == "index" and file.number not in shards:
                self._index(manifest, file)
            elif file.kind == "rejected":
                wanted = manifest.inputs[file.number].rejected_sha256
                if wanted is not None and file_sha256(self.storage, file.path) == wanted:
                    file.why = AS_BUILT
        rest = [file for file in todo if not file.outcome and not file.why]
        if not rest:
            return
        tokenizer = self._tokenizer_bytes(manifest)
        if tokenizer is None:
            for file in rest:
                file.why = f"{TOKENIZER} is damaged; give the original with --tokenizer FILE"
            return
        ShardRepair(self.options, self.storage, STAGING, manifest, tokenizer).run(rest)

    def _surplus(self, file: Condemned) -> None:
        if self.options.remove_surplus:
            self.storage.remove(file.path)
            file.outcome, file.why = "removed", "the manifest does not name it"
        else:
            file.why = "the manifest does not name it and no reader reads it; --remove-surplus removes it"

    def _tokenizer(self, manifest: Manifest, file: Condemned) -> None:
        found = find_tokenizer(self.storage, self.options, manifest.tokenizer_sha256)
        if found is None:
            file.why = "no copy of the build's tokenizer was found; give the original with --tokenizer FILE"
            return
        data, where = found
        try:
            self.storage.write_bytes(TOKENIZER, data)
        except OSError as error:
            file.why = refusal(error, TOKENIZER)
        else:
            file.repaired(f"from {where}")

    def _tokenizer_bytes(self, manifest: Manifest) -> bytes | None:
        found = find_tokenizer(self.storage, self.options, manifest.tokenizer_sha256)
        return found[0] if found is not None else None

    def _index(self, manifest: Manifest, file: Condemned) -> None:
        """Tries the shard alone; where that gives other bytes, runs and inputs come next."""
        shard = manifest.shards[file.number]
        data = self._tokenizer_bytes(manifest)
        if data is None:
            return
        with contextlib.suppress(PileshardError, OSError):
            tokenizer = load(data, eod=manifest.eod_token, special_tokens="text", engine="reference")
            index = index_of_shard(self.storage, manifest, shard, tokenizer)
            if hashlib.sha256(index).hexdigest() != shard.index_sha256:
                return
            staging = Storage(f"{self.storage.url}/{STAGING}", self.options.storage_options)
            staging.write_bytes(file.path, index)
            install(staging, self.storage, file.path, shard.index_sha256)
            file.repaired("from its shard")


def find_tokenizer(storage: Storage, options: RepairOptions, sha256: str) -> tuple[bytes, str] | None:
    """The tokenizer's bytes, and where they were found.

    Raises:
      OptionError: --tokenizer names another file.
    """
    if options.tokenizer is not None:
        try:
            with open_url(options.tokenizer, options.storage_options) as file:
                data = bytes(file.read())
        except (OSError, ValueError, ImportError) as error:
            raise OptionError(f"--tokenizer {options.tokenizer}: {error}") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise OptionError(f"--tokenizer {options.tokenizer}: is not the file of the build")
        return data, options.tokenizer
    for path in (TOKENIZER, f"{BUILD}/tokenizer.json"):
        with contextlib.suppress(OSError, DatasetError):
            data = storage.read_bytes(path)
            if hashlib.sha256(data).hexdigest() == sha256:
                return data, path
    return None


def _is_of_record(storage: Storage, manifest: Manifest) -> bool:
    """Whether the manifest is of the build that made this dataset, as far as its record is there."""
    try:
        record = msgspec.json.decode(storage.read_bytes(JOB), type=JobRecord)
    except (OSError, msgspec.DecodeError):
        return True
    urls = [(entry.url, entry.size) for entry in record.inputs]
    return (record.tokenizer_sha256, record.options, urls) == (
        manifest.tokenizer_sha256,
        manifest.options,
        [(entry.url, entry.size) for entry in manifest.inputs],
    )


if __name__ == "__main__":
    import sys

    from pileshard.cli import entry

    sys.argv.insert(1, "repair")
    entry()
