"""Which tokenizers the fast engine may serve: those whose every construct the proofs cover."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import product

from pileshard.tokenize.definition import AddedToken, Definition
from pileshard.tokenize.engine_reference import ReferenceEngine
from pileshard.tokenize.fragments import composing_firsts


def unsupported(definition: Definition, reference: ReferenceEngine) -> str | None:
    """Why the fast engine must not be used for a tokenizer, or None.

    Refused is every construct for which equality is not covered by the proof of code points: anything but a byte-level
    BPE, normalizers other than NFC, and added tokens whose matches depend on their surroundings or on each other.
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
    for token in definition.added:
        if reference.token_to_id(token.content) != token.id:
            return f"the added token {token.content!r} has another id in the file than in the vocabulary"
    return _added_tokens(definition)


def utf8_bytes() -> list[str]:
    """The characters that stand for the bytes of UTF-8 in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256) if byte < 0xF5 and byte not in (0xC0, 0xC1)]


def _added_tokens(definition: Definition) -> str | None:
    """The first added token whose matches the two engines may see differently."""
    for token in definition.active:
        if token.absorbs:
            return f"the added token {token.content!r} uses lstrip, rstrip or single_word"
        if token.normalized and definition.normalizers and not _inert(token.content):
            return f"the added token {token.content!r} may come out of normalization or be changed by it"
    # The reference looks for the tokens that are not normalized first, the fast engine for all at once.
    early = [token for token in definition.active if not token.normalized]
    late = [token for token in definition.active if token.normalized]
    for one, other in product(late, early):
        if _begins_inside(one, other):
            return f"the added tokens {one.content!r} and {other.content!r} may overlap in a text"
    # A special token that is text to us still hides, in the reference, an added token that begins inside it.
    texts = [token for token in definition.added if token.special] if definition.policy != "token" else []
    for one, other in product(texts, definition.active):
        if one.normalized == other.normalized and _begins_inside(one, other):
            return f"the added tokens {one.content!r} and {other.content!r} may overlap in a text"
    return None


def _begins_inside(one: AddedToken, other: AddedToken) -> bool:
    """Whether a match of `other` may begin within one of `one`."""
    a, b = one.content, other.content
    return b in a or any(a.endswith(b[:n]) for n in range(1, min(len(a), len(b))))


def _inert(content: str) -> bool:
    """Whether NFC neither makes `content` of other characters nor composes its end with what follows."""
    plain = all(char.isascii() and char not in _canonical_twins() for char in content)
    return plain and content[-1:] not in composing_firsts()


@cache
def _canonical_twins() -> frozenset[str]:
    """ASCII characters that another code point normalizes to: the Greek question mark is a semicolon, ..."""
    single = (
        unicodedata.normalize("NFC", chr(point)) for point in range(0x80, 0x30000) if not 0xD800 <= point < 0xE000
    )
    return frozenset(char for char in single if len(char) == 1 and char.isascii())
