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

import msgspec
import numpy as np

from pileshard.audit.document_checks import DocumentChecks
from pileshard.audit.report import Fault, FaultKind
from pileshard.audit.tallies import Sample, Tally
from pileshard.errors import InputError, PileshardError
from pileshard.format.identity import identity_hashes, sum64
from pileshard.format.manifest import InputEntry, Manifest
from pileshard.format.rejected import RejectedLine
from pileshard.format.storage import Storage, open_filesystem
from pileshard.ingest import LINES_PER_BLOCK, LineBlock, Reason, line_blocks, parse_lines
from pileshard.tokenize import Tokenizer

_MASK = (1 << 64) - 1


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
        self._rejected: Counter[str] = Counter()
        self._faults_in_list = 0
        self.tally = Tally(faults=[])
        self._documents = DocumentChecks(storage, manifest, tokenizer, number, self.tally)

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
            self._documents.compare([texts[at] for at in places], [sources[at] for at in places], numbers[chosen])

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
