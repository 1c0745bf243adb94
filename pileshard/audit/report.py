"""What an audit found."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal

import msgspec

Level = Literal["quick", "full", "deep"]


#: Faults listed for one file, beside those of its hash and totals; one that is damaged all over needs no more.
MOST_FAULTS = 100


#: Inputs that a verdict names, at most; each has a fault of its own.
_NAMED = 3


class FaultKind(str, Enum):
    """Kinds of faults; a report's JSON names them by these words."""

    MANIFEST = "manifest"  # missing, unreadable, or against its schema
    MANIFEST_CHECKSUM = "manifest_checksum"  # its own hash or the dataset's id does not fit it
    ACCOUNT = "account"  # sums of inputs, sources and shards do not agree
    KEY_RANGE = "key_range"  # shards' ranges of keys do not tile, or a key lies outside its shard's
    REJECTED = "rejected"  # a list of rejected lines is damaged or does not agree with the account
    MISSING_FILE = "missing_file"
    SURPLUS_FILE = "surplus_file"
    UNREADABLE = "unreadable"
    WRONG_SIZE = "wrong_size"
    WRONG_SHA256 = "wrong_sha256"
    TOKENIZER = "tokenizer"  # the tokenizer does not give the manifest's vocabulary or end-of-document id
    FRAMING = "framing"  # a record's length is damaged or the shard is cut off
    CRC = "crc"  # a record's bytes are damaged
    RECORD = "record"  # a record is no Example of this format
    PARTS = "parts"  # parts of a document are missing, repeated or of a wrong size
    INDEX = "index"  # the index is damaged or does not describe the shard
    TOKEN_RANGE = "token_range"  # an id at or above the vocabulary's size
    END_OF_DOCUMENT = "end_of_document"  # missing at an end, or present elsewhere
    KEY_ORDER = "key_order"  # documents out of order, or one twice
    IDENTITY = "identity"  # documents lost, repeated or strange: the sum of identities is another
    TOTALS = "totals"  # records, documents, tokens or text bytes are not the manifest's
    INPUT = "input"  # an input is gone, damaged, or not the one that was read (level deep)
    TOKENS = "tokens"  # a document's ids are not those that the reference gives for its line (level deep)


#: Faults of a file's bytes: it is not the one that the manifest names.
OF_BYTES = {FaultKind.MISSING_FILE, FaultKind.UNREADABLE, FaultKind.WRONG_SIZE, FaultKind.WRONG_SHA256}

TO_BE_READ = "see to it that it can be read (permission, storage, what lies in its place), and verify again"

AS_BUILT = (
    "its bytes are those that the manifest names, so the fault was built in or forged: build into a new output, or "
    "restore the dataset from a copy"
)


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault.

    Attributes:
      kind: of fault.
      path: file below the dataset's root; of kind `input`, the input's URL.
      message: what is wrong.
      offset: byte in the file, where that can be told.
      input: URL of the document's input, where the fault is of one document (level deep).
      line: the document's line there.
      remedy: what to do.
    """

    kind: FaultKind
    path: str
    message: str
    offset: int | None = None
    input: str = ""
    line: int | None = None
    remedy: str = ""

    def __str__(self) -> str:
        where = f" at byte {self.offset:,}" if self.offset is not None else ""
        where += f" (line {self.line:,} of {self.input})" if self.line is not None else ""
        return f"{self.path}{where}: [{self.kind.value}] {self.message}"


class Report(msgspec.Struct, kw_only=True):
    """What `verify` found; `schemas/verify-report.schema.json` is the schema of its JSON.

    Attributes:
      report_version: of this form.
      url: the dataset's root.
      level: how much was checked.
      sound: whether no fault was found.
      faults: all that were found, in the order of the manifest; at most some hundred a file.
      dataset_id: from the manifest, "" if it is unreadable.
      shards: how many were checked.
      documents: counted in them (levels full and deep).
      tokens: counted in them (levels full and deep).
      bytes_read: of the shards (levels full and deep).
      inputs: how many were read again and compared (level deep).
      input_bytes: stored bytes of them.
      lines: lines of them.
      compared: documents of them whose tokens were made again by the reference and compared.
      unread: URLs of the others: gone, damaged, or not as they were when the build read them.
      seconds: taken.
    """

    report_version: Literal[1] = 1
    url: str
    level: Level
    sound: bool = False
    faults: list[Fault] = []
    dataset_id: str = ""
    shards: int = 0
    documents: int = 0
    tokens: int = 0
    bytes_read: int = 0
    inputs: int = 0
    input_bytes: int = 0
    lines: int = 0
    compared: int = 0
    unread: list[str] = []
    seconds: float = 0.0

    def to_json(self) -> bytes:
        """The report as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def text(self) -> str:
        """The report for a person: every fault in a line, then the verdict."""
        lines = []
        for fault in self.faults:
            told = fault.remedy if fault.remedy != _repair(self.url) else ""  # the last line says it
            lines.append(f"{fault} ({told})" if told else str(fault))
        if self.level != "quick":
            seen = f"{self.shards:,} shards, {self.documents:,} documents, {self.tokens:,} tokens"
            if self.level == "deep":
                seen += f"; {self._inputs()}"
        else:
            seen = f"{self.shards:,} shards (sizes and indexes alone; --level full reads every byte)"
        verdict = "sound" if self.sound else f"{len(self.faults):,} fault{'s' if len(self.faults) > 1 else ''}"
        lines.append(f"{self.url}: {verdict}: {seen} in {self.seconds:.1f} s")
        if any(fault.remedy == _repair(self.url) for fault in self.faults):
            command = f"`pileshard repair {shlex.quote(self.url)}`"
            lines.append(f"{command} rebuilds what is damaged from the inputs, to the same bytes")
        return "\n".join(lines)

    def _inputs(self) -> str:
        """What was compared of the inputs, and which could not be."""
        of = f"{self.inputs:,} of {self.inputs + len(self.unread):,}" if self.unread else f"{self.inputs:,}"
        told = f"{self.lines:,} lines of {of} inputs, {self.compared:,} documents tokenized again"
        if self.unread:
            more = f" and {len(self.unread) - _NAMED:,} more" if len(self.unread) > _NAMED else ""
            told += f" (could not be compared: {', '.join(self.unread[:_NAMED])}{more})"
        return told


def with_remedies(faults: Sequence[Fault], url: str, beside: Mapping[str, str]) -> list[Fault]:
    """The faults, each with what to do about it.

    Args:
      faults: of one audit.
      url: the dataset's root.
      beside: path of the shard that an index describes, by the index's path.
    """
    damaged = {fault.path for fault in faults if fault.kind in OF_BYTES}

    def remedy(fault: Fault) -> str:
        if fault.remedy:
            return fault.remedy
        if fault.kind is FaultKind.UNREADABLE:
            return TO_BE_READ
        if fault.kind is FaultKind.INPUT:
            return "restore it as it was when it was read, or build into a new output from what it is now"
        repairable = fault.kind is FaultKind.REJECTED or {fault.path, beside.get(fault.path)} & damaged
        return _repair(url) if repairable else AS_BUILT

    return [msgspec.structs.replace(fault, remedy=remedy(fault)) for fault in faults]


def _repair(url: str) -> str:
    return f"run `pileshard repair {shlex.quote(url)}`"
