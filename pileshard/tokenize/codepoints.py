"""Which code points the two engines are proved equal on: proved block by block, when a text first needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from pileshard.tokenize.fragments import decomposed, fragments, unassigned

PROVED, UNKNOWN, DIVERGENT = 0, 1, 2
#: Code points proved together.
BLOCK = 128

_ASCII = bytes(range(128))
_SURROGATE_BLOCKS = range(0xD800 // BLOCK, 0xE000 // BLOCK)
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
      forms: the Unicode normalization forms that the tokenizer applies.
    """

    def __init__(self, agree: Agree, forms: Collection[str]) -> None:
        self._agree = agree
        self._normalizes = bool(forms)
        self._compatibility = any("K" in form for form in forms)
        self._tested = np.zeros(0x110000 // BLOCK, bool)
        self._table = np.full(0x110000, UNKNOWN, np.uint8)
        self._table[:128] = PROVED
        self._tested[0] = True

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
            if (most := int(verdicts.max())) == PROVED:
                continue
            if (verdicts == UNKNOWN).any():
                self._prove(np.unique(points[verdicts == UNKNOWN] // BLOCK).tolist())
                most = int(self._table.take(points).max())
            worst = max(worst, most)
        return worst

    def _prove(self, blocks: Iterable[int]) -> None:
        """Give every code point of some blocks its verdict."""
        for block in blocks:
            self._test(block)
            chars = [chr(point) for point in range(block * BLOCK, (block + 1) * BLOCK)]
            verdicts = self._table[block * BLOCK : (block + 1) * BLOCK]
            if self._normalizes:
                # A character is no better than what normalization makes of it.
                parts = [decomposed(char, self._compatibility) for char in chars]
                for member in {ord(part) // BLOCK for some in parts for part in some}:
                    self._test(member)
                for i, some in enumerate(parts):
                    if any(self._table[ord(part)] == DIVERGENT for part in some):
                        verdicts[i] = DIVERGENT
            verdicts[verdicts == UNKNOWN] = PROVED

    def _test(self, block: int) -> None:
        """Mark the code points of a block on which the engines differ, once; the others stay unknown."""
        if self._tested[block] or block in _SURROGATE_BLOCKS:
            return
        self._tested[block] = True
        chars = [chr(point) for point in range(block * BLOCK, (block + 1) * BLOCK)]
        if self._normalizes:
            for char in filter(unassigned, chars):
                self._table[ord(char)] = DIVERGENT
            chars = [char for char in chars if not unassigned(char)]
        texts = [fragments(char, self._normalizes) for char in chars]
        if self._agree(["".join(texts)]) == [True]:
            return
        for char, same in zip(chars, self._agree(texts), strict=True):
            if not same:
                self._table[ord(char)] = DIVERGENT


def _code_points(text: bytes) -> Iterable[np.ndarray]:
    """The code points of a UTF-8 text, in chunks of int64; a mostly ASCII text is first rid of its ASCII."""
    head = text[:4096]
    rest = text.translate(None, _ASCII) if 2 * len(head.translate(None, _ASCII)) < len(head) else text
    points = np.frombuffer(rest.decode().encode("utf-32-le"), "<u4")
    for begin in range(0, len(points), _LOOKUP):
        yield points[begin : begin + _LOOKUP].astype(np.int64)
