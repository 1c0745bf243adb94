"""Damage to the files of a made dataset, and which of its tokens it costs, worked out from its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pileshard.format.index import HEADER_BYTES
from tests.readers.made import Made

KINDS = ("flip", "flip", "flip", "cut", "missing", "index", "index cut", "index missing", "header")


@dataclass
class Damaged:
    """A damaged copy of a dataset.

    Attributes:
      url: of the copy.
      tokens: by shard (its number in the manifest), which of its tokens are lost.
      files: by shard, the file at fault and the offset an error may name; None: any.
      index_at_fault: shards whose index is not as it was, where packed rows may be lost that touch no lost token.
      useless: shards whose index cannot be used at all, so that rows without a token are lost with the others.
      flipped: bits that are flipped: file, byte and bit.
    """

    url: str
    tokens: dict[int, np.ndarray]
    files: dict[int, list[tuple[str, int | None]]] = field(default_factory=dict)
    index_at_fault: set[int] = field(default_factory=set)
    useless: set[int] = field(default_factory=set)
    flipped: set[tuple[Path, int, int]] = field(default_factory=set)


def _flip(found: Damaged, path: Path, byte: int, bit: int) -> None:
    if (path, byte, bit) in found.flipped:  # twice would be not at all
        return
    found.flipped.add((path, byte, bit))
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def damage(made: Made, target: Path, draw: Callable[[int], int], kinds: list[str]) -> Damaged:
    """Copies a dataset and damages it.

    Args:
      made: the dataset.
      target: a folder for the copy.
      draw: a number from 0 to below its argument.
      kinds: of damage, each to a shard that is drawn.
    """
    shutil.copytree(made.url, target, dirs_exist_ok=True)
    tables = {
        number: np.load(Path(made.url) / entry.index_path).astype(np.int64)
        for number, entry in enumerate(made.manifest.shards)
    }
    found = Damaged(
        str(target), {n: np.zeros(entry.tokens, dtype=bool) for n, entry in enumerate(made.manifest.shards)}
    )
    for kind in kinds:
        _damage_one(made, target, draw, kind, tables, found)
    return found


def _damage_one(
    made: Made, target: Path, draw: Callable[[int], int], kind: str, tables: dict[int, Any], found: Damaged
) -> None:
    number = draw(len(made.manifest.shards))
    entry, (tokens, offsets, *_) = made.manifest.shards[number], tables[number]
    shard, index = target / entry.path, target / entry.index_path
    lost, files = found.tokens[number], found.files.setdefault(number, [])
    if kind == "flip" and shard.exists() and shard.stat().st_size:
        byte = draw(shard.stat().st_size)
        _flip(found, shard, byte, draw(8))
        record = int(np.searchsorted(offsets, byte, side="right")) - 1
        lost[tokens[record] : tokens[record + 1]] = True
        files.append((entry.path, int(offsets[record])))
    elif kind == "cut" and shard.exists():
        size = draw(entry.size)
        with open(shard, "rb+") as file:
            file.truncate(min(size, shard.stat().st_size))
        size = shard.stat().st_size
        lost[tokens[np.searchsorted(offsets, size, side="right") - 1] :] = True
        files.append((entry.path, size))
    elif kind == "missing":
        shard.unlink(missing_ok=True)
        lost[:] = True
        files.append((entry.path, None))
    elif kind == "index" and index.exists() and index.stat().st_size == entry.index_size:
        row, record = draw(4), draw(entry.records + 1)
        _flip(found, index, HEADER_BYTES + 8 * (row * (entry.records + 1) + record) + draw(8), draw(8))
        found.index_at_fault.add(number)
        if row < 2:
            if record == entry.records:  # a total
                lost[:] = True
                found.useless.add(number)
            lost[tokens[max(0, record - 1)] : tokens[min(record + 1, entry.records)]] = True
            files.append((entry.index_path, None))
    elif kind == "index cut" and index.exists() and index.stat().st_size:
        with open(index, "rb+") as file:
            file.truncate(draw(index.stat().st_size))
        lost[:] = True
        found.useless.add(number)
        files.append((entry.index_path, None))
    elif kind == "index missing":
        index.unlink(missing_ok=True)
        lost[:] = True
        found.useless.add(number)
        files.append((entry.index_path, None))
    elif kind == "header" and index.exists() and index.stat().st_size == entry.index_size:
        _flip(found, index, draw(HEADER_BYTES), draw(8))
        lost[:] = True
        found.useless.add(number)
        files.append((entry.index_path, None))
