"""What a worker is told, the record of a job, and the receipts of its items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import msgspec

from beam_jobs.inputs import InputFile
from beam_jobs.memory import DEFAULT_BYTES
from beam_jobs.options import RETRY_SECONDS, EngineName, OnBadInput
from beam_jobs.reads import side_by_side
from pileshard.errors import BuildError
from pileshard.format.manifest import Options
from pileshard.format.paths import BUILD, MANIFEST
from pileshard.format.retry import Retries, Retry
from pileshard.format.storage import Storage
from pileshard.ingest.count import Counted
from pileshard.ingest.parts import Entry, Seam

JOB = f"{BUILD}/job.json"
RECEIPTS = f"{BUILD}/receipts"
FAILURES = f"{BUILD}/failures"
PROGRESS = f"{BUILD}/progress"
STAGE = f"{BUILD}/stage.json"
SEEN = f"{BUILD}/seen.json"
REJECTED_PARTS = f"{BUILD}/rejected"
JOB_TOKENIZER = f"{BUILD}/tokenizer.json"
GROUPS = f"{BUILD}/groups"
GATHER = f"{BUILD}/gather"

_T = TypeVar("_T")


#: Version of `_build/job.json`. It is the memory of one release's build, so no other version is read.
JOB_VERSION = 2


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`_build/job.json`: what this output is being built from; the next command on it is held against that."""

    version: int = JOB_VERSION
    inputs: list[InputFile]
    tokenizer_sha256: str
    eod: str | None
    options: Options

    def fingerprint(self) -> str:
        """Names everything that the shards' bytes depend on, but for the inputs' bytes themselves.

        Sizes are not in it: an input that was cut off and is copied anew belongs to the same build (`changes.py`).
        """
        named = msgspec.structs.replace(
            self, inputs=[msgspec.structs.replace(entry, size=0, version="") for entry in self.inputs]
        )
        return hashlib.sha256(msgspec.json.encode(named, order="deterministic")).hexdigest()[:16]


