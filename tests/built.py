"""Small corpora and builds of them, for tests of everything that comes after the build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from backports import zstd

from beam_jobs.build import BuildResult, build
from beam_jobs.options import BuildOptions

DATA = Path(__file__).resolve().parent / "data"
DEMO = DATA / "demo"
TOKENIZER = DEMO / "tokenizer.json"
DEMO_INPUTS = sorted(str(path) for path in DEMO.glob("*.jsonl.zst"))


def write_input(path: Path, lines: Iterable[str | bytes | dict[str, Any]]) -> str:
    """Writes lines (text, bytes, or documents to be serialized) as one zstd frame with a checksum; returns the path."""
    raw = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    data = b"".join(line + b"\n" for line in raw)
    path.write_bytes(zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1}))
    return str(path)


def document(text: str, source: str | None = None) -> dict[str, Any]:
    """A line in the Pile's form."""
    return {"text": text, "meta": {"pile_set_name": source} if source else {}}


def run_build(output: Path | str, inputs: Sequence[str] = tuple(DEMO_INPUTS), **options: Any) -> BuildResult:
    """Builds in this process, with small shards."""
    options = {"tokenizer": str(TOKENIZER), "shard_bytes": 64_000, "workers": 1, "max_rejected": 1.0, **options}
    return build(BuildOptions(inputs=tuple(inputs), output=str(output), **options))


def shard_hashes(output: Path) -> dict[str, str]:
    """sha256 of every shard and index, by path below the root."""
    return {
        str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((output / "shards").rglob("*"))
        if path.is_file()
    }
