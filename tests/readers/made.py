"""Datasets for tests, written record by record without the build, whose every token is known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from pileshard.format import InputEntry, Manifest, ShardEntry, SourceEntry, Storage
from pileshard.format.identity import document_keys, hex64, identity_hashes, sum64
from pileshard.format.index import make_index
from pileshard.format.manifest import Options
from pileshard.format.paths import MANIFEST, index_path, shard_path
from pileshard.format.record import RECORD_TOKENS, frame


@dataclass
class Made:
    """A dataset and what is in it: per shard (in the manifest's order) its tokens, and whose each token is."""

    url: str
    manifest: Manifest
    streams: list[np.ndarray]
    owners: list[np.ndarray]  # [tokens, 4] of input, line, part, token in the record

    def split(self, split: str) -> list[int]:
        return [number for number, shard in enumerate(self.manifest.shards) if shard.split == split]


def documents(rng: np.random.Generator, tokens: int, mean: float) -> list[int]:
    """Lengths of documents (end of document included) that add up to a number of tokens."""
    lengths: list[int] = []
    left = tokens
    while left:
        lengths.append(int(min(left, 1 + rng.exponential(mean))))
        left -= lengths[-1]
    return lengths


def write_shard(
    storage: Storage,
    source: str,
    split: str,
    number: int,
    count: int,
    docs: list[tuple[int, int, np.ndarray]],
) -> tuple[ShardEntry, np.ndarray]:
    """Writes documents (input, line, tokens); returns the manifest's entry and the owner of every token."""
    out = bytearray()
    tokens, offsets, text_bytes, keys = [0], [0], [], []
    owners = []
    for input_number, line, ids in docs:
        key = int(document_keys(0, input_number, np.array([line]))[0])
        for part, at in enumerate(range(0, len(ids), RECORD_TOKENS)):
            piece = ids[at : at + RECORD_TOKENS]
            out += frame(input_number, line, part, piece.tobytes())
            tokens.append(tokens[-1] + len(piece))
            offsets.append(len(out))
            text_bytes.append(4 * len(ids) if part == 0 else 0)
            keys.append(key)
            owner = np.empty((len(piece), 4), dtype=np.int64)
            owner[:, :3] = input_number, line, part
            owner[:, 3] = np.arange(len(piece))
            owners.append(owner)
    path = shard_path(source, split, number, count)
    index = make_index(tokens, offsets, text_bytes, keys).to_bytes()
    storage.write_bytes(path, bytes(out))
    storage.write_bytes(index_path(path), index)
    entry = ShardEntry(
        path=path,
        source=source,
        split=split,  # type: ignore[arg-type]
        number=number,
        count=count,
        size=len(out),
        sha256=hashlib.sha256(out).hexdigest(),
        index_path=index_path(path),
        index_size=len(index),
        index_sha256=hashlib.sha256(index).hexdigest(),
        records=len(offsets) - 1,
        documents=len(docs),
        tokens=tokens[-1],
        text_bytes=sum(text_bytes),
        key_first=hex64(0),
        key_last=hex64(2**64 - 1),
        identity_sum=hex64(sum(sum64(identity_hashes(i, np.array([line]))) for i, line, _ in docs)),
    )
    return entry, np.concatenate(owners) if owners else np.empty((0, 4), dtype=np.int64)


def make_manifest(shards: list[ShardEntry], vocab_size: int, inputs: int = 1) -> Manifest:
    """A manifest around shards."""
    names = sorted({(shard.source, shard.split) for shard in shards})
    groups = [[s for s in shards if (s.source, s.split) == name] for name in names]
    sources = [
        SourceEntry(
            name=name,
            split=split,
            documents=sum(s.documents for s in group),
            tokens=sum(s.tokens for s in group),
            text_bytes=sum(s.text_bytes for s in group),
            shards=len(group),
        )
        for (name, split), group in zip(names, groups, strict=True)
    ]
    return Manifest(
        dtype="uint16" if vocab_size <= 65536 else "uint32",
        vocab_size=vocab_size,
        eod_id=0,
        eod_token="<|endoftext|>",
        tokenizer_sha256="0" * 64,
        options=Options(
            seed=0,
            shard_bytes=1 << 30,
            validation=0.0,
            dedup="none",
            special_tokens="text",
            text_key="text",
            source_key="meta.pile_set_name",
        ),
        documents=sum(s.documents for s in shards),
        tokens=sum(s.tokens for s in shards),
        text_bytes=sum(s.text_bytes for s in shards),
        inputs=[InputEntry(url=f"input-{n:02}.jsonl.zst", size=1, sha256="0" * 64) for n in range(inputs)],
        sources=sources,
        shards=shards,
    )


def make_dataset(
    url: str,
    shards: dict[tuple[str, str], list[int]],
    *,
    seed: int = 0,
    mean_document: float | dict[str, float] = 50,
    vocab_size: int = 50257,
    options: dict[str, Any] | None = None,
) -> Made:
    """Writes a dataset.

    Args:
      url: where to.
      shards: tokens of each shard of each (source, split).
      seed: of the random tokens.
      mean_document: mean tokens of a document, for all or by source.
      vocab_size: above 65,536 makes uint32 tokens.
      options: for fsspec.
    """
    storage = Storage(url, options)
    rng = np.random.default_rng(seed)
    dtype = np.dtype("<u2" if vocab_size <= 65536 else "<u4")
    entries, streams, owners = [], [], []
    lines = [0, 0, 0]
    for (source, split), sizes in sorted(shards.items()):
        for number, size in enumerate(sizes):
            stream = rng.integers(1, vocab_size, size, dtype=dtype)
            docs, at = [], 0
            mean = mean_document[source] if isinstance(mean_document, dict) else mean_document
            for length in documents(rng, size, mean):
                stream[at + length - 1] = 0
                which = int(rng.integers(len(lines)))
                lines[which] += 1
                docs.append((which, lines[which], stream[at : at + length]))
                at += length
            entry, owner = write_shard(storage, source, split, number, len(sizes), docs)
            entries.append(entry)
            streams.append(stream)
            owners.append(owner)
    manifest = make_manifest(entries, vocab_size, inputs=len(lines))
    data = manifest.to_bytes()
    storage.write_bytes(MANIFEST, data)
    return Made(url, Manifest.from_bytes(data, url), streams, owners)
