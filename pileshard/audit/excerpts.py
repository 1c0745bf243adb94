"""The begin of a document's text, from its first tokens."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from pileshard.format.manifest import Manifest
from pileshard.tokenize import Tokenizer


class Excerpts:
    """Decodes the begin of records.

    Args:
      manifest: of the dataset.
      decoder: its tokenizer.
      characters: most of an excerpt.
    """

    def __init__(self, manifest: Manifest, decoder: Tokenizer, characters: int) -> None:
        self._eod = manifest.eod_id
        self._decoder = decoder
        self._characters = characters

    @property
    def tokens(self) -> int:
        """How many tokens of a record are enough; one gives less than a character where characters are rare."""
        return 4 * self._characters + 1 if self._characters else 0

    def of(self, ids: npt.NDArray[Any], tokens: int) -> tuple[str, bool]:
        """The begin of a record's text, its end-of-document id left out, and whether it is the whole of it.

        Args:
          ids: its first tokens.
          tokens: how many it has.
        """
        whole = len(ids) == tokens
        if whole and tokens and ids[-1] == self._eod:
            ids = ids[:-1]
        text = self._decoder.decode(ids.tolist())
        if not whole:
            text = text.rstrip("\N{REPLACEMENT CHARACTER}")  # a character cut within
        return text[: self._characters], whole and len(text) <= self._characters
