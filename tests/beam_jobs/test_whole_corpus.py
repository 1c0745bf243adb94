"""The whole shared corpus, every token of every document against the reference. Slow: the reference takes minutes."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from backports import zstd
from tokenizers import Tokenizer

from pileshard.audit.verify import verify
from tests.built import run_build
from tests.paths import SHARED, needs_shared
from tests.records import examples

pytestmark = [needs_shared, pytest.mark.slow]

CORPUS = sorted((SHARED / "corpus").glob("0?.jsonl.zst")) if SHARED else []


def digests(root: Path) -> dict[tuple[int, int], bytes]:
    """Hash of each document's token bytes, by input and line."""
    manifest = json.loads((root / "manifest.json").read_text())
    hashes: dict[tuple[int, int], hashlib._Hash] = {}
    for shard in manifest["shards"]:
        for record in examples(root / shard["path"]):
            key = (record["input"], record["line"])
            assert (key in hashes) == (record["part"] > 0)
            hashes.setdefault(key, hashlib.blake2b(digest_size=16)).update(record["tokens"])
    return {key: value.digest() for key, value in hashes.items()}


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-20b", "deepseek-v3"])
def test_every_token_of_every_document_is_the_references(name: str, tmp_path: Path) -> None:
    assert SHARED
    path = SHARED / "tokenizers" / f"{name}.json"
    manifest = run_build(
        tmp_path / "dataset", list(map(str, CORPUS)), tokenizer=str(path), shard_bytes=16_000_000, workers=2
    ).manifest
    assert verify(str(tmp_path / "dataset")).sound
    sizes: dict[str, list[int]] = {}
    for shard in manifest.shards:
        sizes.setdefault(shard.source, []).append(shard.size)
    assert any(len(group) > 1 for group in sizes.values())
    assert all(max(group) < 1.1 * min(group) for group in sizes.values())
    found = digests(tmp_path / "dataset")
    reference = Tokenizer.from_file(str(path))
    reference.encode_special_tokens = True
    checked = 0
    for number, entry in enumerate(CORPUS):
        lines = enumerate(zstd.decompress(entry.read_bytes()).split(b"\n"), start=1)
        texts = ((line, json.loads(raw)["text"]) for line, raw in lines if raw)
        while batch := list(islice(texts, 256)):
            encodings = reference.encode_batch([text for _, text in batch], add_special_tokens=False)
            for (line, _), encoding in zip(batch, encodings, strict=True):
                ids = np.array([*encoding.ids, manifest.eod_id], dtype=manifest.token_dtype)
                assert found[number, line] == hashlib.blake2b(ids.tobytes(), digest_size=16).digest(), (entry, line)
                checked += 1
    assert checked == len(found) == manifest.documents
