"""What a dataset's tokens use of its tokenizer's vocabulary."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.audit.log_bins import Ints
from pileshard.audit.shard_counts import Counts
from pileshard.audit.statistics_report import FrequencyBin, SourceVocabulary, TokenCount, Vocabulary
from pileshard.errors import DatasetError
from pileshard.format.manifest import Manifest
from pileshard.format.storage import Storage

COVERAGE = (0.5, 0.9, 0.99, 0.999, 1.0)
_TOP = 100
_MOST_ABOVE = 20


class VocabularyCount:
    """Adds up ids source by source; memory is that of a few vectors as long as the vocabulary.

    Args:
      tokenizer: of the `tokenizers` package.
      vocab_size: highest id + 1.
      unknown_id: of the tokenizer, or None.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, unknown_id: int | None) -> None:
        self._tokenizer = tokenizer
        self._size = vocab_size
        self._unknown = unknown_id
        self._known = np.zeros(vocab_size, dtype=bool)
        ids = [at for at in tokenizer.get_vocab(with_added_tokens=True).values() if at < vocab_size]
        self._known[ids] = True
        self._all: Ints = np.zeros(vocab_size, dtype=np.int64)
        self._above = 0
        self._above_ids: set[int] = set()
        # The number of the one source that has an id, -1 where none has, -2 where several have.
        self._owner = np.full(vocab_size, -1, dtype=np.int32)
        self._names: list[str] = []
        self._used: list[int] = []
        self._unknown_tokens: list[int] = []
        self._source: Ints = np.zeros(vocab_size, dtype=np.int64)

    @staticmethod
    def of(storage: Storage, manifest: Manifest) -> VocabularyCount:
        """Nothing counted yet of a dataset.

        Raises:
          DatasetError: its tokenizer is missing, damaged or of another vocabulary.
        """
        import tokenizers

        name = storage.url_of(manifest.tokenizer_path)
        try:
            data = storage.read_bytes(manifest.tokenizer_path)
        except FileNotFoundError:
            raise DatasetError(f"{name}: the tokenizer is missing; run `pileshard repair`") from None
        if hashlib.sha256(data).hexdigest() != manifest.tokenizer_sha256:
            raise DatasetError(f"{name}: its bytes are not those of the build; run `pileshard repair`")
        try:
            tokenizer = tokenizers.Tokenizer.from_str(data.decode())
        except Exception as error:  # the library raises plain Exception
            raise DatasetError(f"{name}: cannot be loaded ({error})") from None
        return VocabularyCount(tokenizer, manifest.vocab_size, unknown_id(tokenizer, data))

    def add(self, source: str, counts: Counts) -> None:
        """Adds a part of a source; its parts come one after another."""
        assert counts.ids is not None
        if not self._names or self._names[-1] != source:
            self._close()
            self._names.append(source)
        self._source += counts.ids
        self._above += counts.above
        self._above_ids.update(counts.above_ids)

    def _close(self) -> None:
        """Ends the source that was added to."""
        if not self._names:
            return
        used = self._source > 0
        number = len(self._used)
        self._owner[used & (self._owner != -1)] = -2
        self._owner[used & (self._owner == -1)] = number
        self._used.append(int((used & self._known).sum()))
        self._unknown_tokens.append(0 if self._unknown is None else int(self._source[self._unknown]))
        self._all += self._source
        self._source[:] = 0

    def result(self) -> Vocabulary:
        """All that was counted; nothing can be added afterwards."""
        self._close()
        ids = int(self._known.sum())
        used = self._known & (self._all > 0)
        total = int(self._all.sum()) + self._above
        only = np.bincount(self._owner[self._owner >= 0], minlength=len(self._names))
        unknown = None if self._unknown is None else int(self._all[self._unknown])
        order = np.argsort(-self._all, kind="stable")
        falling = self._all[order]
        falling = falling[falling > 0]
        return Vocabulary(
            ids=ids,
            used=int(used.sum()),
            used_share=int(used.sum()) / ids if ids else None,
            holes=self._size - ids,
            used_holes=int(self._all[~self._known].sum()),
            unused=ranges(np.flatnonzero(self._known & (self._all == 0))),
            unknown_id=self._unknown,
            unknown_tokens=unknown,
            unknown_token_share=None if unknown is None or not total else unknown / total,
            above=self._above,
            above_ids=sorted(self._above_ids)[:_MOST_ABOVE],
            coverage=_coverage(falling),
            frequencies=_frequencies(self._all, self._known),
            ranks=[(rank, int(falling[rank - 1])) for rank in _ranks(len(falling))],
            top=[self._token(at) for at in order[: min(_TOP, len(falling))].tolist()],
            sources=[
                SourceVocabulary(
                    name=name,
                    used=self._used[number],
                    used_share=self._used[number] / ids if ids else None,
                    only_here=int(only[number]),
                    unknown_tokens=None if self._unknown is None else self._unknown_tokens[number],
                )
                for number, name in enumerate(self._names)
            ],
        )

    def _token(self, at: int) -> TokenCount:
        return TokenCount(
            id=at,
            token=self._tokenizer.id_to_token(at),
            text=self._tokenizer.decode([at], skip_special_tokens=False),
            count=int(self._all[at]),
        )


def unknown_id(tokenizer: Any, tokenizer_json: bytes) -> int | None:
    """The id that a tokenizer gives for what it does not know, or None where it has none."""
    model = json.loads(tokenizer_json).get("model", {})
    if isinstance(at := model.get("unk_id"), int):
        return at
    token = model.get("unk_token")
    found: int | None = tokenizer.token_to_id(token) if isinstance(token, str) else None
    return found


def ranges(ids: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Rising numbers as ranges [first, last].

    >>> ranges(np.array([1, 2, 3, 7]))
    [(1, 3), (7, 7)]
    """
    if not len(ids):
        return []
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts = ids[np.concatenate(([0], breaks + 1))].tolist()
    lasts = ids[np.concatenate((breaks, [len(ids) - 1]))].tolist()
    return list(zip(firsts, lasts, strict=True))


def _coverage(falling: Ints) -> list[tuple[float, int]]:
    if not len(falling):
        return []
    sums = np.cumsum(falling)
    total = int(sums[-1])
    wanted = [-(-round(share * 1000) * total // 1000) for share in COVERAGE]
    return [(share, int(at) + 1) for share, at in zip(COVERAGE, np.searchsorted(sums, wanted), strict=True)]


def _frequencies(counts: Ints, known: npt.NDArray[np.bool_]) -> list[FrequencyBin]:
    edges = [0, 1, 2, *(10**power for power in range(1, 19))]
    own = counts[known]
    out = []
    for first, end in itertools.pairwise(edges):
        chosen = own[(own >= first) & (own < end)]
        out.append(FrequencyBin(first, end, len(chosen), int(chosen.sum())))
    while out and not out[-1].ids:
        out.pop()
    return out


def _ranks(count: int) -> list[int]:
    """1, 2, ..., growing by a tenth each, and the last one."""
    out: list[int] = []
    rank = 1
    while rank < count:
        out.append(rank)
        rank = max(rank + 1, rank * 11 // 10)
    return [*out, count] if count else []
