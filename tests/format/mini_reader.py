"""A reader of datasets written from `schemas/FORMAT.md` alone: the standard library, and no code of the product."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MASK = (1 << 64) - 1


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def escape(name: str) -> str:
    out = ""
    for at, char in enumerate(name.encode()):
        keep = (chr(char).isalnum() and char < 128) or char in b"_-" or (char == ord(".") and at > 0)
        out += chr(char) if keep else f"~{char:02X}"
    if len(out) > 120:
        out = out[:80] + "~~" + hashlib.sha256(name.encode()).hexdigest()[:16]
    return out or "~"


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


_G = 0x9E3779B97F4A7C15


def key(seed: int, number: int, line: int) -> int:
    pack = number << 40 | line
    return mix(mix(pack ^ mix(seed + _G & MASK)) + mix(seed + 2 * _G & MASK) & MASK)


def identity(number: int, line: int) -> int:
    return mix(mix((number << 40 | line) + 0xD1B54A32D192ED03 & MASK) ^ _G)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def example(number: int, line: int, part: int, tokens: bytes) -> bytes:
    features = b""
    for name, value in ((b"input", number), (b"line", line), (b"part", part)):
        features += field(1, field(1, name) + field(2, field(3, field(1, varint(value)))))
    features += field(1, field(1, b"tokens") + field(2, field(1, field(1, tokens))))
    return field(1, features)


def record(number: int, line: int, part: int, tokens: bytes) -> bytes:
    data = example(number, line, part, tokens)
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


class Record(NamedTuple):
    offset: int
    input: int
    line: int
    part: int
    tokens: tuple[int, ...]


class _Cursor:
    """Reads a message of a known form, field by field."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def inner(self, tag: int) -> _Cursor:
        assert self.data[self.at] == tag
        self.at += 1
        size = self.varint()
        self.at += size
        assert self.at <= len(self.data)
        return _Cursor(self.data[self.at - size : self.at])


def parse(data: bytes, width: int) -> tuple[int, int, int, tuple[int, ...]]:
    features = _Cursor(data).inner(0x0A)
    numbers = []
    for name in (b"input", b"line", b"part"):
        entry = features.inner(0x0A)
        assert entry.inner(0x0A).data == name
        numbers.append(entry.inner(0x12).inner(0x1A).inner(0x0A).varint())
    entry = features.inner(0x0A)
    assert entry.inner(0x0A).data == b"tokens"
    raw = entry.inner(0x12).inner(0x0A).inner(0x0A).data
    tokens = struct.unpack(f"<{len(raw) // width}{'H' if width == 2 else 'I'}", raw)
    assert example(*numbers, raw) == data
    return numbers[0], numbers[1], numbers[2], tokens


def records(data: bytes, width: int) -> Iterator[Record]:
    """The records of a shard's bytes, CRCs checked."""
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert masked(crc32c(data[at : at + 8])) == crc
        body = data[at + 12 : at + 12 + length]
        assert len(body) == length
        assert masked(crc32c(body)) == struct.unpack_from("<I", data, at + 12 + length)[0]
        yield Record(at, *parse(body, width))
        at += 16 + length


def read_index(data: bytes) -> list[tuple[int, ...]]:
    """The four rows."""
    columns = (len(data) - 128) // 32
    text = f"{{'descr': '<u8', 'fortran_order': False, 'shape': (4, {columns}), }}"
    assert data[:128] == (b"\x93NUMPY\x01\x00\x76\x00" + text.encode()).ljust(127) + b"\n"
    return [struct.unpack_from(f"<{columns}Q", data, 128 + row * columns * 8) for row in range(4)]


class Document(NamedTuple):
    source: str
    split: str
    input: int
    line: int
    tokens: tuple[int, ...]
    text_bytes: int