def read_job(storage: Storage, remedy: str = "build into a new output") -> JobRecord:
    """The record of the build that an output holds.

    Args:
      storage: the output.
      remedy: what to do where the record is damaged.

    Raises:
      FileNotFoundError: there is none.
      BuildError: it is damaged, or another release's.
    """
    name = storage.url_of(JOB)
    data = storage.read_bytes(JOB)
    try:
        version = msgspec.json.decode(data, type=_Head).version
        if version != JOB_VERSION:
            raise BuildError(
                f"{name}: is of version {version!r}, and this release reads version {JOB_VERSION}: use the release "
                "that began the build, or build into a new output"
            )
        return msgspec.json.decode(data, type=JobRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BuildError(f"{name}: damaged ({error}); {remedy}") from None


class _Head(msgspec.Struct):
    version: Any = JOB_VERSION


class KeyRange(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of one source and split with key_first <= key <= key_last: those of a shard."""

    source: str
    split: Literal["train", "validation"]
    key_first: int
    key_last: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that an item needs: sent to the workers, and nothing of the submitting process beside it.

    Where `only` is given (a repair), no other documents are tokenized; all lines are counted still. `beat_seconds` lie
    between two heartbeats of an item at least.
    """

    record: JobRecord
    fingerprint: str
    output: str
    temp_url: str
    engine: EngineName
    on_bad_input: OnBadInput
    run_bytes: int
    storage_options: dict[str, Any]
    only: list[KeyRange] | None = None
    retry_seconds: float = RETRY_SECONDS
    worker_memory: int = DEFAULT_BYTES
    beat_seconds: float = 0.0

    def storage(self, retries: Retries | None = None) -> Storage:
        """The dataset's root; what is tried again there is counted in `retries`."""
        return Storage(self.output, self.storage_options, retry=self.retry, retries=retries)

    def temp_storage(self, retries: Retries | None = None) -> Storage:
        """Where the runs lie. Half-written ones lie in a directory of this job: others may share the place."""
        temp_dir = f"{runs_dir(self.fingerprint)}/tmp"
        return Storage(self.temp_url, self.storage_options, retry=self.retry, retries=retries, temp_dir=temp_dir)

    @property
    def retry(self) -> Retry:
        """How often and how long storage is tried where a fault may pass."""
        return Retry.within(self.retry_seconds)


class TokenizeItem(msgspec.Struct, frozen=True, kw_only=True, tag="tokenize"):
    """Part `part` of `parts` of an input: the lines that begin in the text of a range of its stored bytes.

    Attributes:
      input: its number.
      part: from 0.
      parts: how many there are.
      engine: of the tokenizer.
      begin: first stored byte of the range.
      end: the stored byte after it; None for the last part, which proves that the input ends.
      entry: where the range begins at a frame whose place among the lines is known.
      input_sha256: of the whole input, where that is known before.
      state: of the input when the driver looked (`InputFile.state`): a receipt of what a file was before is not found
        for what it is now.
    """

    input: int
    part: int
    parts: int
    engine: EngineName
    begin: int = 0
    end: int | None = None
    entry: Entry | None = None
    input_sha256: str = ""
    state: str = ""

    @property
    def name(self) -> str:
        """Name of the item in files and messages."""
        entered = "-entered" if self.entry is not None else ""
        forced = "-reference" if self.engine == "reference" else ""
        return f"tokenize-{self.input:05d}-{self.part:03d}-of-{self.parts:03d}{entered}{forced}"


class MergeItem(msgspec.Struct, frozen=True, kw_only=True, tag="merge"):
    """A shard to be merged: the keys key_first <= key <= key_last of one group, of inputs whose content has a hash."""

    group: int
    source: str
    split: Literal["train", "validation"]
    number: int
    count: int
    key_first: int
    key_last: int
    content: str = ""

    @property
    def name(self) -> str:
        """Name of the item in files and messages."""
        return f"merge-{self.group:05d}-{self.number:05d}-of-{self.count:05d}"


class GatherItem(msgspec.Struct, frozen=True, kw_only=True, tag="gather"):
    """A batch of runs, and consecutive blocks of keys, of a plan to gather; size in bytes, about."""

    plan: str
    batch: int
    batches: int
    first: int
    last: int
    size: int

    @property
    def name(self) -> str:
        """Name of the item in files and messages."""
        return f"gather-{self.batch:05d}-of-{self.batches:05d}-{self.first:05d}"


class CountItem(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """A range of an input's stored bytes whose text is counted, so that a part can begin there; the input's state."""

    input: int
    part: int
    parts: int
    begin: int
    end: int
    container: str
    state: str = ""

    @property
    def name(self) -> str:
        """Name of the item in files and messages."""
        return f"count-{self.input:05d}-{self.part:03d}-of-{self.parts:03d}"


class HashItem(msgspec.Struct, frozen=True, kw_only=True, tag="hash"):
    """An input whose stored bytes are hashed, whole and between the cuts, while others count their text; its state."""

    input: int
    cuts: tuple[int, ...]
    state: str = ""

    @property
    def name(self) -> str:
        """Name of the item in files and messages."""
        return f"hash-{self.input:05d}-{len(self.cuts) - 1:03d}"


Item = TokenizeItem | MergeItem | GatherItem | CountItem | HashItem


class RunGroup(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where the documents of one source and split lie in a run; offsets in bytes from the run's begin."""

    source: str
    split: str
    documents: int
    tokens: int
    text_bytes: int
    tokens_at: int
    rows_at: int
    buckets_at: int
    buckets: int


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run: its path below the temporary URL, its size, and its groups."""

    path: str
    size: int
    groups: list[RunGroup]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How documents and tokens of all runs of an item are spread over the keys, in one file: a plan reads one an item.

    Attributes:
      path: below the temporary URL: bucket tables as in a run, one a group.
      groups: source, split and number of buckets of each.
    """

    path: str
    groups: list[tuple[str, str, int]]


class TokenizeReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenize item did: the account of its lines, its runs, and the seams to the parts before and after it."""

    item: TokenizeItem
    input_size: int
    input_sha256: str
    begin: Seam | None = None
    end: Seam | None = None
    lines: int = 0
    accepted: int = 0
    blank: int = 0
    rejected: dict[str, int] = {}
    tokens: int = 0
    text_bytes: int = 0
    identity_sum: int = 0
    runs: list[RunEntry] = []
    spread: Spread | None = None
    rejected_path: str | None = None
    engine: str = ""
    fallback: str | None = None
    mismatch: str | None = None
    skipped: str | None = None
    seconds: float = 0.0
    began: float = 0.0
    worker: str = ""
    retries: dict[str, int] = {}


class CountReceipt(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """What a count item found, or why the input cannot be entered there; retries by fault."""

    item: CountItem
    counted: Counted | None
    unfit: str | None = None
    seconds: float = 0.0
    began: float = 0.0
    worker: str = ""
    retries: dict[str, int] = {}


class HashReceipt(msgspec.Struct, frozen=True, kw_only=True, tag="hash"):
    """The hashes of an input: its sha256, that of each range (xxh3), and its size; or why there are none."""

    item: HashItem
    size: int
    sha256: str
    digests: list[str]
    unfit: str | None = None
    seconds: float = 0.0
    began: float = 0.0
    worker: str = ""
    retries: dict[str, int] = {}


class GatherReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a gather item did: its runs, each with the number of its block, and retries by fault."""

    item: GatherItem
    runs: list[tuple[int, RunEntry]]
    documents: int
    seconds: float = 0.0
    began: float = 0.0
    worker: str = ""
    retries: dict[str, int] = {}


class MergeReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a merge item did: the shard's entry in the manifest, what deduplication dropped, and retries by fault."""

    item: MergeItem
    shard: dict[str, Any]
    duplicates: dict[str, int] = {}
    duplicate_tokens: int = 0
    duplicate_text_bytes: int = 0
    duplicates_identity_sum: int = 0
    seconds: float = 0.0
    began: float = 0.0
    worker: str = ""
    retries: dict[str, int] = {}


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item failed, left for the driver: engines do not carry an error's text whole."""

    item: str
    kind: str
    message: str


def runs_dir(fingerprint: str) -> str:
    """Where a job's runs lie below the temporary URL."""
    return f"{BUILD}/runs-{fingerprint}"


def receipt_path(job_fingerprint: str, item: Item) -> str:
    """Where an item's receipt lies. Its name holds the fingerprint: a receipt of another job is never taken for it."""
    digest = hashlib.sha256(job_fingerprint.encode() + msgspec.json.encode(item, order="deterministic")).hexdigest()
    return f"{RECEIPTS}/{item.name}-{digest[:12]}.json"


def check_not_overtaken(storage: Storage, item: Item) -> None:
    """Stops an attempt at an item that slept while another did it and the build was finished.

    Raises:
      BuildError: there is a manifest.
    """
    if storage.exists(MANIFEST):
        raise BuildError(f"{item.name}: the dataset was finished by another attempt in the meantime; nothing is lost")


def receipts_of_input(stage: Literal["tokenize", "count", "hash"], number: int) -> str:
    """How the paths of a stage's receipts of an input begin."""
    return f"{RECEIPTS}/{stage}-{number:05d}-"


def forget_counts(storage: Storage, number: int) -> None:
    """Removes the receipts of what was counted of an input, so that it is counted anew."""
    of_input = (receipts_of_input("count", number), receipts_of_input("hash", number))
    for path in storage.files(RECEIPTS):
        if path.startswith(of_input):
            storage.remove(path)


def read_receipt(storage: Storage, path: str, kind: type[_T]) -> _T | None:
    """A receipt, or None where the item is not done.

    Raises:
      BuildError: the file is there and is no receipt.
    """
    try:
        data = storage.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BuildError(
            f"{storage.url_of(path)}: not a receipt ({error}); remove it and run the command again"
        ) from None


def write_json(storage: Storage, path: str, value: Any) -> None:
    """Writes a value as JSON, atomically."""
    storage.write_bytes(path, msgspec.json.encode(value, order="deterministic"))


def finished(storage: Storage, fingerprint: str, items: list[Any], kind: type[_T]) -> Iterator[tuple[Any, _T | None]]:
    """Each item with its receipt, or with None."""
    present = set(storage.files(RECEIPTS))

    def read(item: Any) -> _T | None:
        path = receipt_path(fingerprint, item)
        return read_receipt(storage, path, kind) if path in present else None

    yield from zip(items, side_by_side(read, items), strict=True)
