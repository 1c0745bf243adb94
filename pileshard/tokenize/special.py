"""Finding literal special tokens in a text, for the policy that rejects such documents."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PREFIX_BYTES = 4


class SpecialScanner:
    """A scan for any of a set of strings that mostly answers no.

    Special tokens share their first bytes ("<|", "<｜"), so a text is first searched for those few prefixes (as fast
    as memory allows) and only a text that holds one meets the regular expression of all strings.
    """

    def __init__(self, contents: Iterable[str]) -> None:
        needles = sorted({content.encode() for content in contents if content}, key=len, reverse=True)
        self._prefixes = sorted({needle[:_PREFIX_BYTES] for needle in needles})
        if len(self._prefixes) > 4:
            self._prefixes = sorted({needle[:1] for needle in needles})
        self._pattern = re.compile(b"|".join(map(re.escape, needles)) or b"(?!)")

    def __call__(self, text: bytes) -> bool:
        """Whether `text` (UTF-8) holds at least one of the strings."""
        return any(prefix in text for prefix in self._prefixes) and self._pattern.search(text) is not None