def read_dataset(root: Path) -> tuple[dict[str, Any], list[Document]]:
    """The manifest and all documents in order; whatever the page promises is checked on the way."""
    raw = (root / "manifest.json").read_bytes()
    manifest = json.loads(raw)
    tail = b'"\n}\n'
    digits = raw[-64 - len(tail) : -len(tail)]
    assert raw.endswith(b'"manifest_sha256": "' + digits + tail)
    assert hashlib.sha256(raw[: -64 - len(tail)] + tail).hexdigest().encode() == digits
    named = (
        f"pileshard {manifest['format_version']} {manifest['dtype']} {manifest['eod_id']}{manifest['tokenizer_sha256']}"
    )
    for shard in manifest["shards"]:
        named += f"\n{shard['path']} {shard['sha256']} {shard['index_sha256']}"
    assert hashlib.sha256(named.encode()).hexdigest()[:32] == manifest["dataset_id"]
    assert hashlib.sha256((root / "tokenizer.json").read_bytes()).hexdigest() == manifest["tokenizer_sha256"]
    width = 2 if manifest["vocab_size"] <= 65536 else 4
    assert manifest["dtype"] == f"uint{8 * width}"
    documents: list[Document] = []
    for shard in manifest["shards"]:
        documents += _read_shard(root, manifest, shard, width)
    for entry in manifest["inputs"]:
        assert entry["lines"] == entry["accepted"] + entry["blank"] + sum(entry["rejected"].values())
    came = sum(int(entry["identity_sum"], 16) for entry in manifest["inputs"]) & MASK
    went = sum(identity(document.input, document.line) for document in documents)
    assert came == went + int(manifest["duplicates_identity_sum"], 16) & MASK
    assert manifest["documents"] == len(documents)
    assert manifest["tokens"] == sum(len(document.tokens) for document in documents)
    assert manifest["text_bytes"] == sum(document.text_bytes for document in documents)
    return manifest, documents


def _read_shard(root: Path, manifest: dict[str, Any], shard: dict[str, Any], width: int) -> list[Document]:
    name = f"{shard['split']}-{shard['number']:05d}-of-{shard['count']:05d}"
    assert shard["path"] == f"shards/{escape(shard['source'])}/{name}.tfrecord"
    assert shard["index_path"] == f"shards/{escape(shard['source'])}/{name}.index.npy"
    data, index = (root / shard["path"]).read_bytes(), (root / shard["index_path"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == shard["sha256"]
    assert hashlib.sha256(index).hexdigest() == shard["index_sha256"]
    assert (len(data), len(index)) == (shard["size"], shard["index_size"])
    before, offsets, text_bytes, keys = read_index(index)
    documents: list[Document] = []
    found = list(records(data, width))
    assert len(found) == len(before) - 1 == shard["records"]
    for at, entry in enumerate(found):
        assert entry.offset == offsets[at]
        assert len(entry.tokens) == before[at + 1] - before[at]
        end = offsets[at + 1] - 4
        raw = data[end - len(entry.tokens) * width : end]
        assert struct.unpack(f"<{len(entry.tokens)}{'H' if width == 2 else 'I'}", raw) == entry.tokens
        if manifest["options"]["dedup"] == "none":
            assert keys[at] == key(manifest["options"]["seed"], entry.input, entry.line)
        assert int(shard["key_first"], 16) <= keys[at] <= int(shard["key_last"], 16)
        if entry.part == 0:
            documents.append(
                Document(shard["source"], shard["split"], entry.input, entry.line, entry.tokens, text_bytes[at])
            )
            assert text_bytes[at] > 0
        else:
            assert documents[-1][2:4] == (entry.input, entry.line)
            assert text_bytes[at] == 0
            documents[-1] = documents[-1]._replace(tokens=documents[-1].tokens + entry.tokens)
    assert all(document.tokens[-1] == manifest["eod_id"] for document in documents)
    assert offsets[-1] == len(data)
    assert before[-1] == shard["tokens"]
    return documents
