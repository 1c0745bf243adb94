"""Checks of chosen documents (level deep): the reference tokenizes their lines again; a shard must hold just that."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.audit.lookup import Documents, Group, StoredDocument
from pileshard.audit.report import MOST_FAULTS, Fault, FaultKind
from pileshard.audit.tallies import Tally
from pileshard.format.identity import document_keys, identity_hashes, split_hashes, text_keys
from pileshard.format.index import HEADER_BYTES
from pileshard.format.manifest import InputEntry, Manifest, ShardEntry
from pileshard.format.storage import Storage
from pileshard.tokenize import Tokenizer

_MASK = (1 << 64) - 1


class DocumentChecks:
    """Compares documents of one input with what the shards hold.

    Args:
      storage: the dataset's root.
      manifest: of the dataset.
      tokenizer: the reference, with the dataset's policy for special tokens.
      number: of the input.
      tally: where faults and counts go.
    """

    def __init__(self, storage: Storage, manifest: Manifest, tokenizer: Tokenizer, number: int, tally: Tally) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._number = number
        self._entry: InputEntry = manifest.inputs[number]
        self._documents = Documents(storage, manifest)
        self._tally = tally

    def compare(self, texts: list[bytes], sources: list[str], lines: npt.NDArray[np.int64]) -> None:
        """Tokenizes texts again and holds them against the shards.

        Args:
          texts: of the documents.
          sources: of each.
          lines: int64 [n], of each in the input.
        """
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
        if len(self._tally.faults) < MOST_FAULTS:
            self._tally.faults.append(
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
        self._tally.compared += 1
        if not found and self._came_before(group, key, (self._number, line), wanted):
            return None
        if not found:
            other = None
            if len(self._tally.faults) < MOST_FAULTS:
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
        self._tally.kept += theirs == mine
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
        if any((d.input, d.line) < mine and np.array_equal(d.tokens, wanted) for d in stored):
            return True
        return self._documents.hidden(group, key)  # the shard that damage hides it in is the one to name

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
