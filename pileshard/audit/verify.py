"""`verify`: proves a dataset from its bytes, or names every fault."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, get_args

from pileshard.audit.items import (
    AuditItem,
    InputItem,
    ItemResult,
    ShardItem,
    ShardResult,
    Task,
    item_bytes,
    plan_items,
    reference,
)
from pileshard.audit.manifest_checks import REMEDY, check_manifest
from pileshard.audit.pool import do_items, useful_workers
from pileshard.audit.processes import at_most
from pileshard.audit.progress import Progress
from pileshard.audit.rejected_checks import check_rejected
from pileshard.audit.report import TO_BE_READ, Fault, FaultKind, Level, Report, with_remedies
from pileshard.audit.tallies import Sample, Tally, check_tallies
from pileshard.errors import DatasetError, OptionError, PileshardError, StorageError
from pileshard.format.manifest import UPGRADE, Manifest
from pileshard.format.paths import MANIFEST, REJECTED, SHARDS, TOKENIZER, rejected_names
from pileshard.format.storage import Storage

#: Does items in their order: threads, processes or Beam.
Engine = Callable[[Task, Manifest, Sequence[AuditItem], Callable[[int], None]], Iterator[ItemResult]]


def verify(
    path: str,
    level: Level = "full",
    storage_options: dict[str, Any] | None = None,
    *,
    sample: int | Literal["all"] = 1000,
    sample_seed: int = 0,
    workers: int | Literal["auto"] | None = None,
    engine: Engine | None = None,
) -> Report:
    """Checks a dataset.

    Args:
      path: the dataset's root, any fsspec URL.
      level: `quick` reads the manifest and the indexes' headers and totals, and looks at every file's size; `full`
        reads every byte: hashes, record framing and CRCs, the index against the records, ids, ends of documents, order
        and range of keys, the account of documents, and the lists of rejected lines; `deep` reads the inputs again
        beside that: their hashes, every line's account, and for a sample of the documents the ids that the reference
        tokenizer gives, the place that source, split and key demand, and the text's bytes.
      storage_options: fsspec's, for the dataset and its inputs.
      sample: about how many documents the level `deep` tokenizes again (2.5 MB/s a core), or "all". An input is one
        compressed stream, so each is read whole, once, however few are chosen.
      sample_seed: another seed chooses other documents; the choice depends on nothing else.
      workers: processes over shards and inputs, at most four a core and one for each shard or input; None: threads of
        this process; "auto": a process for each core where the work takes longer than they take to start. As with all
        of Python's processes, a script that asks for them needs `if __name__ == "__main__"`.
      engine: what does the items instead of these (Beam).

    Returns:
      The report; `report.sound` says whether no fault was found. Memory is bounded by some
      MB and an index for each shard that is read at a time, at most 16, and a block of lines for each input.

    Raises:
      OptionError: an unknown level, or a URL of no known file system.
      PileshardError: a worker process died.
    """
    if level not in get_args(Level):
        raise OptionError(f"level {level!r} is none of {', '.join(get_args(Level))}")
    if sample != "all" and (not isinstance(sample, int) or sample < 1):
        raise OptionError(f'sample {sample!r} is neither a number of documents nor "all"')
    if isinstance(workers, int) and workers < 1:
        raise OptionError(f"workers {workers} is not a number of processes: 1 or more")
    storage = open_storage(path, storage_options)
    audit = Audit(storage, level, None if sample == "all" else sample, sample_seed, workers)
    return audit.run(engine)


def open_storage(path: str, storage_options: dict[str, Any] | None) -> Storage:
    """The storage of a dataset.

    Raises:
      OptionError: a URL of no known file system.
    """
    storage = Storage(path, storage_options)
    try:
        _ = storage.fs
    except (ImportError, ValueError) as error:
        raise OptionError(f"{path}: {error}") from None
    return storage


class Audit:
    """One run of `verify`.

    Args:
      storage: the dataset's root.
      level: how much is checked.
      sample: documents to tokenize again, None for all.
      sample_seed: of that choice.
      workers: processes, None or "auto".
      only: paths of shards and indexes; no other shards are read. None: all.
    """

    def __init__(
        self,
        storage: Storage,
        level: Level,
        sample: int | None = None,
        sample_seed: int = 0,
        workers: int | Literal["auto"] | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        self.storage = storage
        self.report = Report(url=storage.url, level=level, faults=[])
        self._sample = (sample, sample_seed)
        self._workers = workers
        self._only = only

    def run(self, engine: Engine | None = None) -> Report:
        """Checks everything and returns the report."""
        began = time.monotonic()
        manifest = self._manifest()
        if manifest is not None:
            self._check(manifest, engine)
        beside = {shard.index_path: shard.path for shard in manifest.shards} if manifest is not None else {}
        self.report.faults = with_remedies(self.report.faults, self.report.url, beside)
        self.report.sound = not self.report.faults
        self.report.seconds = round(time.monotonic() - began, 3)
        return self.report

    def _check(self, manifest: Manifest, engine: Engine | None) -> None:
        level = self.report.level
        self.report.dataset_id = manifest.dataset_id
        self._tokenizer(manifest)
        names = rejected_names([entry.url for entry in manifest.inputs])
        for entry, name in zip(manifest.inputs, names, strict=True):
            if entry.rejected_path == name:
                self.report.faults += check_rejected(self.storage, entry, read=level != "quick")
        self._surplus(manifest)
        count, seed = self._sample
        sample = Sample.of(count, sum(entry.accepted for entry in manifest.inputs), seed)
        task = Task(url=self.storage.url, storage_options=self.storage.options, level=level, sample=sample)
        workers = self._workers
        if workers == "auto":
            workers = useful_workers(self.storage, manifest, level, sample)
        elif workers is not None and engine is None:
            workers = at_most(workers)
        items = plan_items(manifest, level, sample, workers or 1)
        if self._only is not None:
            items = [item for item in items if self._wanted(manifest, item)]
        progress = Progress(sum(item_bytes(manifest, item, level) for item in items))
        try:
            if engine is not None:
                results = engine(task, manifest, items, progress.add)
            else:
                results = do_items(task, manifest, items, workers, progress.add)
            self._gather(manifest, sample, items, results)
        finally:
            progress.close()

    def _wanted(self, manifest: Manifest, item: AuditItem) -> bool:
        shard = manifest.shards[item.number]
        return isinstance(item, ShardItem) and bool({shard.path, shard.index_path} & set(self._only or ()))

    def _gather(
        self, manifest: Manifest, sample: Sample, items: Sequence[AuditItem], results: Iterator[ItemResult]
    ) -> None:
        """Adds up the items' results; those of an input when all its parts are there."""
        report = self.report
        tallies: list[Tally] = []
        for item, result in zip(items, results, strict=True):
            if isinstance(result, ShardResult):
                report.faults += result.faults
                report.documents += result.documents
                report.tokens += result.tokens
                report.bytes_read += result.bytes_read
                report.shards += 1
                continue
            tallies.append(result.tally)
            if isinstance(item, InputItem) and item.part + 1 == item.parts:
                report.faults += check_tallies(manifest, item.number, tallies, sample)
                self._count(manifest.inputs[item.number].url, tallies)
                tallies = []

    def _count(self, url: str, tallies: list[Tally]) -> None:
        """Adds an input to what was compared, or to what could not be: part of one says nothing."""
        report = self.report
        if not all(tally.readable for tally in tallies):
            report.unread.append(url)
            return
        report.inputs += 1
        report.input_bytes += max(tally.input_bytes for tally in tallies)
        report.lines += sum(tally.lines for tally in tallies)
        report.compared += sum(tally.compared for tally in tallies)

    def _manifest(self) -> Manifest | None:
        try:
            data = Manifest.read_bytes(self.storage)
            manifest = Manifest.from_bytes(data, self.storage.url_of(MANIFEST))
        except (DatasetError, OSError) as error:
            message, remedy = str(error), REMEDY
            if message.endswith(UPGRADE):
                remedy = UPGRADE
            elif isinstance(error, (StorageError, OSError)):
                remedy = TO_BE_READ
            elif message.endswith("(no dataset there)") and not self._holds_shards():
                remedy = "give the root of a dataset"
                if self._is_empty():
                    message = f"there is nothing at {self.storage.url}"
            self.report.faults.append(Fault(kind=FaultKind.MANIFEST, path=MANIFEST, message=message, remedy=remedy))
            return None
        self.report.faults += check_manifest(manifest, data)
        return manifest

    def _holds_shards(self) -> bool:
        try:
            return self.storage.exists("shards")
        except (DatasetError, OSError):
            return False

    def _is_empty(self) -> bool:
        try:
            return not self.storage.names()
        except (DatasetError, OSError):
            return False

    def _tokenizer(self, manifest: Manifest) -> None:
        path = TOKENIZER

        def fault(kind: FaultKind, message: str) -> None:
            self.report.faults.append(Fault(kind=kind, path=path, message=message, remedy=REMEDY))

        try:
            data = self.storage.read_bytes(path)
        except FileNotFoundError:
            return fault(FaultKind.MISSING_FILE, "is not there")
        except OSError as error:
            return fault(FaultKind.UNREADABLE, str(error))
        if hashlib.sha256(data).hexdigest() != manifest.tokenizer_sha256:
            return fault(FaultKind.WRONG_SHA256, "its bytes are not those of the build")
        try:
            tokenizer = reference(data, manifest.eod_token, "text")
        except PileshardError as error:
            return fault(FaultKind.TOKENIZER, str(error))
        found = (tokenizer.vocab_size, tokenizer.eod_id, tokenizer.dtype.itemsize)
        wanted = (manifest.vocab_size, manifest.eod_id, manifest.token_dtype.itemsize)
        if found != wanted:
            message = f"vocabulary, end-of-document id, bytes a token are {found}, the manifest says {wanted}"
            fault(FaultKind.TOKENIZER, message)
        return None

    def _surplus(self, manifest: Manifest) -> None:
        named = {path for shard in manifest.shards for path in (shard.path, shard.index_path)}
        named |= {entry.rejected_path for entry in manifest.inputs if entry.rejected_path is not None}
        for path in [*self.storage.files(SHARDS), *self.storage.files(REJECTED)]:
            if path not in named:
                self.report.faults.append(
                    Fault(
                        kind=FaultKind.SURPLUS_FILE,
                        path=path,
                        message="the manifest does not name it; no reader will read it",
                        remedy="remove it, or run `pileshard repair --remove-surplus`",
                    )
                )
