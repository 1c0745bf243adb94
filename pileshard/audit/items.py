"""The work items of an audit: a shard, an input or a part of it. Threads, processes and Beam's workers do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from pileshard.audit.file_checks import check_files, check_index_sha256
from pileshard.audit.input_checks import InputReading
from pileshard.audit.manifest_checks import well_named
from pileshard.audit.report import Fault, FaultKind, Level
from pileshard.audit.shard_checks import ShardReading
from pileshard.audit.tallies import Sample, Tally
from pileshard.errors import PileshardError
from pileshard.format.manifest import Manifest
from pileshard.format.storage import Storage
from pileshard.tokenize import Tokenizer, load


class ShardItem(msgspec.Struct, frozen=True, tag="shard"):
    """The shard at place `number` of the manifest's list."""

    number: int


class InputItem(msgspec.Struct, frozen=True, tag="input"):
    """Part `part` of `parts` of an input: its lines in groups of 1,024, dealt out in turn."""

    number: int
    part: int
    parts: int


AuditItem = ShardItem | InputItem


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What every item of an audit needs to be told."""

    url: str
    storage_options: dict[str, Any]
    level: Level
    sample: Sample


class ShardResult(msgspec.Struct, kw_only=True, tag="shard"):
    """What was found in a shard."""

    faults: list[Fault] = []
    documents: int = 0
    tokens: int = 0
    bytes_read: int = 0


class InputResult(msgspec.Struct, kw_only=True, tag="input"):
    """What was counted and found in an input, or in a part of it."""

    tally: Tally


ItemResult = ShardResult | InputResult


def plan_items(manifest: Manifest, level: Level, sample: Sample, workers: int) -> list[AuditItem]:
    """All items of an audit, in the order of the manifest.

    Where every document is tokenized again, which takes far longer than reading, an input is cut into parts so that
    all workers have some; else each one is read once.
    """
    # A path that does not follow from its shard's name is a fault of the manifest's and none of the dataset's.
    items: list[AuditItem] = [ShardItem(at) for at, shard in enumerate(manifest.shards) if well_named(shard)]
    if level != "deep":
        return items
    inputs = [number for number, entry in enumerate(manifest.inputs) if entry.skipped is None]
    parts = -(-workers // len(inputs)) if inputs and sample.everything else 1
    return items + [InputItem(number, part, parts) for number in inputs for part in range(parts)]


def item_bytes(manifest: Manifest, item: AuditItem, level: Level) -> int:
    """Bytes that an item reads."""
    if isinstance(item, InputItem):
        return manifest.inputs[item.number].size
    return manifest.shards[item.number].size if level != "quick" else 0


@dataclass
class Auditor:
    """Does items of one audit.

    Attributes:
      task: of the audit.
      manifest: of the dataset.
    """

    task: Task
    manifest: Manifest

    def __post_init__(self) -> None:
        self.storage = Storage(self.task.url, self.task.storage_options)

    def do(self, item: AuditItem, on_bytes: Callable[[int], None]) -> ItemResult:
        """Does one item."""
        return self._shard(item, on_bytes) if isinstance(item, ShardItem) else self._input(item, on_bytes)

    def _shard(self, item: ShardItem, on_bytes: Callable[[int], None]) -> ShardResult:
        shard = self.manifest.shards[item.number]
        faults, index = check_files(self.storage, shard)
        missing = {fault.path for fault in faults if fault.kind is FaultKind.MISSING_FILE}
        result = ShardResult(faults=faults)
        if self.task.level == "quick":
            return result

        def count(size: int) -> None:
            result.bytes_read += size
            on_bytes(size)

        index_faults = check_index_sha256(self.storage, shard) if shard.index_path not in missing else []
        result.faults += index_faults
        if shard.path not in missing:
            reading = ShardReading(self.storage, self.manifest, shard, index, count)
            found = reading.run()
            if index is not None and not index_faults and any(fault.kind is FaultKind.WRONG_SHA256 for fault in found):
                # The index is the build's and the shard is not: what they disagree on is the shard's fault alone.
                found = [fault for fault in found if fault.path == shard.path]
            result.faults += found
            result.documents, result.tokens = reading.documents, reading.tokens
        return result

    def _input(self, item: InputItem, on_bytes: Callable[[int], None]) -> InputResult:
        tokenizer = self._tokenizer()
        if tokenizer is None:
            return InputResult(tally=Tally(readable=False))
        reading = InputReading(
            self.storage,
            self.manifest,
            tokenizer,
            item.number,
            item.part,
            item.parts,
            self.task.sample,
            on_bytes,
        )
        return InputResult(tally=reading.run())

    def _tokenizer(self) -> Tokenizer | None:
        """The reference with the dataset's policy; None where the dataset's tokenizer cannot be used."""
        try:
            data = self.storage.read_bytes(self.manifest.tokenizer_path)
            return reference(data, self.manifest.eod_token, self.manifest.options.special_tokens)
        except (OSError, PileshardError):
            return None


@lru_cache(maxsize=2)
def reference(data: bytes, eod: str, special_tokens: Any) -> Tokenizer:
    """The reference tokenizer of a `tokenizer.json`, kept for the next one who asks.

    Raises:
      PileshardError: it is none.
    """
    return load(data, eod=eod, special_tokens=special_tokens, engine="reference")
