"""What an audit's faults condemn: which files are to be made again, and which cannot be by anyone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pileshard.audit.framing import read_batches
from pileshard.audit.heads import LONGEST_HEAD, parse_heads
from pileshard.audit.report import AS_BUILT, OF_BYTES, Fault, FaultKind, Report
from pileshard.audit.tables import table
from pileshard.errors import DatasetError
from pileshard.format.identity import document_keys, text_keys
from pileshard.format.index import make_index
from pileshard.format.manifest import Manifest, ShardEntry
from pileshard.format.paths import MANIFEST, TOKENIZER
from pileshard.format.record import RECORD_TOKENS
from pileshard.format.storage import Storage
from pileshard.tokenize import Tokenizer

FileKind = Literal["manifest", "tokenizer", "shard", "index", "rejected", "surplus"]

_READ_BYTES = 8 << 20


class Condemned(msgspec.Struct):
    """A file with faults, and what became of it.

    Attributes:
      path: below the dataset's root.
      kind: of file.
      faults: kinds of its faults.
      number: of the shard or input in the manifest's list.
      outcome: "repaired", "removed", "follows" (its faults were another file's), or "" as long as it is not.
      why: it is not repaired, or by what it was.
    """

    path: str
    kind: FileKind
    faults: list[FaultKind] = []
    number: int = -1
    outcome: Literal["", "repaired", "removed", "follows"] = ""
    why: str = ""

    def repaired(self, by: str) -> None:
        """Notes that the file is whole again."""
        self.outcome, self.why = "repaired", by


class RepairReport(msgspec.Struct, kw_only=True):
    """What `repair` did; `schemas/repair-report.schema.json` is the schema of its JSON.

    Attributes:
      repair_version: of this form.
      url: the dataset's root.
      sound: whether no fault is left.
      files: those that had faults.
      before: what was found at first.
      after: what is wrong still, or new.
      seconds: taken.
    """

    repair_version: Literal[1] = 1
    url: str
    sound: bool
    files: list[Condemned]
    before: Report
    after: list[Fault]
    seconds: float = 0.0

    def to_json(self) -> bytes:
        """The report as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def text(self) -> str:
        """A table for a person, then the verdict."""
        lines = []
        if self.files:
            rows = [
                [file.path, ", ".join(dict.fromkeys(kind.value for kind in file.faults)), *_state(file)]
                for file in self.files
            ]
            lines.append(table(["file", "fault", "state", "how, or why not"], rows))
        if not self.sound:
            lines += [str(fault) for fault in self.after]
        repaired = sum(file.outcome == "repaired" for file in self.files)
        verdict = "sound" if self.sound else "not sound"
        done = f"{repaired} of {len(self.files)} files repaired" if self.files else "nothing to repair"
        lines.append(f"{self.url}: {verdict}: {done} in {self.seconds:.1f} s")
        return "\n".join(lines)


def _state(file: Condemned) -> tuple[str, str]:
    words = {"": "not repaired", "repaired": "repaired", "removed": "removed", "follows": "sound"}
    return words[file.outcome], file.why


def condemn(manifest: Manifest | None, faults: Sequence[Fault]) -> list[Condemned]:
    """The files that faults are about, each once, in the order of their first faults.

    Args:
      manifest: of the dataset, None where it cannot be read.
      faults: of a full audit.
    """
    kinds: dict[str, tuple[FileKind, int]] = {MANIFEST: ("manifest", -1), TOKENIZER: ("tokenizer", -1)}
    if manifest is not None:
        for number, shard in enumerate(manifest.shards):
            kinds[shard.path], kinds[shard.index_path] = ("shard", number), ("index", number)
        for number, entry in enumerate(manifest.inputs):
            if entry.rejected_path is not None:
                kinds[entry.rejected_path] = ("rejected", number)
    files: dict[str, Condemned] = {}
    for fault in faults:
        kind, number = kinds.get(fault.path, ("surplus", -1))
        if fault.kind is FaultKind.SURPLUS_FILE:
            kind, number = "surplus", -1
        files.setdefault(fault.path, Condemned(fault.path, kind, number=number)).faults.append(fault.kind)
    damaged = {path for path, file in files.items() if OF_BYTES & set(file.faults)}
    for file in files.values():
        beside = manifest.shards[file.number].path if file.kind == "index" and manifest is not None else ""
        if file.path not in damaged and beside in damaged:
            file.outcome, file.why = "follows", "only the shard beside it is damaged"
        elif file.kind in ("shard", "index", "tokenizer") and file.path not in damaged:
            file.why = AS_BUILT
    return list(files.values())


def file_sha256(storage: Storage, path: str) -> str:
    """sha256 of a file, "" where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with storage.open(path) as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except (OSError, DatasetError):
        return ""
    return digest.hexdigest()


def is_whole(storage: Storage, path: str, token_bytes: int) -> bool:
    """Whether a shard's framing and CRCs hold to its end: no damage, whatever it is a shard of."""
    faults: list[int] = []
    try:
        with storage.open(path) as file:
            longest = LONGEST_HEAD + RECORD_TOKENS * token_bytes
            for _ in read_batches(file, longest, lambda _: None, lambda *fault: faults.append(fault[2])):
                pass
    except (OSError, DatasetError):
        return False
    return not faults


def index_of_shard(storage: Storage, manifest: Manifest, shard: ShardEntry, tokenizer: Tokenizer) -> bytes:
    """The index of a sound shard, from the shard alone.

    The bytes of a text are not in the shard; where the tokenizer loses nothing, decoding gives the text again, and its
    bytes and (with exact deduplication) its key. Whether it does is told by the index's sha256.

    Raises:
      DatasetError: the shard is not sound.
    """
    dtype = manifest.token_dtype
    exact = manifest.options.dedup == "exact"
    offsets, tokens, text_bytes = [0], [0], []
    keys: list[int] = []
    pieces: list[npt.NDArray[np.generic]] = []

    def close() -> None:
        """Ends the document in `pieces`."""
        if not pieces:
            return
        text = tokenizer.decode(np.concatenate(pieces)[:-1].tolist()).encode()
        text_bytes.extend([len(text), *[0] * (len(pieces) - 1)])
        if exact:
            keys.extend([int(text_keys(manifest.options.seed, [text])[0][0])] * len(pieces))
        pieces.clear()

    for offset, example, ids in _records(storage, shard, np.dtype(dtype)):
        number, line, part = example
        if part == 0:
            close()
        pieces.append(ids)
        offsets.append(offset)
        tokens.append(tokens[-1] + len(ids))
        if not exact:
            keys.append(int(document_keys(manifest.options.seed, number, np.array([line]))[0]))
    close()
    return make_index(tokens, offsets, text_bytes, keys).to_bytes()


def _records(
    storage: Storage, shard: ShardEntry, dtype: np.dtype[np.generic]
) -> Iterator[tuple[int, tuple[int, int, int], npt.NDArray[np.generic]]]:
    """Each record's end in the file, its input, line and part, and its ids."""

    def fault(kind: FaultKind, message: str, offset: int) -> None:
        raise DatasetError(f"{storage.url_of(shard.path)}: {message} at byte {offset:,}")

    with storage.open(shard.path) as file:
        for batch in read_batches(file, LONGEST_HEAD + RECORD_TOKENS * dtype.itemsize, lambda _: None, fault):
            heads = parse_heads(batch.data, batch.starts, batch.ends)
            for at in range(len(batch.starts)):
                if not heads.good[at]:
                    fault(FaultKind.RECORD, heads.why[at], int(batch.offsets[at]))
                begin, end = int(batch.starts[at] + heads.tokens_at[at]), int(batch.ends[at])
                ids = np.frombuffer(batch.data[begin:end].tobytes(), dtype=dtype)
                example = (int(heads.input[at]), int(heads.line[at]), int(heads.part[at]))
                yield batch.base + end + 4, example, ids
