"""Checks of an input against the shards (level deep): every line's account, and the tokens of chosen documents.

An input is one compressed stream, so it is read whole whatever the sample. Hence all its lines are parsed by the
build's rules and counted, and the list of rejected lines is held against them; what the sample chooses is which
documents the reference tokenizes again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pileshard.audit.lookup import Documents, Group, StoredDocument
from pileshard.audit.report import Fault, FaultKind
from pileshard.errors import InputError, PileshardError
from pileshard.format.identity import (
    U64,
    document_keys,
    hex64,
    identity_hashes,
    mix64,
    mix64_int,
    split_hashes,
    sum64,
    text_keys,
)
from pileshard.format.index import HEADER_BYTES
from pileshard.format.manifest import InputEntry, Manifest, ShardEntry
from pileshard.format.rejected import RejectedLine
from pileshard.format.storage import Storage, open_filesystem
from pileshard.ingest import LINES_PER_BLOCK, LineBlock, Reason, line_blocks, parse_lines
from pileshard.tokenize import Tokenizer

#: Faults listed for one input's documents, and for its rejected lines.
MOST_FAULTS = 100

_MASK = (1 << 64) - 1


class Tally(msgspec.Struct, kw_only=True):
    """What a reading of an input, or of a part of it, counted.

    Attributes:
      input_bytes: stored bytes read.
      sha256: of them.
      lines: in the input, or the part.
      accepted: of them.
      blank: of them.
      rejected: of them, by reason.
      text_bytes: of the accepted.
      identity_sum: of the accepted.
      compared: documents whose tokens were compared.
      kept: of those, the ones that the shards hold as themselves and not as an equal text before them.
      faults: found.
      readable: whether the input was read to its end.
    """

    input_bytes: int = 0
    sha256: str = ""
    lines: int = 0
    accepted: int = 0
    blank: int = 0
    rejected: dict[str, int] = {}
    text_bytes: int = 0
    identity_sum: int = 0
    compared: int = 0
    kept: int = 0
    faults: list[Fault] = []
    readable: bool = True


class Sample(msgspec.Struct, frozen=True):
    """Which documents are tokenized again: those of which a hash of the identity is below a limit.

    The choice depends on the identities and the seed alone, so that it is the same however the work is spread, and
    nothing is held in memory for it.
    """

    limit: int
    seed: int

    @staticmethod
    def of(count: int | None, accepted: int, seed: int) -> Sample:
        """About `count` of so many documents; all where it is None."""
        everything = count is None or count >= accepted
        return Sample(_MASK if everything or count is None else (count << 64) // max(1, accepted), seed)

    @property
    def everything(self) -> bool:
        """Whether no document is left out."""
        return self.limit == _MASK

    @property
    def share(self) -> float:
        """About which part of the documents is chosen, 0 to 1."""
        return self.limit / _MASK

    def choose(self, identities: U64) -> npt.NDArray[np.int64]:
        """Positions of the chosen ones."""
        if self.everything:
            return np.arange(len(identities))
        return np.flatnonzero(mix64(identities ^ np.uint64(mix64_int(self.seed))) < np.uint64(self.limit))


class InputReading:
    """Reads an input once, or the lines of part `part` of `parts`.

    Args:
      storage: the dataset's root.
      manifest: of the dataset.
      tokenizer: the reference, with the dataset's policy for special tokens.
      number: of the input.
      part: of it.
      parts: how many there are.
      sample: which documents are tokenized again.
      on_bytes: told of the stored bytes read.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        tokenizer: Tokenizer,
        number: int,
        part: int,
        parts: int,
        sample: Sample,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._storage = storage
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._number = number
        self._entry: InputEntry = manifest.inputs[number]
        self._part = part
        self._parts = parts
        self._sample = sample
        self._on_bytes = on_bytes
        self._documents = Documents(storage, manifest)
        self._rejected: Counter[str] = Counter()
        self._faults_in_list = 0
        self.tally = Tally(faults=[])

    def run(self) -> Tally:
        """Reads and checks; what is wrong with the input itself is a fault of kind `input`."""
        try:
            self._run()
        except FileNotFoundError:
            self._unreadable("is not there any more")
        except InputError as error:
            self._unreadable(error.fault, error.offset)
        except (OSError, ImportError, ValueError) as error:
            self._unreadable(f"cannot be read ({error})")
        self.tally.rejected = dict(sorted(self._rejected.items()))
        return self.tally

    def _unreadable(self, message: str, offset: int | None = None) -> None:
        self.tally.readable = False
        self.tally.faults.append(Fault(kind=FaultKind.INPUT, path=self._entry.url, message=message, offset=offset))

    def _run(self) -> None:
        entry, tally, options = self._entry, self.tally, self._manifest.options
        text_path, source_path = tuple(options.text_key.split(".")), tuple(options.source_key.split("."))
        fs, path = open_filesystem(entry.url, self._storage.options)
        size = fs.info(path)["size"]
        if size is not None and size != entry.size:
            return self._unreadable(f"has {size:,} bytes, the build read {entry.size:,}")
        digest = hashlib.sha256()

        def on_bytes(chunk: bytes) -> None:
            digest.update(chunk)
            tally.input_bytes += len(chunk)
            self._on_bytes(len(chunk))

        listed = self._listed()
        with fs.open(path, "rb") as raw:
            for block in line_blocks(raw, entry.url, on_bytes=on_bytes):
                if block.group % self._parts == self._part:
                    self._take(block, text_path, source_path, listed)
        tally.sha256 = digest.hexdigest()
        if tally.sha256 != entry.sha256:
            return self._unreadable("has other bytes than the build read")
        if next(listed, None) is not None:
            self._fault_in_list("lists lines after the last one that is rejected")
        return None

    def _take(
        self, block: LineBlock, text_path: tuple[str, ...], source_path: tuple[str, ...], listed: Iterator[RejectedLine]
    ) -> None:
        parsed = parse_lines(block, text_path, source_path)
        texts, sources, lines = parsed.texts, parsed.sources, parsed.lines
        rejected = [(r.line, r.offset, r.reason.value) for r in parsed.rejections]
        if self._manifest.options.special_tokens == "reject":
            special = [self._tokenizer.contains_special(text) for text in texts]
            if any(special):
                starts = block.offsets()
                word = Reason.SPECIAL_TOKEN.value
                refused = list(itertools.compress(lines, special))
                rejected += [(line, starts[line - block.first_line], word) for line in refused]
                kept = [at for at, bad in enumerate(special) if not bad]
                texts, sources, lines = (
                    [texts[at] for at in kept],
                    [sources[at] for at in kept],
                    [lines[at] for at in kept],
                )
        for found in sorted(rejected):
            self._rejected[found[2]] += 1
            self._check_listed(found, next(listed, None))
        tally = self.tally
        tally.lines += parsed.total
        tally.blank += parsed.blank
        tally.accepted += len(texts)
        tally.text_bytes += sum(map(len, texts))
        if not texts:
            return
        numbers = np.array(lines, dtype=np.int64)
        identities = identity_hashes(self._number, numbers)
        tally.identity_sum = (tally.identity_sum + sum64(identities)) & _MASK
        chosen = self._sample.choose(identities)
        if len(chosen):
            places = chosen.tolist()
            self._compare([texts[at] for at in places], [sources[at] for at in places], numbers[chosen])

    # Rejected lines

    def _listed(self) -> Iterator[RejectedLine]:
        """The entries of the input's list that are of this part, as far as it can be read."""
        path = self._entry.rejected_path
        if path is None:
            return
        decoder = msgspec.json.Decoder(RejectedLine)
        try:
            with self._storage.open(path) as file:
                for line in file:
                    entry = decoder.decode(line)
                    if (entry.line - 1) // LINES_PER_BLOCK % self._parts == self._part:
                        yield entry
        except (OSError, PileshardError, msgspec.DecodeError, UnicodeDecodeError):
            return  # the level `full` says what is wrong with the file

    def _check_listed(self, found: tuple[int, int, str], entry: RejectedLine | None) -> None:
        if entry is None or (entry.line, entry.offset, entry.reason) != found:
            line, offset, reason = found
            there = "nothing" if entry is None else f"line {entry.line:,} at byte {entry.offset:,} ({entry.reason})"
            self._fault_in_list(f"lists {there} where line {line:,} at byte {offset:,} ({reason}) is due", line)

    def _fault_in_list(self, message: str, line: int | None = None) -> None:
        self._faults_in_list += 1
        if self._faults_in_list == 1:  # those after it follow from it
            path = self._entry.rejected_path or "rejected"
            fault = Fault(kind=FaultKind.REJECTED, path=path, message=message, input=self._entry.url, line=line)
            self.tally.faults.append(fault)

    # Documents

    def _compare(self, texts: list[bytes], sources: list[str], lines: npt.NDArray[np.int64]) -> None:
        options = self._manifest.options
        ids, ends = self._tokenizer.encode_batch(texts, identity_hashes(self._number, lines))
        if options.dedup == "exact":
            keys, _ = text_keys(options.seed, texts)
        else:
            keys = document_keys(options.seed, self._number, lines)
        splits = ["train"] * len(texts)
        if options.validation > 0:
            limit = np.uint64(min(int(options.validation * 2**64), _MASK))
            splits = np.where(split_hashes(texts) < limit, "validation", "train").tolist()
        eod = np.array([self._manifest.eod_id], dtype=ids.dtype)
        begin = 0
        for at, end in enumerate(ends.tolist()):
            group = (sources[at], splits[at])
            wanted = np.concatenate([ids[begin:end], eod])
            begin = end
            self._compare_one(group, int(keys[at]), int(lines[at]), len(texts[at]), wanted)

    def _fault(self, kind: FaultKind, path: str, message: str, line: int, offset: int | None = None) -> None:
        if len(self.tally.faults) < MOST_FAULTS:
            self.tally.faults.append(
                Fault(kind=kind, path=path, message=message, offset=offset, input=self._entry.url, line=line)
            )

    def _compare_one(self, group: Group, key: int, line: int, text_bytes: int, wanted: npt.NDArray[Any]) -> None:
        [shard] = self._documents.shards_of(group, np.array([key], dtype=np.uint64))
        if shard is None:
            message = f"the line is of source {group[0]!r} ({group[1]}), which has no shard"
            return self._fault(FaultKind.IDENTITY, "manifest.json", message, line)
        found = self._documents.find(shard, key)
        if found is None:
            return None  # unreadable there; the level `full` says why
        self.tally.compared += 1
        if not found and self._came_before(group, key, (self._number, line), wanted):
            return None
        if not found:
            other = None
            if len(self.tally.faults) < MOST_FAULTS:
                other = self._documents.elsewhere(group, key)
            message = "the document is not in the shard of its source, split and key"
            message += f", but in {other.path}" if other is not None else ""
            return self._fault(FaultKind.IDENTITY, shard.path, message, line)
        mine = (self._number, line)
        stored = next((document for document in found if np.array_equal(document.tokens, wanted)), found[0])
        theirs = (stored.input, stored.line)
        if theirs != mine and (self._manifest.options.dedup == "none" or theirs > mine):
            message = f"holds line {theirs[1]:,} of input {theirs[0]:,} in the place of this document"
            return self._fault(FaultKind.IDENTITY, shard.path, message, line, stored.offset(0))
        self.tally.kept += theirs == mine
        self._compare_tokens(shard, stored, line, wanted)
        if stored.text_bytes != text_bytes:
            message = f"the text has {text_bytes:,} bytes, the index says {stored.text_bytes:,}"
            offset = HEADER_BYTES + 8 * (2 * self._documents.columns(shard) + stored.record)
            self._fault(FaultKind.INDEX, shard.index_path, message, line, offset)
        return None

    def _came_before(self, group: Group, key: int, mine: tuple[int, int], wanted: npt.NDArray[Any]) -> bool:
        """Whether exact deduplication dropped the document for an earlier one of another source."""
        if self._manifest.options.dedup != "exact":
            return False
        shard = self._documents.elsewhere(group, key)
        stored = (self._documents.find(shard, key) if shard is not None else None) or []
        return any((d.input, d.line) < mine and np.array_equal(d.tokens, wanted) for d in stored)

    def _compare_tokens(self, shard: ShardEntry, stored: StoredDocument, line: int, wanted: npt.NDArray[Any]) -> None:
        least = min(len(stored.tokens), len(wanted))
        differ = np.flatnonzero(stored.tokens[:least] != wanted[:least])
        if len(differ):
            at = int(differ[0])
            message = f"token {at:,} of the document is {stored.tokens[at]:,}, the reference gives {wanted[at]:,}"
        elif len(stored.tokens) != len(wanted):
            at = least - 1
            message = f"the document has {len(stored.tokens):,} tokens, the reference gives {len(wanted):,}"
        else:
            return
        self._fault(FaultKind.TOKENS, shard.path, message, line, stored.offset(at))


