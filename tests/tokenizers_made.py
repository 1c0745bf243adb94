"""Small tokenizers made on the spot, so that tests need no downloaded file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

EOD = "<|endoftext|>"

_TEXT = (
    "the of and to in a is that for it was on with as be by this at from or an not are but have had one which you we "
    "their said there been if more when will would who so no he she they his her its it's don't we'll you've I'm he'd "
    "hello world text token shard 1 2 3 10 100 1999 2024 é ü ß 中文 文本 日本 привет . , ! ? ( ) == -- \n \n\n    "
)


@cache
def tiny_gpt2_json(vocab_size: int = 400, special: tuple[str, ...] = (EOD,)) -> bytes:
    """The bytes of a tokenizer.json like GPT-2's: byte-level BPE, `special` as special tokens with the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer.to_str().encode()


def tiny_json(
    *,
    normalizer: dict[str, Any] | None = None,
    pre_tokenizer: dict[str, Any] | None = None,
    added: Sequence[dict[str, Any]] = (),
) -> bytes:
    """The tiny GPT-2 with other sections; `added` entries need a "content" and may set the flags of added tokens."""
    raw = json.loads(tiny_gpt2_json())
    if normalizer is not None:
        raw["normalizer"] = normalizer
    if pre_tokenizer is not None:
        raw["pre_tokenizer"] = pre_tokenizer
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    first = 1 + max(entry["id"] for entry in raw["added_tokens"])
    raw["added_tokens"] += [{"id": first + i, **flags, **entry} for i, entry in enumerate(added)]
    return json.dumps(raw).encode()


def split_then_bytes(*patterns: str) -> dict[str, Any]:
    """A pre-tokenizer section: Splits by regular expressions, then bytes."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*splits, byte_level]}
