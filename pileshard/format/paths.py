"""Names of files, and how a source's name becomes one."""

from __future__ import annotations

import hashlib
import re

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SHARDS = "shards"
REJECTED = "rejected"
BUILD = "_build"

_SAFE = re.compile(rb"[A-Za-z0-9_.-]")
_LONGEST = 120  # file systems allow 255 bytes a name; splits, numbers and endings are added


def escape(name: str) -> str:
    """A name as one component of a path.

    ASCII letters, digits, `_`, `-` and inner dots stay; every other byte of its UTF-8 becomes `~XX`. Long names are
    cut and closed with a part of their hash; an empty one becomes `~`. Different names give different components.

        >>> escape("Gutenberg (PG-19)"), escape("../../etc/passwd")
        ('Gutenberg~20~28PG-19~29', '~2E.~2F..~2Fetc~2Fpasswd')
    """
    raw = name.encode("utf-8")
    out = "".join(
        chr(byte) if _SAFE.match(bytes((byte,))) and not (byte == 0x2E and at == 0) else f"~{byte:02X}"
        for at, byte in enumerate(raw)
    )
    if len(out) > _LONGEST:
        out = f"{out[:80]}~~{hashlib.sha256(raw).hexdigest()[:16]}"
    return out or "~"


def shard_path(source: str, split: str, number: int, count: int) -> str:
    """Path of a shard below the root, e.g. `shards/ArXiv/train-00003-of-00012.tfrecord`."""
    return f"{SHARDS}/{escape(source)}/{split}-{number:05d}-of-{count:05d}.tfrecord"


def index_path(shard: str) -> str:
    """Path of the index beside a shard."""
    return shard.removesuffix(".tfrecord") + ".index.npy"


def rejected_names(urls: list[str]) -> list[str]:
    """Path of each input's file of rejected lines: its base name, all with their numbers before where two share one."""
    bases = [escape(url.rstrip("/").rsplit("/", 1)[-1]) for url in urls]
    if len(set(bases)) == len(bases):
        return [f"{REJECTED}/{base}.jsonl" for base in bases]
    return [f"{REJECTED}/{number:05d}-{base}.jsonl" for number, base in enumerate(bases)]
