"""`verify`: proves a dataset from its bytes, or names every fault."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from tqdm import tqdm

from pileshard.audit.file_checks import check_files, check_index_sha256
from pileshard.audit.manifest_checks import REBUILD, check_manifest, well_named
from pileshard.audit.rejected_checks import check_rejected
from pileshard.audit.report import Fault, FaultKind, Report
from pileshard.audit.shard_checks import ShardReading
from pileshard.errors import DatasetError, OptionError, PileshardError
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.paths import MANIFEST, REJECTED, SHARDS, TOKENIZER, rejected_names
from pileshard.format.storage import Storage

_log = logging.getLogger("pileshard.verify")

#: Shards are checked side by side: hashing and numpy leave Python's lock, and a remote store answers slowly.
_MOST_THREADS = 16
_LINE_SECONDS = 10


def verify(
    path: str,
    level: Literal["quick", "full"] = "full",
    storage_options: dict[str, Any] | None = None,
) -> Report:
    """Checks a dataset.

    Args:
      path: the dataset's root, any fsspec URL.
      level: `quick` reads the manifest and the indexes' headers and totals, and looks at every file's size; `full`
        reads every byte: hashes, record framing and CRCs, the index against the records, ids, ends of documents, order
        and range of keys, the account of documents, and the lists of rejected lines.
      storage_options: fsspec's.

    Returns:
      The report; `report.sound` says whether no fault was found. Memory is bounded by some
      MB and an index for each shard that is read at a time, at most 16.

    Raises:
      OptionError: an unknown level, or a URL of no known file system.
    """
    if level not in ("quick", "full"):
        raise OptionError(f"level {level!r} is none of quick, full")
    began = time.monotonic()
    storage = Storage(path, storage_options)
    try:
        _ = storage.fs
    except (ImportError, ValueError) as error:
        raise OptionError(f"{path}: {error}") from None
    report = Report(url=storage.url, level=level, faults=[])
    _Audit(storage, report).run()
    report.sound = not report.faults
    report.seconds = round(time.monotonic() - began, 3)
    return report


@dataclass
class _ShardResult:
    faults: list[Fault]
    documents: int = 0
    tokens: int = 0


class _Progress:
    """A bar on a terminal, else a line now and then; told of bytes by any thread."""

    def __init__(self, manifest: Manifest, report: Report) -> None:
        self._live = sys.stderr.isatty()
        self._report = report
        self._shards = len(manifest.shards)
        total = sum(shard.size for shard in manifest.shards) if report.level == "full" else None
        self._bar = tqdm(total=total, unit="B", unit_scale=True, desc="verify", disable=not self._live, file=sys.stderr)
        self._last_line = time.monotonic()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._report.bytes_read += count
            self._bar.update(count)
            if not self._live and time.monotonic() - self._last_line >= _LINE_SECONDS:
                self._last_line = time.monotonic()
                _log.info("verify: %d of %d shards", self._report.shards, self._shards)

    def close(self) -> None:
        self._bar.close()


class _Audit:
    def __init__(self, storage: Storage, report: Report) -> None:
        self.storage = storage
        self.report = report

    def run(self) -> None:
        manifest = self._manifest()
        if manifest is None:
            return
        self.report.dataset_id = manifest.dataset_id
        self._tokenizer(manifest)
        names = rejected_names([entry.url for entry in manifest.inputs])
        for entry, name in zip(manifest.inputs, names, strict=True):
            if entry.rejected_path == name:
                self.report.faults += check_rejected(self.storage, entry, read=self.report.level == "full")
        self._surplus(manifest)
        progress = _Progress(manifest, self.report)
        pool = ThreadPoolExecutor(min(_MOST_THREADS, max(4, os.cpu_count() or 1)))
        try:
            # A path that does not follow from its shard's name is a fault of the manifest's and none of the dataset's.
            named = [shard for shard in manifest.shards if well_named(shard)]
            for done in pool.map(lambda shard: self._shard(manifest, shard, progress.add), named):
                self.report.faults += done.faults
                self.report.documents += done.documents
                self.report.tokens += done.tokens
                self.report.shards += 1
        finally:
            pool.shutdown(cancel_futures=True)
            progress.close()

    def _shard(self, manifest: Manifest, shard: ShardEntry, on_bytes: Callable[[int], None]) -> _ShardResult:
        faults, index = check_files(self.storage, shard)
        missing = {fault.path for fault in faults if fault.kind is FaultKind.MISSING_FILE}
        result = _ShardResult(faults)
        if self.report.level != "full":
            return result
        if shard.index_path not in missing:
            result.faults += check_index_sha256(self.storage, shard)
        if shard.path not in missing:
            reading = ShardReading(self.storage, manifest, shard, index, on_bytes)
            result.faults += reading.run()
            result.documents, result.tokens = reading.documents, reading.tokens
        return result

    def _manifest(self) -> Manifest | None:
        try:
            manifest = Manifest.read(self.storage)
            data = self.storage.read_bytes(MANIFEST)
        except (DatasetError, OSError) as error:
            self.report.faults.append(Fault(kind=FaultKind.MANIFEST, path=MANIFEST, message=str(error), remedy=REBUILD))
            return None
        self.report.faults += check_manifest(manifest, data)
        return manifest

    def _tokenizer(self, manifest: Manifest) -> None:
        from pileshard.tokenize import load

        path = TOKENIZER

        def fault(kind: FaultKind, message: str) -> None:
            self.report.faults.append(Fault(kind=kind, path=path, message=message, remedy=REBUILD))

        try:
            data = self.storage.read_bytes(path)
        except FileNotFoundError:
            return fault(FaultKind.MISSING_FILE, "is not there")
        except OSError as error:
            return fault(FaultKind.UNREADABLE, str(error))
        if hashlib.sha256(data).hexdigest() != manifest.tokenizer_sha256:
            return fault(FaultKind.WRONG_SHA256, "its bytes are not those of the build")
        try:
            tokenizer = load(data, eod=manifest.eod_token, special_tokens="text", engine="reference")
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
                        remedy="remove it",
                    )
                )
