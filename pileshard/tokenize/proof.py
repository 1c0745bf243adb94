"""Comparing the two engines: on ASCII when a tokenizer is loaded, and on real documents while it works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pileshard.tokenize.cuts import CutRule
from pileshard.tokenize.definition import Definition
from pileshard.tokenize.engine_fast import EngineMismatch

#: Text of a worker's first documents that is compared.
FIRST_BYTES = 128 << 10
#: One document in so many is compared after that, at most this much of it.
SAMPLE_ONE_IN = 2048
SAMPLE_BYTES = 16 << 10
# What a tiny document counts for among the first ones.
_LEAST_BYTES = 64
# A window of a text with no safe cut near is the whole text up to this size.
_WHOLE_BYTES = 1 << 20


class Engine(Protocol):
    """What both engines offer."""

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Ids, uint32 [tokens], and the number of ids of each text, int64 [len(texts)]."""
        ...


def agreement(fast: Engine, reference: Engine, texts: Sequence[bytes]) -> list[bool]:
    """Whether both engines give the same ids, for each text."""
    ids_fast, counts_fast = fast.encode(list(texts))
    ids_reference, counts_reference = reference.encode(list(texts))
    if np.array_equal(counts_fast, counts_reference) and np.array_equal(ids_fast, ids_reference):
        return [True] * len(texts)
    split_fast = np.split(ids_fast, np.cumsum(counts_fast)[:-1])
    split_reference = np.split(ids_reference, np.cumsum(counts_reference)[:-1])
    return [np.array_equal(a, b) for a, b in zip(split_fast, split_reference, strict=True)]


def ascii_texts(definition: Definition) -> list[bytes]:
    """Texts that bring every pair of ASCII characters, contractions, runs and added tokens before the engines."""
    chars = [chr(point) for point in range(128)]
    texts = ["".join(f"{a}{b}" for b in chars) for a in chars]
    texts += [f"x{a * n}y {a * n} {a * n}\n{a * n}" for a in chars for n in (1, 2, 3, 4, 5, 8, 16, 31)]
    endings = ("s", "t", "re", "ve", "m", "ll", "d", "x", "S", "T", "RE", "Ve", "M", "lL", "D", "'s", " s", "\ns", "1")
    texts += [
        f"{word}'{ending}{after}"
        for word in ("it", "IT", "1", " ", "")
        for ending in endings
        for after in ("", "n", "'d", " ")
    ]
    blanks = (
        "",
        " ",
        "  ",
        "   ",
        "\n",
        "\r\n",
        "\t",
        " \n",
        "\n ",
        "\n\n",
        " \r\n\t ",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
    )
    texts += [
        f"{a}{b}{c}{d}" for a in ("w", "9", ".", "") for b in blanks for c in blanks for d in ("w", "9", ".", "'s", "")
    ]
    texts += [f"{'9' * n} {'12345678901'[:n]}a{'0' * n}." for n in range(1, 12)]
    for token in definition.added:
        t = token.content
        texts.append(f"{t} x{t}y {t}\n{t}{t}1{t}.{t[:-1]} {t[1:]}{t}")
    return [text.encode() for text in texts]


class Sampler:
    """Compares the engines on a worker's first documents and on a sample of the rest.

    Args:
      rule: where a long document may be cut, so that a window of it is compared.
    """

    def __init__(self, fast: Engine, reference: Engine, rule: CutRule | None) -> None:
        self._fast = fast
        self._reference = reference
        self._rule = rule
        self._first = FIRST_BYTES
        self.compared_bytes = 0

    def check(self, texts: Sequence[bytes], ordinals: Sequence[int] | np.ndarray) -> None:
        """Compare those of the texts that are due.

        Args:
          texts: documents that the fast engine encodes.
          ordinals: their stable numbers; one that is a multiple of SAMPLE_ONE_IN is compared.

        Raises:
          EngineMismatch: the engines differ.
        """
        chosen = np.flatnonzero(np.asarray(ordinals, np.uint64) % np.uint64(SAMPLE_ONE_IN) == 0).tolist()
        if self._first > 0:
            chosen = self._take_first(texts, set(chosen))
        windows = [self._window(texts[i], int(ordinals[i])) for i in chosen]
        if not windows:
            return
        self.compared_bytes += sum(map(len, windows))
        for i, same in zip(chosen, agreement(self._fast, self._reference, windows), strict=True):
            if not same:
                raise EngineMismatch(
                    f"the fast tokenizer gives other ids than the reference for a document ({_excerpt(texts[i])}): "
                    "use engine='reference' for this input"
                )

    def _take_first(self, texts: Sequence[bytes], chosen: set[int]) -> list[int]:
        for i, text in enumerate(texts):
            if self._first <= 0:
                break
            chosen.add(i)
            self._first -= max(_LEAST_BYTES, min(len(text), SAMPLE_BYTES))
        return sorted(chosen)

    def _window(self, text: bytes, ordinal: int) -> bytes:
        """A part of a text between safe cuts, at a place that the ordinal chooses."""
        if len(text) <= 2 * SAMPLE_BYTES:
            return text
        if self._rule is not None:
            near = ordinal * 0x9E3779B97F4A7C15 % 2**64 % (len(text) - SAMPLE_BYTES)
            begin = max(0, self._rule.find(text, near, near + SAMPLE_BYTES))
            end = self._rule.find(text, begin + SAMPLE_BYTES, begin + _WHOLE_BYTES)
            if end > 0 or len(text) - begin <= _WHOLE_BYTES:
                return text[begin : end if end > 0 else None]
        return text if len(text) <= _WHOLE_BYTES else text[:_WHOLE_BYTES].decode(errors="ignore").encode()


def _excerpt(text: bytes) -> str:
    return ascii(text[:60].decode(errors="replace"))
