"""Datasets for the readers' benchmarks: random tokens in documents of the Pile's mean length, without the build."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import numpy as np

from pileshard.format import Manifest, ShardEntry, SourceEntry, Storage
from pileshard.format.index import make_index
from pileshard.format.manifest import Options
from pileshard.format.paths import MANIFEST, index_path, shard_path
from pileshard.format.record import RECORD_TOKENS, frame

MEAN_DOCUMENT = 1500  # tokens; the Pile's mean


def write_shard(storage: Storage, path: str, tokens: int, seed: int, mean: int = MEAN_DOCUMENT) -> ShardEntry:
    """One shard of uint16 tokens."""
    rng = np.random.default_rng(seed)
    stream = rng.integers(1, 50257, tokens, dtype=np.uint16)
    lengths = np.minimum(1 + rng.exponential(mean, 2 * tokens // mean + 10).astype(np.int64), RECORD_TOKENS)
    ends = np.cumsum(lengths)
    ends = np.append(ends[ends < tokens], tokens)
    starts = np.insert(ends[:-1], 0, 0)
    offsets = [0]
    with storage.create(path) as file:
        for line, (begin, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True), 1):
            record = frame(0, line, 0, stream[begin:end].tobytes())
            offsets.append(offsets[-1] + len(record))
            file.write(record)
    zeros = np.zeros(len(starts), dtype=np.uint64)
    index = make_index(np.insert(ends, 0, 0), offsets, zeros, zeros).to_bytes()
    storage.write_bytes(index_path(path), index)
    return ShardEntry(
        path=path,
        source="made",
        split="train",
        number=0,
        count=1,
        size=offsets[-1],
        sha256=hashlib.sha256(path.encode()).hexdigest(),  # of the name: enough to tell contents apart
        index_path=index_path(path),
        index_size=len(index),
        index_sha256=hashlib.sha256(index_path(path).encode()).hexdigest(),
        records=len(starts),
        documents=len(starts),
        tokens=tokens,
        text_bytes=0,
        key_first="0" * 16,
        key_last="f" * 16,
        identity_sum="0" * 16,
    )


def write_manifest(storage: Storage, shards: list[ShardEntry]) -> None:
    """The manifest around shards."""
    options = Options(
        seed=0, shard_bytes=1, validation=0, dedup="none", special_tokens="text", text_key="text", source_key="meta"
    )
    documents, tokens = sum(s.documents for s in shards), sum(s.tokens for s in shards)
    source = SourceEntry(
        name="made", split="train", documents=documents, tokens=tokens, text_bytes=0, shards=len(shards)
    )
    manifest = Manifest(
        dtype="uint16",
        vocab_size=50257,
        eod_id=0,
        eod_token="<|endoftext|>",
        tokenizer_sha256="0" * 64,
        options=options,
        documents=documents,
        tokens=tokens,
        text_bytes=0,
        inputs=[],
        sources=[source],
        shards=shards,
    )
    storage.write_bytes(MANIFEST, manifest.to_bytes())


def make(root: Path, shards: int, tokens: int, mean: int = MEAN_DOCUMENT) -> None:
    """A dataset of different shards, and of documents of a mean length."""
    storage = Storage(str(root))
    paths = [shard_path("made", "train", number, shards) for number in range(shards)]
    write_manifest(storage, [write_shard(storage, path, tokens, seed, mean) for seed, path in enumerate(paths)])


def make_linked(root: Path, shards: int, tokens: int) -> None:
    """A dataset whose shards are hard links of one: as many names and opens, few bytes."""
    storage = Storage(str(root))
    first = write_shard(storage, "one.tfrecord", tokens, 0)
    entries = []
    for number in range(shards):
        path = shard_path("made", "train", number, shards)
        entries.append(msgspec.structs.replace(first, path=path, index_path=index_path(path), number=number))
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / first.path, root / path)
        os.link(root / first.index_path, root / entries[-1].index_path)
    write_manifest(storage, entries)