def check_tallies(manifest: Manifest, number: int, tallies: list[Tally], sample: Sample) -> Iterator[Fault]:
    """Yields the faults of one input, from the readings of all its parts, the account of its lines among them."""
    entry = manifest.inputs[number]
    if not all(tally.readable for tally in tallies):
        # What was compared with another input says nothing about the dataset.
        faults = [fault for tally in tallies for fault in tally.faults]
        yield from [fault for fault in faults if fault.kind is FaultKind.INPUT][:1]
        return
    for tally in tallies:
        yield from tally.faults
    rejected: Counter[str] = Counter()
    for tally in tallies:
        rejected.update(tally.rejected)
    found: dict[str, Any] = {
        name: sum(getattr(tally, name) for tally in tallies) for name in ("lines", "accepted", "blank", "text_bytes")
    }
    found["rejected"] = dict(sorted(rejected.items()))
    found["identity_sum"] = hex64(sum(tally.identity_sum for tally in tallies))
    compared = sum(tally.compared for tally in tallies)
    if sample.everything and compared == found["accepted"] and not any(tally.faults for tally in tallies):
        found["duplicates"] = compared - sum(tally.kept for tally in tallies)
    for name, value in found.items():
        wanted = cast(Any, getattr(entry, name))
        if value != wanted:
            message = f"{entry.url}: {name} is {value}, the manifest says {wanted}"
            yield Fault(kind=FaultKind.ACCOUNT, path="manifest.json", message=message, input=entry.url)
