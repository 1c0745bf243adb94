"""Safe cuts: the pieces' ids, joined, are the whole text's ids, for every structure that has a rule."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.tokenize.cuts import DEEPSEEK_PATTERNS, SPLIT_PATTERNS, CutRule, rule_for, structure
from pileshard.tokenize.definition import Definition
from pileshard.tokenize.engine_reference import ReferenceEngine
from tests.paths import SHARED, needs_shared
from tests.tokenizers_made import split_then_bytes, tiny_gpt2_json, tiny_json

BLANKS = [{"content": " " * n, "normalized": True} for n in (2, 3, 4, 8)]
MADE = {
    "gpt2": tiny_json(added=[*BLANKS, {"content": "<think>"}]),
    "gpt2-nfc": tiny_json(normalizer={"type": "NFC"}, added=BLANKS),
    "gpt2-nfkd": tiny_json(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "Lowercase"}]}),
    "starcoder": tiny_json(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        }
    ),
    "deepseek": tiny_json(pre_tokenizer=split_then_bytes(*DEEPSEEK_PATTERNS), added=[{"content": "｜DSML｜"}]),
    **{
        f"split-{name}": tiny_json(pre_tokenizer=split_then_bytes(p), added=BLANKS)
        for name, p in SPLIT_PATTERNS.items()
    },
}
SHARED_NAMES = ("gpt2", "gpt-neox-20b", "deepseek-v3", "bert-base-uncased")

_CHARS = "aZsSxMlLdDtTrRvVeE0123456789 \n\t\r'\".,!-_/(=<>|中文鿿龥一。，、あカー가ᅡé\u0301\u0308ßſ"
_ODD = "\u00a0\u2003\u3000\u0085\u200b👍🏽²½٣"
_WORDS = [
    " a",
    "\n\n",
    "\r\n",
    "\n1",
    "x\n",
    "'s",
    "'ll",
    "'RE ",
    "中，文",
    "文\n中",
    "  ",
    "    ",
    "abc123",
    "word word",
]
_ADDED = ["<think>", "｜DSML｜", "<|endoftext|>"]
ATOMS = st.sampled_from([*_CHARS, *_ODD, *_WORDS, *_ADDED])
TEXTS = st.lists(ATOMS, min_size=1, max_size=40).map("".join)


@cache
def _parts(tokenizer_json: bytes) -> tuple[ReferenceEngine, CutRule | None]:
    definition = Definition.parse(tokenizer_json, "text")
    return ReferenceEngine(tokenizer_json, definition), rule_for(definition)


def _every_cut_is_safe(tokenizer_json: bytes, text: str) -> None:
    reference, rule = _parts(tokenizer_json)
    assert rule is not None
    raw = text.encode()
    whole, _ = reference.encode([raw])
    cuts = sorted({rule.find(raw, start) for start in range(len(raw))} - {-1})
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert b"".join(pieces) == raw
    joined, _ = reference.encode(pieces)
    np.testing.assert_array_equal(joined, whole)
    for cut in cuts:
        one, _ = reference.encode([raw[:cut], raw[cut:]])
        np.testing.assert_array_equal(one, whole)


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=120, deadline=None)
@given(text=TEXTS)
def test_every_cut_keeps_the_ids(name: str, text: str) -> None:
    _every_cut_is_safe(MADE[name], text)


@needs_shared
@pytest.mark.parametrize("name", SHARED_NAMES)
@settings(max_examples=120, deadline=None)
@given(text=TEXTS)
def test_every_cut_keeps_the_ids_of_published_tokenizers(name: str, text: str) -> None:
    _every_cut_is_safe(_shared(name), text)


@cache
def _shared(name: str) -> bytes:
    assert SHARED is not None
    return (SHARED / "tokenizers" / f"{name}.json").read_bytes()


@needs_shared
@pytest.mark.parametrize(
    ("name", "known"),
    [("gpt2", "gpt2"), ("gpt-neox-20b", "gpt2"), ("deepseek-v3", "deepseek"), ("bert-base-uncased", "bert")],
)
def test_published_structures_are_recognized(name: str, known: str) -> None:
    assert structure(Definition.parse(_shared(name), "text")) == known


def test_each_kind_of_cut_is_found() -> None:
    rule = rule_for(Definition.parse(tiny_gpt2_json(), "text"))
    assert rule is not None
    for text, cut in (("one two", 3), ("a.\nb", 3), ("ab12", 2), ("中，文", 3), ("文\n中", 4)):
        assert rule.find(text.encode(), 0) == cut
    for text in ("one  two", "one\n\ntwo", "1a", "one", "a ", "é e", "a\u0301b", "one \ntwo"):
        assert rule.find(text.encode(), 0) == -1


def test_pieces_are_near_the_size_and_whole_where_no_cut_exists() -> None:
    rule = rule_for(Definition.parse(tiny_gpt2_json(), "text"))
    assert rule is not None
    text = b"word " * 1000 + b"x" * 5000 + b" word" * 1000
    pieces = list(rule.pieces(text, 500))
    assert b"".join(pieces) == text
    assert sorted(map(len, pieces))[-2] <= 510
    assert max(map(len, pieces)) > 5000
    assert list(rule.pieces(b"", 500)) == [b""]


@pytest.mark.parametrize(
    "tokenizer_json",
    [
        tiny_json(pre_tokenizer={"type": "Whitespace"}),
        tiny_json(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}),
        tiny_json(pre_tokenizer=split_then_bytes(r"\s+|\S+")),
        tiny_json(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "_"}),
        tiny_json(added=[{"content": "word", "single_word": True}]),
        tiny_json(added=[{"content": "mask", "lstrip": True}]),
    ],
    ids=["pre-tokenizer", "prefix space", "pattern", "normalizer", "single word", "lstrip"],
)
def test_an_unknown_structure_has_no_rule(tokenizer_json: bytes) -> None:
    assert rule_for(Definition.parse(tokenizer_json, "text")) is None


def test_a_cut_that_an_added_token_may_hold_is_left_out() -> None:
    rule = rule_for(Definition.parse(tiny_json(added=[{"content": "<in side>"}]), "text"))
    assert rule is not None
    assert rule.find(b"one two", 0) == -1
    assert rule.find(b"one.\ntwo", 0) == 5


def test_added_tokens_that_absorb_blanks_keep_the_ids_where_a_rule_exists() -> None:
    made = tiny_json(
        added=[{"content": "<|x|>", "lstrip": True, "rstrip": True}, {"content": "<y>", "single_word": True}]
    )
    for text in ("a <|x|> b c\nd", "a\n<|x|>\nb", "a<y> b<y>\nc", "<|x|> 1 a1<|x|>"):
        _every_cut_is_safe(made, text)
