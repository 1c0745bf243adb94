"""Reads the records of shards with no code of the product: framing, protobuf and all."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if not byte & 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        else:
            length, at = _varint(data, at)
            yield tag >> 3, data[at : at + length]
            at += length


def examples(path: Path) -> Iterator[dict[str, Any]]:
    """Features of each record of a shard: input, line, part as integers, tokens as bytes."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        example = data[at + 12 : at + 12 + length]
        at += 16 + length
        features: dict[str, Any] = {}
        for _, entries in _fields(example):
            for _, entry in _fields(entries):
                (_, key), (_, feature) = _fields(entry)
                ((_, value_list),) = _fields(feature)
                ((_, value),) = _fields(value_list)
                features[key.decode()] = value if key == b"tokens" else _varint(value, 0)[0]
        yield features


def documents(root: Path) -> list[tuple[str, str, int, int, list[int]]]:
    """Every document of a dataset in the order of the manifest: source, split, input, line, ids (with the last one)."""
    manifest = json.loads((root / "manifest.json").read_text())
    out: list[tuple[str, str, int, int, list[int]]] = []
    for shard in manifest["shards"]:
        for record in examples(root / shard["path"]):
            ids = np.frombuffer(record["tokens"], dtype=manifest["dtype"]).tolist()
            if record["part"]:
                assert out[-1][2:4] == (record["input"], record["line"])
                out[-1][4].extend(ids)
            else:
                out.append((shard["source"], shard["split"], record["input"], record["line"], ids))
    return out
