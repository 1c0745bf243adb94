"""Which code points the two engines are proved equal on: each is proved when a text first holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pileshard.tokenize.fragments import decomposed, fragments, unassigned

PROVED, UNKNOWN, DIVERGENT = 0, 1, 2
_ASCII = bytes(range(128))
# Code points looked up at once: the index array stays in the processor's cache.
_LOOKUP = 1 << 15

#: For texts, whether the two engines give the same ids, one by one.
Agree = Callable[[Sequence[str]], list[bool]]


class CodePoints:
    """A table with a verdict for every code point.

    ASCII counts as proved: that is done when a tokenizer is loaded. Documents that hold a divergent code point belong
    to the reference engine.

    Args:
      agree: compares the engines.
      normalizes: whether the tokenizer applies NFC.
    """

    def __init__(self, agree: Agree, normalizes: bool) -> None:
        self._agree = agree
        self._normalizes = normalizes
        self._table = np.full(0x110000, UNKNOWN, np.uint8)
        self._table[:128] = PROVED

    @property
    def divergent(self) -> np.ndarray:
        """The code points found divergent so far, int64."""
        return np.flatnonzero(self._table == DIVERGENT)

    def divergent_texts(self, texts: Sequence[bytes]) -> list[int]:
        """The positions of the texts that hold a divergent code point, after proving all that are unknown."""
        suspects = [i for i, text in enumerate(texts) if not text.isascii()]
        if not suspects:
            return []
        joined = b"".join([texts[i] for i in suspects]) if len(suspects) > 1 else texts[suspects[0]]
        if self._worst(joined) == PROVED:
            return []
        return [i for i in suspects if self._worst(texts[i]) == DIVERGENT]

    def _worst(self, text: bytes) -> int:
        """DIVERGENT or PROVED for all code points of a text."""
        worst = PROVED
        for points in _code_points(text):
            verdicts = self._table.take(points)
            if verdicts.max() == PROVED:
                continue
            unknown = points[verdicts == UNKNOWN]
            if len(unknown):
                self._prove([chr(point) for point in np.unique(unknown).tolist()])
                verdicts = self._table.take(points)
            worst = max(worst, int(verdicts.max()))
        return worst

    def _prove(self, chars: Iterable[str]) -> None:
        """Give every one of some characters its verdict."""
        chars = list(chars)
        if not self._normalizes:
            self._test(chars)
            return
        parts = {char: decomposed(char) for char in chars}
        # What a decomposition holds decomposes no further; a character is no better than what it decomposes to.
        self._test(sorted(part for some in parts.values() for part in some if self._table[ord(part)] == UNKNOWN))
        tainted = [c for c in chars if unassigned(c) or any(self._table[ord(p)] == DIVERGENT for p in parts[c])]
        self._table[[ord(char) for char in tainted]] = DIVERGENT
        self._test([char for char in chars if self._table[ord(char)] == UNKNOWN])

    def _test(self, chars: list[str]) -> None:
        """Give each character the verdict of its own fragments."""
        if not chars:
            return
        for char, same in zip(chars, self._agree([fragments(c, self._normalizes) for c in chars]), strict=True):
            self._table[ord(char)] = PROVED if same else DIVERGENT


def _code_points(text: bytes) -> Iterable[np.ndarray]:
    """The code points of a UTF-8 text, in chunks of int64; a mostly ASCII text is first rid of its ASCII."""
    head = text[:4096]
    rest = text.translate(None, _ASCII) if 2 * len(head.translate(None, _ASCII)) < len(head) else text
    points = np.frombuffer(rest.decode().encode("utf-32-le"), "<u4")
    for begin in range(0, len(points), _LOOKUP):
        yield points[begin : begin + _LOOKUP].astype(np.int64)
