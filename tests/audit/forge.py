"""Forges datasets: changes records, indexes or the manifest and makes every hash, size and sum fit again.

A damaged byte is found by its CRC. A program that wrote the wrong thing gets its CRCs right; what verify says of it
rests on its checks of meaning, and those are reached only by a forger who is as careful as this one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pileshard.format.identity import document_keys, identity_hashes
from pileshard.format.index import make_index
from pileshard.format.record import frame, masked_crc, parse_example

MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Record:
    """A record: its features, its column of the index, and, where `raw` is given, whatever bytes stand for it."""

    input: int
    line: int
    part: int
    tokens: bytes
    text_bytes: int
    key: int
    raw: bytes | None = None

    def framed(self) -> bytes:
        return self.raw if self.raw is not None else frame(self.input, self.line, self.part, self.tokens)


def framed(data: bytes) -> bytes:
    """Any bytes in the framing of a record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


class Forgery:
    """A copy of a dataset to be changed."""

    def __init__(self, source: Path, root: Path) -> None:
        shutil.copytree(source, root)
        self.root = root
        self.manifest: dict[str, Any] = json.loads((root / "manifest.json").read_bytes())
        self.width = 2 if self.manifest["dtype"] == "uint16" else 4

    @property
    def shards(self) -> list[dict[str, Any]]:
        return self.manifest["shards"]

    def path(self, relative: str) -> Path:
        return self.root / relative

    def shard_of(self, source: str, split: str = "train", number: int = 0) -> dict[str, Any]:
        wanted = (source, split, number)
        return next(s for s in self.shards if (s["source"], s["split"], s["number"]) == wanted)

    def largest(self) -> dict[str, Any]:
        """The shard of most records."""
        return max(self.shards, key=lambda shard: shard["records"])

    def table(self, shard: dict[str, Any]) -> np.ndarray:
        return np.load(self.path(shard["index_path"]))

    def records(self, shard: dict[str, Any]) -> list[Record]:
        data = self.path(shard["path"]).read_bytes()
        table = self.table(shard)
        out = []
        for at in range(table.shape[1] - 1):
            begin, end = int(table[1, at]), int(table[1, at + 1])
            example = parse_example(data[begin + 12 : end - 4])
            tokens = data[begin + 12 + example.tokens_at : end - 4]
            out.append(Record(*example[:3], tokens, int(table[2, at]), int(table[3, at])))
        return out

    def offset(self, shard: dict[str, Any], number: int) -> int:
        return int(self.table(shard)[1, number])

    def ids(self, record: Record) -> np.ndarray:
        return np.frombuffer(record.tokens, f"<u{self.width}").copy()

    def with_ids(self, record: Record, ids: Any) -> Record:
        return replace(record, tokens=np.asarray(ids).astype(f"<u{self.width}").tobytes())

    def renumbered(self, record: Record, **changes: int) -> Record:
        """A record of another identity, with the key that goes with it."""
        record = replace(record, **changes)
        seed = self.manifest["options"]["seed"]
        lines = np.array([record.line & MASK], dtype=np.uint64)
        return replace(record, key=int(document_keys(seed, record.input, lines)[0]))

    def write(self, shard: dict[str, Any], records: list[Record], close: bool = True) -> None:
        """Writes a shard and its index, and makes the whole manifest fit."""
        pieces = [record.framed() for record in records]
        counts = [len(record.tokens) // self.width for record in records]
        self.path(shard["path"]).write_bytes(b"".join(pieces))
        heads = [record for record in records if record.part == 0]
        index = make_index(
            np.cumsum([0, *counts]).astype(np.uint64),
            np.cumsum([0, *map(len, pieces)]).astype(np.uint64),
            np.array([record.text_bytes for record in records], np.uint64),
            np.array([record.key for record in records], np.uint64),
        )
        identities = sum(
            int(identity_hashes(record.input, np.array([record.line & MASK], dtype=np.uint64))[0]) for record in heads
        )
        shard.update(
            records=len(records),
            documents=len(heads),
            tokens=sum(counts),
            text_bytes=sum(record.text_bytes for record in records),
            identity_sum=f"{identities & MASK:016x}",
        )
        self.write_index(shard, index.to_bytes(), close)

    def write_index(self, shard: dict[str, Any], data: bytes, close: bool = True) -> None:
        self.path(shard["index_path"]).write_bytes(data)
        self.seal(close)

    def seal(self, close: bool = True) -> None:
        """Makes sizes, hashes and totals those of the files; with `close`, the account of the inputs too."""
        manifest = self.manifest
        for shard in self.shards:
            for kind in ("", "index_"):
                path = self.path(shard[f"{kind}path"])
                if path.is_file():
                    data = path.read_bytes()
                    shard[f"{kind}size"] = len(data)
                    shard[f"{kind}sha256"] = hashlib.sha256(data).hexdigest()
        for name in ("documents", "tokens", "text_bytes"):
            manifest[name] = sum(shard[name] for shard in self.shards)
            for source in manifest["sources"]:
                mine = (source["name"], source["split"])
                source[name] = sum(s[name] for s in self.shards if (s["source"], s["split"]) == mine)
        if close:
            self._close_account()
        self.sign()

    def _close_account(self) -> None:
        inputs, first = self.manifest["inputs"], self.manifest["inputs"][0]
        if not any(entry["duplicates"] for entry in inputs):
            for name in ("tokens", "text_bytes"):
                if self.manifest[name] != sum(entry[name] for entry in inputs):
                    for entry in inputs:
                        entry[name] = 0
                    first[name] = self.manifest[name]
        missing = self.manifest["documents"] - sum(entry["accepted"] - entry["duplicates"] for entry in inputs)
        for entry in inputs:
            change = max(missing, -entry["accepted"])
            entry["accepted"] += change
            entry["lines" if change > 0 else "blank"] += abs(change)
            missing -= change
        went = sum(int(shard["identity_sum"], 16) for shard in self.shards)
        went += int(self.manifest["duplicates_identity_sum"], 16)
        came = sum(int(entry["identity_sum"], 16) for entry in inputs)
        first["identity_sum"] = f"{int(first['identity_sum'], 16) + went - came & MASK:016x}"

    def sign(self) -> None:
        """Writes the manifest with the hashes that fit it."""
        manifest = self.manifest
        named = f"pileshard {manifest['format_version']} {manifest['dtype']} {manifest['eod_id']}"
        named += manifest["tokenizer_sha256"]
        for shard in self.shards:
            named += f"\n{shard['path']} {shard['sha256']} {shard['index_sha256']}"
        manifest["dataset_id"] = hashlib.sha256(named.encode()).hexdigest()[:32]
        self.sign_as_it_is()

    def sign_as_it_is(self) -> None:
        """Writes the manifest with its own hash alone."""
        digits = ""
        for _ in range(2):
            self.manifest["manifest_sha256"] = digits
            data = json.dumps(self.manifest, indent=1, ensure_ascii=False).encode() + b"\n"
            digits = hashlib.sha256(data).hexdigest()
        self.path("manifest.json").write_bytes(data)
