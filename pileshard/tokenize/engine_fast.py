"""The fast engine: `gigatoken`, 30 to 100 times the reference's speed, for the tokenizers it can be proved equal on."""

from __future__ import annotations

from typing import Any

import numpy as np

from pileshard.errors import MissingExtraError, TokenizerError
from pileshard.tokenize.definition import Definition
from pileshard.tokenize.memory import release_free_memory, resident_bytes
from pileshard.tokenize.panics import engine_errors

CACHE_BYTES = 256 << 20
#: A cache that has grown by less is not worth dropping.
LEAST_CACHE_BYTES = 16 << 20
# What the cache of seen words costs a byte of new text at worst; used where the resident set cannot be read.
_CACHE_PER_TEXT_BYTE = 8


class EngineMismatch(TokenizerError):  # noqa: N818 - a public name of the interface
    """The fast engine failed or gave other ids than the reference: redo the input with engine="reference"."""


class FastEngine:
    """Encodes by gigatoken on the calling thread, and forgets its cache of words when that has grown too large.

    Args:
      tokenizer_json: the file.
      definition: the file, parsed, with the policy.
      cache_bytes: growth of the process's memory over encode calls at which the engine is rebuilt (0.1 to 0.5 s).

    Raises:
      MissingExtraError: gigatoken is not installed.
      TokenizerError: gigatoken cannot load the file, or sees another vocabulary in it.
    """

    def __init__(self, tokenizer_json: bytes, definition: Definition, cache_bytes: int = CACHE_BYTES) -> None:
        try:
            import gigatoken
        except ImportError:
            raise MissingExtraError("gigatoken", "fast", "The fast tokenizer engine") from None
        self._load = gigatoken.Tokenizer.from_json
        self._json = tokenizer_json if definition.policy == "token" else definition.without_special_tokens()
        self.cache_bytes = cache_bytes
        self.rebuilds = 0
        self._engine: Any = self._build()
        kept = definition.added if definition.policy == "token" else definition.active
        expected = max([*definition.model["vocab"].values(), *(token.id for token in kept)], default=-1) + 1
        if self._engine.vocab_size != expected:
            raise TokenizerError(f"gigatoken sees {self._engine.vocab_size} ids in the tokenizer, not {expected}")

    def _build(self) -> Any:
        self._grown = 0
        with engine_errors("gigatoken cannot load the tokenizer file"):
            return self._load(self._json)

    def drop_cache(self) -> None:
        """Rebuild the engine, unless it has hardly grown: that takes 0.1 to 0.5 s and frees what it has grown by."""
        if self._grown < min(LEAST_CACHE_BYTES, self.cache_bytes):
            return
        self._engine = None  # before the new one is made, so that both are never in memory
        release_free_memory()
        self._engine = self._build()
        self.rebuilds += 1

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Encode UTF-8 texts.

        Returns:
          The ids, uint32 [tokens], and the number of ids of each text, int64 [len(texts)].

        Raises:
          EngineMismatch: the engine failed.
        """
        if self._grown > self.cache_bytes:
            self.drop_cache()
        before = resident_bytes()
        with engine_errors("the fast tokenizer failed", EngineMismatch):
            ids, offsets = _flat(self._engine.encode_batch(texts, parallel=False))
        after = resident_bytes()
        if before is None or after is None:
            self._grown += _CACHE_PER_TEXT_BYTE * sum(map(len, texts))
        else:
            self._grown = max(0, self._grown + after - before - ids.nbytes - offsets.nbytes)
        if len(offsets) != len(texts) + 1:
            raise EngineMismatch(f"the fast tokenizer gave {len(offsets) - 1} results for {len(texts)} texts")
        return ids, np.diff(offsets)


def _flat(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Ids and offsets of an awkward array of lists, without a copy for the layout that gigatoken makes."""
    layout = array.layout
    offsets: Any = getattr(layout, "offsets", None)
    content: Any = getattr(layout, "content", None)
    if offsets is not None and hasattr(content, "data"):
        bounds = np.asarray(offsets.data)
        return np.asarray(content.data)[bounds[0] : bounds[-1]], bounds - bounds[0] if bounds[0] else bounds
    import awkward as ak  # type: ignore[import-untyped,unused-ignore]

    counts = ak.to_numpy(ak.num(array, axis=1))
    return ak.to_numpy(ak.flatten(array, axis=1)), np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
