"""The tokenizer of a build: ids equal to the reference's on every route, special tokens, long texts, loading."""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import MissingExtraError, OptionError, PileshardError, TokenizerError
from pileshard.tokenize import Tokenizer, load
from pileshard.tokenize import tokenizer as tokenizer_module
from pileshard.tokenize.definition import Definition
from pileshard.tokenize.engine_reference import ReferenceEngine
from tests.paths import SHARED, needs_shared
from tests.tokenizers_made import EOD, tiny_gpt2_json, tiny_json

pytest.importorskip("gigatoken")

FAST_NAMES = ("gpt2", "gpt-neox-20b", "deepseek-v3")
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.text(alphabet="aeoéz \n1'.\u0301\u0327\u3099か가\u1161\u11a8", max_size=8),
        st.sampled_from(
            [
                EOD,
                "<think>",
                "<｜end▁of▁sentence｜>",
                "     ",
                "'s",
                "'ſ",
                "\r\n",
                "\u0345\u0301",
                "🥹",
                "中，文",
                "\u1ac2\u0859",
            ]
        ),
    ),
    max_size=12,
).map("".join)


@cache
def shared_json(name: str) -> bytes:
    assert SHARED is not None
    return (SHARED / "tokenizers" / f"{name}.json").read_bytes()


@cache
def fast(tokenizer_json: bytes, policy: str = "text") -> Tokenizer:
    return load(tokenizer_json, special_tokens=policy, engine="fast")  # type: ignore[arg-type]


@cache
def truth(tokenizer_json: bytes, policy: str = "text") -> ReferenceEngine:
    return ReferenceEngine(tokenizer_json, Definition.parse(tokenizer_json, policy))  # type: ignore[arg-type]


def assert_equals_reference(tokenizer_json: bytes, texts: list[bytes], policy: str = "text") -> None:
    tokenizer = fast(tokenizer_json, policy)
    ids, ends = tokenizer.encode_batch(texts, range(1, len(texts) + 1))
    expected, counts = truth(tokenizer_json, policy).encode(texts)
    assert ids.dtype == tokenizer.dtype
    assert ends.dtype == np.int64
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(ends, np.cumsum(counts))


@pytest.mark.parametrize("policy", ["text", "token"])
@pytest.mark.parametrize("form", [None, "NFC"])
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=8))
def test_fast_equals_reference_on_any_text(form: str | None, policy: str, texts: list[str]) -> None:
    normalizer = {"type": form} if form else None
    made = tiny_json(normalizer=normalizer, added=[{"content": "<think>"}, {"content": "   ", "normalized": True}])
    assert_equals_reference(made, [text.encode() for text in texts], policy)


@needs_shared
@pytest.mark.parametrize("policy", ["text", "token"])
@pytest.mark.parametrize("name", FAST_NAMES)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=8))
def test_fast_equals_reference_on_any_text_for_published_tokenizers(name: str, policy: str, texts: list[str]) -> None:
    assert_equals_reference(shared_json(name), [text.encode() for text in texts], policy)


@needs_shared
@pytest.mark.parametrize("name", FAST_NAMES)
def test_fast_equals_reference_on_the_corpus(name: str, corpus_texts: list[bytes]) -> None:
    sample = corpus_texts[::40]
    assert sum(map(len, sample)) > 300_000
    assert_equals_reference(shared_json(name), sample)


@needs_shared
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-20b", "deepseek-v3", "bert-base-uncased"])
def test_a_long_text_has_the_ids_of_the_whole(
    name: str, corpus_texts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "LONG_BYTES", 20_000)
    monkeypatch.setattr(tokenizer_module, "PIECE_BYTES", 5_000)
    long = b" ".join(corpus_texts[:60])[:400_000].decode(errors="ignore").encode()
    tokenizer = load(shared_json(name), eod="[SEP]" if name.startswith("bert") else None)
    texts = [b"short", long, b"", long[:30_000].decode(errors="ignore").encode()]
    ids, ends = tokenizer.encode_batch(texts, [1, 2, 3, 4])
    expected, counts = truth(shared_json(name)).encode(texts)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(ends, np.cumsum(counts))


