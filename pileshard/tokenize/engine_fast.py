"""The fast engine: `gigatoken`, 30 to 100 times the reference's speed, for the tokenizers it can be proved equal on."""

from __future__ import annotations

from typing import Any

import numpy as np

from pileshard.errors import MissingExtraError, TokenizerError
from pileshard.tokenize.definition import Definition
from pileshard.tokenize.engine_reference import ReferenceEngine
from pileshard.tokenize.memory import resident_bytes
from pileshard.tokenize.panics import engine_errors

CACHE_BYTES = 256 << 20
# What the cache of seen words costs a byte of new text at worst; used where the resident set cannot be read.
_CACHE_PER_TEXT_BYTE = 8


class EngineMismatch(TokenizerError):  # noqa: N818 - a public name of the interface
    """The fast engine failed or gave other ids than the reference: redo the input with engine="reference"."""


def unsupported(definition: Definition, reference: ReferenceEngine) -> str | None:
    """Why the fast engine must not be used for a tokenizer, or None.

    Refused is every construct for which equality is not covered by the proof of code points: anything but a byte-level
    BPE, normalizers other than NFC, and added tokens that look at their surroundings or shadow others.
    """
    model = definition.model
    if model.get("type") != "BPE" or not any(s.get("type") == "ByteLevel" for s in definition.pre_tokenizers):
        return "the tokenizer is not a byte-level BPE"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return "the tokenizer marks word parts with a prefix or suffix"
    if missing := sum(char not in model.get("vocab", {}) for char in utf8_bytes()):
        return f"the vocabulary lacks {missing} of the bytes that UTF-8 uses"
    for step in definition.normalizers:
        if step.get("type") != "NFC":
            return f"the normalizer {step.get('type')} is not covered by the proof of code points"
    for token in definition.active:
        if token.absorbs:
            return f"the added token {token.content!r} uses lstrip, rstrip or single_word"
    for token in definition.added:
        if reference.token_to_id(token.content) != token.id:
            return f"the added token {token.content!r} has another id in the file than in the vocabulary"
    return _shadowed(definition)


def utf8_bytes() -> list[str]:
    """The characters that stand for the bytes of UTF-8 in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256) if byte < 0xF5 and byte not in (0xC0, 0xC1)]


def _shadowed(definition: Definition) -> str | None:
    """A special token that is text to us still hides, in the reference, an added token that begins inside it."""
    if definition.policy == "token":
        return None
    heads = {token.content[:n] for token in definition.active for n in range(1, len(token.content) + 1)}
    whole = {token.content for token in definition.active}
    for token in definition.added:
        if not token.special:
            continue
        for k in range(len(token.content)):
            tail = token.content[k:]
            if (k and tail in heads) or any(tail[:n] in whole for n in range(1, len(tail) + 1)):
                return f"the special token {token.content!r} overlaps another added token"
    return None


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
        self._cache_bytes = cache_bytes
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

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Encode UTF-8 texts.

        Returns:
          The ids, uint32 [tokens], and the number of ids of each text, int64 [len(texts)].

        Raises:
          EngineMismatch: the engine failed.
        """
        if self._grown > self._cache_bytes:
            self._engine = None  # before the new one is made, so that both are never in memory
            self._engine = self._build()
            self.rebuilds += 1
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
