"""The tokenizer that a build uses: one interface over both engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np

from pileshard.errors import MissingExtraError, OptionError, TokenizerError
from pileshard.tokenize.codepoints import CodePoints
from pileshard.tokenize.cuts import PIECE_BYTES, CutRule, rule_for
from pileshard.tokenize.definition import Definition, Policy
from pileshard.tokenize.engine_fast import CACHE_BYTES, EngineMismatch, FastEngine
from pileshard.tokenize.engine_reference import ReferenceEngine
from pileshard.tokenize.eod import resolve_eod
from pileshard.tokenize.proof import Sampler, agreement, ascii_texts
from pileshard.tokenize.special import SpecialScanner
from pileshard.tokenize.support import unsupported

#: Texts longer than this are encoded in pieces.
LONG_BYTES = 1 << 20
#: A text with divergent code points is cut to pieces of this size, of which the reference gets those that hold one.
ISOLATED_BYTES = 2 << 10
#: Text of one call of the fast engine, so that its cache is looked at often enough.
CALL_BYTES = 8 << 20


class Tokenizer:
    """Turns texts into ids; made by `load`.

    Attributes:
      vocab_size: highest id + 1, added tokens counted.
      eod_id: id of the token that ends a document.
      eod_token: its string.
      dtype: uint16 where the vocabulary fits, else uint32; little-endian.
      engine_name: "fast" or "reference".
      fallback: why engine="auto" took the reference, or None.
    """

    engine_name: Literal["fast", "reference"]

    def __init__(
        self,
        definition: Definition,
        reference: ReferenceEngine,
        fast: FastEngine | None,
        eod: tuple[str, int],
        fallback: str | None,
    ) -> None:
        self.eod_token, self.eod_id = eod
        self.vocab_size = reference.vocab_size
        self.dtype = np.dtype("<u2" if self.vocab_size <= 65536 else "<u4")
        self.engine_name = "fast" if fast is not None else "reference"
        self.fallback = fallback
        self._reference = reference
        self._fast = fast
        self._rule: CutRule | None = rule_for(definition)
        self._special = SpecialScanner(token.content for token in definition.added if token.special)
        if fast is not None:
            self._sampler = Sampler(fast, reference, self._rule)
            self._points = CodePoints(self._agree, bool(definition.normalizers))

    def encode_batch(self, texts: list[bytes], ordinals: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode documents; no end-of-document id is added.

        Args:
          texts: UTF-8 texts. A long one is encoded in pieces, to the same ids, where the tokenizer's structure is
            known.
          ordinals: stable numbers of the documents (a hash of the identity); they decide which are compared.

        Returns:
          ids: the ids of all documents, one after another, `self.dtype` [tokens].
          ends: the end of each document in `ids`, int64 [len(texts)].

        Raises:
          EngineMismatch: the fast engine gives other ids than the reference; nothing of the batch should be kept.
        """
        if len(texts) != len(ordinals):
            raise ValueError(f"{len(texts)} texts but {len(ordinals)} ordinals")
        units, last = (list(texts), None) if max(map(len, texts), default=0) <= LONG_BYTES else self._units(texts)
        if self._fast is None:
            ids, counts = self._reference.encode(units)
            parts = [ids.astype(self.dtype)]
        else:
            divergent = self._points.divergent_texts(units)
            if divergent:
                units, last, divergent = self._isolate(units, last, divergent)
            self._check(texts, ordinals, divergent, last)
            parts, counts = self._encode_fast(units, divergent)
        ends = np.cumsum(counts)
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)), ends if last is None else ends[last]

    def limit_cache(self, cache_bytes: int) -> None:
        """Let the fast engine's cache of words grow to so many bytes from now on."""
        if self._fast is not None:
            self._fast.cache_bytes = cache_bytes

    def drop_cache(self) -> None:
        """Free the fast engine's cache of words, if it has grown."""
        if self._fast is not None:
            self._fast.drop_cache()

    def contains_special(self, text: bytes) -> bool:
        """Whether a UTF-8 text holds one of the tokenizer's special tokens literally."""
        return self._special(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens shown."""
        return self._reference.decode(ids)

    def _agree(self, texts: Sequence[str]) -> list[bool]:
        assert self._fast is not None
        return agreement(self._fast, self._reference, [text.encode() for text in texts])

    def _units(self, texts: list[bytes]) -> tuple[list[bytes], np.ndarray]:
        """The texts, long ones in pieces, and the position of each text's last piece."""
        if self._rule is None:
            return texts, np.arange(len(texts))
        return _cut(texts, [i for i, text in enumerate(texts) if len(text) > LONG_BYTES], self._rule, PIECE_BYTES)

    def _isolate(
        self, units: list[bytes], last: np.ndarray | None, divergent: list[int]
    ) -> tuple[list[bytes], np.ndarray, list[int]]:
        """Cut units with divergent code points small, so that the slow reference gets little beside those."""
        if last is None:
            last = np.arange(len(units))
        if self._rule is None:
            return units, last, divergent
        units, ends = _cut(units, divergent, self._rule, ISOLATED_BYTES)
        return units, ends[last], self._points.divergent_texts(units)

    def _check(
        self,
        texts: list[bytes],
        ordinals: Sequence[int] | np.ndarray,
        divergent: list[int],
        last: np.ndarray | None,
    ) -> None:
        """Let the sampler compare the documents that the fast engine encodes whole."""
        if not divergent or last is None:
            self._sampler.check(texts, ordinals)
            return
        routed = set(np.searchsorted(last, divergent).tolist())
        kept = [i for i in range(len(texts)) if i not in routed]
        self._sampler.check([texts[i] for i in kept], np.asarray(ordinals, np.uint64)[kept])

    def _encode_fast(self, units: list[bytes], divergent: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
        """Encode units in order, each by its engine, in calls of bounded size."""
        assert self._fast is not None
        parts: list[np.ndarray] = []
        counts = np.zeros(len(units), np.int64)
        for begin, end, engine in _calls(units, divergent, self._fast, self._reference):
            ids, counts[begin:end] = engine.encode(units[begin:end])
            parts.append(ids.astype(self.dtype))
        return parts or [np.zeros(0, self.dtype)], counts


def _cut(texts: list[bytes], chosen: list[int], rule: CutRule, size: int) -> tuple[list[bytes], np.ndarray]:
    """All texts, the chosen ones in pieces of about `size` bytes, and the position of each text's last piece."""
    pieces = {i: list(rule.pieces(texts[i], size)) for i in chosen}
    units = [piece for i, text in enumerate(texts) for piece in pieces.get(i, (text,))]
    return units, np.cumsum([len(pieces.get(i, "_")) for i in range(len(texts))]) - 1


def _calls(
    units: list[bytes], divergent: list[int], fast: FastEngine, reference: ReferenceEngine
) -> Iterator[tuple[int, int, FastEngine | ReferenceEngine]]:
    """Consecutive units of one engine, at most about CALL_BYTES together."""
    begin = 0
    for stop in [*divergent, len(units)]:
        size = 0
        for i in range(begin, stop) if sum(map(len, units[begin:stop])) > CALL_BYTES else ():
            if size and size + len(units[i]) > CALL_BYTES:
                yield begin, i, fast
                begin, size = i, 0
            size += len(units[i])
        if begin < stop:
            yield begin, stop, fast
        if stop < len(units):
            yield stop, stop + 1, reference
        begin = stop + 1


def load(
    tokenizer_json: bytes,
    *,
    eod: str | None = None,
    special_tokens: Policy = "text",
    engine: Literal["auto", "fast", "reference"] = "auto",
    cache_bytes: int = CACHE_BYTES,
) -> Tokenizer:
    """Make a tokenizer from the bytes of a HuggingFace tokenizer.json.

    Args:
      tokenizer_json: the file.
      eod: the token that ends a document, or None for the tokenizer's own.
      special_tokens: what literal special tokens in a text become: "text", their own id ("token"), or text in documents
        that the caller rejects by `contains_special` ("reject").
      engine: "fast" (gigatoken), "reference" (tokenizers), or "auto": the fast one where it is proved equal.
      cache_bytes: memory the fast engine's cache of words may take before it is dropped.

    Raises:
      TokenizerError: the file is unusable, no end-of-document token can be told, or engine="fast" cannot serve it.
      MissingExtraError: engine="fast" and gigatoken is not installed.
      OptionError: an unknown policy or engine.
    """
    if special_tokens not in ("text", "token", "reject"):
        raise OptionError(f"special_tokens={special_tokens!r}: choose text, token or reject")
    if engine not in ("auto", "fast", "reference"):
        raise OptionError(f"engine={engine!r}: choose auto, fast or reference")
    definition = Definition.parse(tokenizer_json, special_tokens)
    reference = ReferenceEngine(tokenizer_json, definition)
    token = resolve_eod(definition, eod, reference.token_to_id)
    fast, fallback = None, None
    if engine != "reference":
        try:
            fast = _load_fast(tokenizer_json, definition, reference, cache_bytes)
        except (TokenizerError, MissingExtraError) as error:
            if engine == "fast":
                raise
            fallback = str(error)
    return Tokenizer(definition, reference, fast, token, fallback)


def _load_fast(
    tokenizer_json: bytes, definition: Definition, reference: ReferenceEngine, cache_bytes: int
) -> FastEngine:
    """The fast engine, proved on ASCII; raises TokenizerError where it cannot serve, MissingExtraError if absent."""
    if reason := unsupported(definition, reference):
        raise TokenizerError(f"the fast engine does not support this tokenizer: {reason}")
    fast = FastEngine(tokenizer_json, definition, cache_bytes)
    texts = ascii_texts(definition)
    for text, same in zip(texts, agreement(fast, reference, texts), strict=True):
        if not same:
            raise EngineMismatch(f"the fast engine differs from the reference on {ascii(text.decode())[:80]}")
    return fast