@pytest.mark.parametrize("char", ["a", "ab", " ", "\n", "1", "é", "中", "a\u0301", "=", "👩\u200d👧", "\u0301\u0316"])
def test_a_text_without_any_cut_stays_whole_and_equal(char: str) -> None:
    made = tiny_json(normalizer={"type": "NFC"})
    assert_equals_reference(made, [(char * (1_200_000 // len(char.encode()))).encode()])


def test_bounded_calls_give_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [b"hello world %d" % i for i in range(300)] + [b"", "é 中文".encode()] * 5
    monkeypatch.setattr(tokenizer_module, "CALL_BYTES", 100)
    assert_equals_reference(tiny_gpt2_json(), texts)


def test_no_texts_give_no_ids() -> None:
    for engine in ("fast", "reference"):
        ids, ends = load(tiny_gpt2_json(), engine=engine).encode_batch([], [])  # type: ignore[arg-type]
        assert (ids.dtype, len(ids), ends.dtype, len(ends)) == (np.dtype("<u2"), 0, np.dtype("i8"), 0)
        ids, ends = load(tiny_gpt2_json(), engine=engine).encode_batch([b"", b""], [0, 0])  # type: ignore[arg-type]
        assert (len(ids), ends.tolist()) == (0, [0, 0])


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_special_tokens_in_a_text_follow_the_policy(engine: str) -> None:
    text = f"one{EOD}two".encode()
    as_text = load(tiny_gpt2_json(), special_tokens="text", engine=engine)  # type: ignore[arg-type]
    as_token = load(tiny_gpt2_json(), special_tokens="token", engine=engine)  # type: ignore[arg-type]
    reject = load(tiny_gpt2_json(), special_tokens="reject", engine=engine)  # type: ignore[arg-type]
    ids = as_text.encode_batch([text], [1])[0]
    assert as_text.eod_id not in ids
    assert as_text.decode(ids) == text.decode()
    assert as_token.encode_batch([text], [1])[0].tolist().count(as_token.eod_id) == 1
    assert reject.contains_special(text)
    assert not reject.contains_special(b"one<|endoftex|>two")


@needs_shared
@pytest.mark.parametrize("name", FAST_NAMES)
def test_no_special_id_comes_from_text(name: str) -> None:
    tokenizer = fast(shared_json(name))
    special = [token for token in Definition.parse(shared_json(name), "text").added if token.special]
    texts = [f"a{token.content} {token.content}{token.content}\n".encode() for token in special]
    ids, _ = tokenizer.encode_batch(texts, range(len(texts)))
    assert not set(ids.tolist()) & {token.id for token in special}
    assert all(tokenizer.contains_special(text) for text in texts)
    assert not tokenizer.contains_special(b"plain < text | with <| parts |> and <" * 100)


def test_the_dtype_follows_the_highest_id() -> None:
    assert load(tiny_gpt2_json()).dtype == np.dtype("<u2")
    assert load(tiny_gpt2_json()).vocab_size == 400
    if SHARED is not None:
        assert fast(shared_json("gpt-neox-20b")).vocab_size == 50277
        assert (fast(shared_json("deepseek-v3")).vocab_size, fast(shared_json("deepseek-v3")).dtype) == (129280, "<u4")


def test_truncation_and_padding_of_the_file_are_off() -> None:
    import json

    raw = json.loads(tiny_gpt2_json())
    raw["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": EOD,
    }
    text = b"the world of text and more of it"
    expected = load(tiny_gpt2_json(), engine="reference").encode_batch([text], [1])[0]
    for engine in ("fast", "reference"):
        ids, _ = load(json.dumps(raw).encode(), engine=engine).encode_batch([text], [1])  # type: ignore[arg-type]
        np.testing.assert_array_equal(ids, expected)


def test_auto_takes_the_fast_engine_and_says_why_not() -> None:
    assert load(tiny_gpt2_json()).engine_name == "fast"
    odd = load(tiny_json(normalizer={"type": "Lowercase"}))
    assert odd.engine_name == "reference"
    assert odd.fallback is not None
    assert "Lowercase" in odd.fallback
    with pytest.raises(TokenizerError, match="Lowercase"):
        load(tiny_json(normalizer={"type": "Lowercase"}), engine="fast")


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ([{"content": "<x>", "lstrip": True}], "lstrip"),
        ([{"content": "<x>", "single_word": True}], "single_word"),
        ([{"content": "of|"}, {"content": "<eof|>", "special": True}], "overlap"),
        ([{"content": ">z"}], "overlap"),
        ([{"content": "a=", "normalized": True}, {"content": "=>"}], "overlap"),
    ],
)
def test_added_tokens_beyond_the_proof_go_to_the_reference(added: list[dict[str, object]], said: str) -> None:
    tokenizer = load(tiny_json(added=added))
    assert tokenizer.engine_name == "reference"
    assert tokenizer.fallback is not None
    assert said in tokenizer.fallback


@pytest.mark.parametrize("content", ["<=", "a;", "-a", "é!", "K!"])
def test_added_tokens_that_nfc_may_touch_go_to_the_reference(content: str) -> None:
    made = tiny_json(normalizer={"type": "NFC"}, added=[{"content": content, "normalized": True}])
    assert load(made).fallback is not None
    assert load(tiny_json(added=[{"content": content, "normalized": True}])).fallback is None
    assert load(tiny_json(normalizer={"type": "NFC"}, added=[{"content": content}])).fallback is None


def test_without_gigatoken_auto_falls_back_and_fast_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    tokenizer = load(tiny_gpt2_json())
    assert tokenizer.engine_name == "reference"
    assert tokenizer.fallback is not None
    assert "pip install 'pileshard[fast]'" in tokenizer.fallback
    with pytest.raises(MissingExtraError, match=r"needs the package 'gigatoken'.*pip install"):
        load(tiny_gpt2_json(), engine="fast")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"model": 1}',
        b'{"model": {"type": "BPE"}, "added_tokens": [{}]}',
        b'{"model": {"type": "Nothing"}}',
        tiny_gpt2_json()[:1000],
        tiny_gpt2_json().replace(b'"dropout": null', b'"dropout": 0.1').replace(b'"dropout":null', b'"dropout":0.1'),
    ],
)
def test_a_damaged_file_is_one_clear_error(damaged: bytes) -> None:
    with pytest.raises(PileshardError):
        load(damaged, eod=EOD)


def test_unknown_options_are_named() -> None:
    with pytest.raises(OptionError, match="special_tokens='drop'"):
        load(tiny_gpt2_json(), special_tokens="drop")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="engine='slow'"):
        load(tiny_gpt2_json(), engine="slow")  # type: ignore[arg-type]
