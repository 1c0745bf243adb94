"""What a tokenizer.json says, reduced to what the engines, the cuts and the proofs need to know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pileshard.errors import TokenizerError

Policy = Literal["text", "token", "reject"]

#: Normalizers that only apply a Unicode normalization form.
UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})


@dataclass(frozen=True)
class AddedToken:
    """One entry of `added_tokens`: a string that is looked for in the text before pre-tokenization."""

    content: str
    id: int
    special: bool
    normalized: bool  # looked for after normalization, and only where no other added token was found before it
    absorbs: bool  # lstrip, rstrip or single_word: what stands beside it matters

    @classmethod
    def parse(cls, entry: dict[str, Any]) -> AddedToken:
        """Read one entry of the file; raises KeyError or TypeError where it is malformed."""
        absorbs = any(entry.get(flag) for flag in ("lstrip", "rstrip", "single_word"))
        special = bool(entry.get("special"))
        normalized = bool(entry.get("normalized", not special))
        return cls(str(entry["content"]), int(entry["id"]), special, normalized, absorbs)


@dataclass(frozen=True)
class Definition:
    """A parsed tokenizer.json under one policy for special tokens.

    Attributes:
      raw: the file's object, unchanged.
      policy: "token" gives literal special tokens their ids; "text" and "reject" encode them as any other text.
    """

    raw: dict[str, Any]
    policy: Policy

    @classmethod
    def parse(cls, tokenizer_json: bytes, policy: Policy) -> Definition:
        """Read a tokenizer.json; raises TokenizerError where it is none or where its ids would be random."""
        try:
            raw = json.loads(tokenizer_json)
        except ValueError as error:
            raise TokenizerError(f"the tokenizer file is not JSON: {error}") from None
        if not isinstance(raw, dict) or not isinstance(raw.get("model"), dict):
            raise TokenizerError("the tokenizer file has no 'model': a HuggingFace tokenizer.json is needed")
        if raw["model"].get("dropout"):
            raise TokenizerError("the tokenizer's model has a 'dropout', so its ids are random: set it to null")
        definition = cls(raw, policy)
        try:
            _ = definition.added
        except (KeyError, TypeError, ValueError):
            raise TokenizerError("the tokenizer file's 'added_tokens' cannot be read") from None
        return definition

    @cached_property
    def added(self) -> tuple[AddedToken, ...]:
        """All added tokens, in the file's order."""
        return tuple(AddedToken.parse(entry) for entry in self.raw.get("added_tokens") or ())

    @cached_property
    def active(self) -> tuple[AddedToken, ...]:
        """The added tokens that keep their ids where a text holds them literally."""
        return tuple(token for token in self.added if self.policy == "token" or not token.special)

    @cached_property
    def normalizers(self) -> tuple[dict[str, Any], ...]:
        """The normalizers in order of application, sequences flattened."""
        return tuple(_flatten(self.raw.get("normalizer"), "normalizers"))

    @cached_property
    def pre_tokenizers(self) -> tuple[dict[str, Any], ...]:
        """The pre-tokenizers in order of application, sequences flattened."""
        return tuple(_flatten(self.raw.get("pre_tokenizer"), "pretokenizers"))

    @property
    def model(self) -> dict[str, Any]:
        """The `model` section."""
        model: dict[str, Any] = self.raw["model"]
        return model

    def without_special_tokens(self) -> bytes:
        """The file without its special added tokens, for an engine that can only match all or none of them."""
        kept = [entry for entry in self.raw.get("added_tokens") or () if not entry.get("special")]
        return json.dumps({**self.raw, "added_tokens": kept}).encode()


def _flatten(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step.get("type") == "Sequence":
        return [inner for part in step.get(key) or () for inner in _flatten(part, key)]
    return [step]
