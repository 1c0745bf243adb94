"""Texts of the shared corpus."""

from __future__ import annotations

import io
import json
import sys

import pytest

from tests.paths import SHARED

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.fixture(scope="session")
def corpus_texts() -> list[bytes]:
    """The first documents of the corpus, about 15 MB of UTF-8."""
    assert SHARED is not None
    texts: list[bytes] = []
    size = 0
    with zstd.open(SHARED / "corpus" / "00.jsonl.zst", "rb") as stream:
        for line in io.BufferedReader(stream):
            texts.append(json.loads(line)["text"].encode())
            size += len(texts[-1])
            if size > 15_000_000:
                break
    return texts
