"""The proofs that keep the fast engine honest, against engines that are made to differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pileshard.errors import TokenizerError
from pileshard.tokenize import EngineMismatch, load
from pileshard.tokenize import engine_fast as fast_module
from pileshard.tokenize import proof as proof_module
from pileshard.tokenize.codepoints import CodePoints
from pileshard.tokenize.engine_fast import FastEngine
from pileshard.tokenize.fragments import fragments
from pileshard.tokenize.panics import engine_errors
from tests.tokenizers_made import tiny_gpt2_json, tiny_json

pytest.importorskip("gigatoken")


class Sabotaged(FastEngine):
    """Gives one wrong id in every text that holds a word."""

    word = b"sabotage"

    def encode(self, texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        ids, counts = super().encode(texts)
        ids = ids.copy()
        for text, end, count in zip(texts, np.cumsum(counts), counts, strict=True):
            if self.word in text and count:
                ids[end - 1] += 1
        return ids, counts


@pytest.fixture
def sabotaged(monkeypatch: pytest.MonkeyPatch) -> type[Sabotaged]:
    monkeypatch.setattr("pileshard.tokenize.tokenizer.FastEngine", Sabotaged)
    return Sabotaged


@pytest.mark.usefixtures("sabotaged")
def test_a_difference_in_the_first_documents_is_an_engine_mismatch() -> None:
    tokenizer = load(tiny_gpt2_json(), engine="fast")
    with pytest.raises(EngineMismatch, match=r"engine='reference'"):
        tokenizer.encode_batch([b"fine", b"act of sabotage"], [1, 3])
    assert issubclass(EngineMismatch, TokenizerError)


@pytest.mark.usefixtures("sabotaged")
def test_a_difference_later_is_found_in_the_sampled_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_module, "FIRST_BYTES", 0)
    tokenizer = load(tiny_gpt2_json(), engine="fast")
    tokenizer.encode_batch([b"act of sabotage"], [2047])
    with pytest.raises(EngineMismatch):
        tokenizer.encode_batch([b"act of sabotage"], [4096])
    with pytest.raises(EngineMismatch):
        tokenizer.encode_batch([b"sabotage word " * 100_000], np.array([2048], np.uint64))


def test_windows_of_long_documents_stay_small_and_differ_with_the_ordinal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_module, "FIRST_BYTES", 0)
    tokenizer = load(tiny_gpt2_json(), engine="fast")
    text = b" ".join(b"word%d a" % i for i in range(100_000))
    seen = []
    monkeypatch.setattr(proof_module, "agreement", lambda fast, reference, texts: seen.extend(texts) or [True])
    for i in range(20):
        tokenizer.encode_batch([text], [i * 2048])
    assert len(set(seen)) == 20
    assert all(16_000 < len(window) < 17_000 and window in text for window in seen)


def test_a_document_with_a_divergent_code_point_goes_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sabotaged, "word", "ж".encode())
    monkeypatch.setattr("pileshard.tokenize.tokenizer.FastEngine", Sabotaged)
    tokenizer = load(tiny_gpt2_json(), engine="fast")
    texts = [b"plain", "ждать".encode(), "é".encode(), b"word " * 2000 + "ж".encode() + b" word" * 2000]
    expected = load(tiny_gpt2_json(), engine="reference").encode_batch(texts, [1] * 4)
    actual = tokenizer.encode_batch(texts, [0] * 4)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_auto_falls_back_when_ascii_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sabotaged, "word", b"'ll")
    monkeypatch.setattr("pileshard.tokenize.tokenizer.FastEngine", Sabotaged)
    tokenizer = load(tiny_gpt2_json())
    assert tokenizer.engine_name == "reference"
    assert tokenizer.fallback is not None
    assert "differs" in tokenizer.fallback
    with pytest.raises(EngineMismatch):
        load(tiny_gpt2_json(), engine="fast")


def test_every_code_point_is_compared_once() -> None:
    asked: list[str] = []
    points = CodePoints(lambda texts: [asked.append(t) or "é" not in t for t in texts], False)  # type: ignore[func-returns-value]
    assert points.divergent_texts([b"ascii", "ü".encode(), "ü中é".encode(), "中".encode()]) == [2]
    assert points.divergent_texts(["éü".encode(), "中".encode() * 100_000]) == [0]
    assert sorted(asked) == sorted(fragments(char, False) for char in "éü中")
    assert points.divergent.tolist() == [0xE9]


def test_a_divergent_part_taints_what_decomposes_to_it() -> None:
    points = CodePoints(lambda texts: [" \u0301 " not in t for t in texts], True)
    assert points.divergent_texts(["é".encode(), "ü".encode(), "\u0378".encode()]) == [0, 2]


def test_marks_of_other_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(tiny_json(normalizer={"type": "NFC"}), engine="fast")
    texts = ["a\u1ac2\u0859".encode(), "a\u0859\u1ac2".encode(), "a\U00010f50\u073f".encode()]
    expected = load(tiny_json(normalizer={"type": "NFC"}), engine="reference").encode_batch(texts, [1] * 3)
    for a, b in zip(tokenizer.encode_batch(texts, [1] * 3), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_cache_of_words_is_dropped_when_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = iter(range(0, 10**12, 10 << 20))
    monkeypatch.setattr(fast_module, "resident_bytes", lambda: next(resident))
    tokenizer = load(tiny_gpt2_json(), engine="fast", cache_bytes=64 << 20)
    expected, _ = tokenizer.encode_batch([b"hello world"], [1])
    for _ in range(30):
        ids, _ = tokenizer.encode_batch([b"hello world"], [1])
        np.testing.assert_array_equal(ids, expected)
    assert tokenizer._fast is not None
    assert 3 <= tokenizer._fast.rebuilds <= 12


def test_the_cache_is_bounded_where_memory_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_module, "resident_bytes", lambda: None)
    tokenizer = load(tiny_gpt2_json(), engine="fast", cache_bytes=1 << 20)
    for _ in range(8):
        tokenizer.encode_batch([b"hello world " * 10_000], [1])
    assert tokenizer._fast is not None
    assert tokenizer._fast.rebuilds >= 2


def test_repeated_text_does_not_rebuild() -> None:
    tokenizer = load(tiny_gpt2_json(), engine="fast", cache_bytes=16 << 20)
    texts = [b"the hello world of text %d" % i for i in range(20_000)]
    for _ in range(15):
        tokenizer.encode_batch(texts, range(1, len(texts) + 1))
    assert tokenizer._fast is not None
    assert tokenizer._fast.rebuilds <= 1


def test_random_text_keeps_memory_bounded() -> None:
    psutil = pytest.importorskip("psutil")
    process = psutil.Process()
    tokenizer = load(tiny_gpt2_json(), engine="fast", cache_bytes=32 << 20)
    generator = np.random.default_rng(0)
    sizes = []
    for _ in range(16):
        letters = generator.integers(97, 123, 2_000_000, dtype=np.uint8)
        letters[generator.integers(0, len(letters), len(letters) // 9)] = 32
        tokenizer.encode_batch([letters.tobytes()], [1])
        sizes.append(process.memory_info().rss)
    assert tokenizer._fast is not None
    assert tokenizer._fast.rebuilds >= 1
    assert max(sizes[4:]) - sizes[3] < 200 << 20


def _panic(*args: Any, **kwargs: Any) -> Any:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    raise panic("index out of bounds")


def test_a_panic_of_the_fast_engine_is_an_engine_mismatch() -> None:
    tokenizer = load(tiny_gpt2_json(), engine="fast")
    assert tokenizer._fast is not None
    tokenizer._fast._engine = type("Engine", (), {"encode_batch": _panic})()
    with pytest.raises(EngineMismatch, match="panicked: index out of bounds"):
        tokenizer.encode_batch([b"text"], [1])


def test_a_panic_while_loading_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigatoken.Tokenizer.from_json", _panic)
    tokenizer = load(tiny_gpt2_json())
    assert tokenizer.engine_name == "reference"
    assert tokenizer.fallback is not None
    assert "panicked" in tokenizer.fallback


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_passes(error: type[BaseException]) -> None:
    with pytest.raises(error), engine_errors("anything"):
        raise error
