"""Datasets to be audited, each built once a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.built import document, run_build, write_input
from tests.tokenizers_made import EOD, tiny_gpt2_json

RECORD_TOKENS = 65536


def _build(folder: Path, lines: list, tokenizer: bytes | None = None, **options) -> Path:  # type: ignore[no-untyped-def,type-arg]
    (folder / "tokenizer.json").write_bytes(tokenizer or tiny_gpt2_json())
    inputs = [
        write_input(folder / f"{number:02d}.jsonl.zst", lines[number::2]) for number in range(2) if lines[number::2]
    ]
    run_build(folder / "out", inputs, tokenizer=str(folder / "tokenizer.json"), **options)
    return folder / "out"


def _documents(count: int) -> list[dict]:  # type: ignore[type-arg]
    return [document(f"Document {number} of some: " + "é" * (number % 7), "Prose") for number in range(count)]


@pytest.fixture(scope="session")
def parts_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 1, 2 and 3 records, among them those that fill their last record or exceed it by one id."""
    sizes = [5, RECORD_TOKENS - 1, 7, RECORD_TOKENS, 2 * RECORD_TOKENS + 10, 9]
    lines = [document("Q" * size, "Prose") for size in sizes]
    return _build(tmp_path_factory.mktemp("parts"), lines, shard_bytes=10**9)


@pytest.fixture(scope="session")
def exact_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deduplicated by text: keys cannot be computed again from identities."""
    return _build(tmp_path_factory.mktemp("exact"), _documents(20) + _documents(20), dedup="exact", shard_bytes=1024)


@pytest.fixture(scope="session")
def token_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that hold the end-of-document id as a token, one of them at the end of a full record."""
    texts = [f"a{EOD}b", EOD, f"{EOD}{EOD}", "plain", "Q" * (RECORD_TOKENS - 1) + EOD + "Q" * 20, f"c{EOD}"]
    lines = [document(text, "Prose") for text in texts]
    return _build(tmp_path_factory.mktemp("token"), lines, special_tokens="token", shard_bytes=10**9)


@pytest.fixture(scope="session")
def wide_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of four bytes."""
    tokenizer = json.loads(tiny_gpt2_json())
    tokenizer["model"]["vocab"]["QQQQQQQQ"] = 70_000
    lines = _documents(12)
    return _build(tmp_path_factory.mktemp("wide"), lines, json.dumps(tokenizer).encode(), engine="reference")


@pytest.fixture(scope="session")
def other_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden dataset's inputs in another order."""
    from tests.data.golden.make_golden import HERE

    out = tmp_path_factory.mktemp("other") / "out"
    inputs = [str(path) for path in (HERE / "inputs").iterdir()]
    run_build(
        out, inputs, tokenizer=str(HERE / "tokenizer.json"), seed=1, shard_bytes=1024, validation=0.2, max_rejected=1.0
    )
    return out
