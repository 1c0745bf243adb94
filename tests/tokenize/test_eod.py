"""Which token ends a document."""

from __future__ import annotations

import pytest

from pileshard.errors import TokenizerError
from pileshard.tokenize import load
from tests.paths import SHARED, needs_shared
from tests.tokenizers_made import EOD, tiny_gpt2_json


def test_the_tokenizers_own_token_is_found() -> None:
    tokenizer = load(tiny_gpt2_json(), engine="reference")
    assert (tokenizer.eod_token, tokenizer.eod_id) == (EOD, 399)


def test_a_named_token_wins() -> None:
    tokenizer = load(tiny_gpt2_json(special=(EOD, "<|pad|>")), eod="<|pad|>", engine="reference")
    assert (tokenizer.eod_token, tokenizer.eod_id) == ("<|pad|>", 399)


def test_an_absent_token_names_the_candidates() -> None:
    with pytest.raises(TokenizerError, match=r"no token '</s>'.*<\|endoftext\|>, <\|pad\|>.*--eod"):
        load(tiny_gpt2_json(special=(EOD, "<|pad|>")), eod="</s>", engine="reference")


def test_no_known_token_asks_for_one() -> None:
    with pytest.raises(TokenizerError, match=r"no end-of-document token.*<\|pad\|>.*--eod"):
        load(tiny_gpt2_json(special=("<|pad|>",)), engine="reference")


def test_several_known_tokens_ask_for_one() -> None:
    with pytest.raises(TokenizerError, match=r"several.*<\|endoftext\|>, </s>.*--eod"):
        load(tiny_gpt2_json(special=("</s>", EOD)), engine="reference")


@needs_shared
@pytest.mark.parametrize(
    ("name", "token", "number"),
    [("gpt2", EOD, 50256), ("gpt-neox-20b", EOD, 0), ("deepseek-v3", "<｜end▁of▁sentence｜>", 1)],
)
def test_published_tokenizers_have_their_own(name: str, token: str, number: int) -> None:
    assert SHARED is not None
    tokenizer = load((SHARED / "tokenizers" / f"{name}.json").read_bytes(), engine="reference")
    assert (tokenizer.eod_token, tokenizer.eod_id) == (token, number)


@needs_shared
def test_bert_has_none_and_runs_on_the_reference_with_a_named_one() -> None:
    assert SHARED is not None
    raw = (SHARED / "tokenizers" / "bert-base-uncased.json").read_bytes()
    with pytest.raises(TokenizerError, match=r"\[SEP\].*--eod"):
        load(raw)
    tokenizer = load(raw, eod="[SEP]")
    assert (tokenizer.engine_name, tokenizer.eod_id) == ("reference", 102)
    assert tokenizer.fallback is not None
