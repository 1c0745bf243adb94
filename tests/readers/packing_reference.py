"""What packed rows and their features should be, the slow and obvious way, from datasets whose every token is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from pileshard.corpus import CorpusPlan
from tests.readers.made import Made

Document = tuple[int, int, int]  # shard, first token, tokens


def documents_of(made: Made, split: str = "train") -> list[Document]:
    """All documents of a split's shards, which are numbered from 0."""
    found = []
    for shard, number in enumerate(made.split(split)):
        owners = made.owners[number][:, :2]
        begins = [0, *(np.flatnonzero((owners[1:] != owners[:-1]).any(axis=1)) + 1).tolist()]
        found += [(shard, a, b - a) for a, b in zip(begins, [*begins[1:], len(owners)], strict=True) if b > a]
    return found


def tokens_of(made: Made, plan: CorpusPlan, position: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, int]]]:
    """A row by `locate`: its tokens, padded, the number of each one's part, and the parts (shard, first, end)."""
    found = plan.locate(position)
    numbers = made.split(plan.split)
    shard = next(n for n, number in enumerate(numbers) if made.manifest.shards[number].path == found.shard)
    index = plan.reader().index(shard)
    row = np.full(plan.seq_len + 1, made.manifest.eod_id, dtype=np.int64)
    part = np.zeros(plan.seq_len + 1, dtype=np.int64)
    parts: list[tuple[int, int, int]] = []
    for piece in found.pieces:
        first = int(index.tokens[piece.record])
        begin, end = (first + at for at in piece.record_tokens)
        row[slice(*piece.row_tokens)] = made.streams[numbers[shard]][begin:end]
        # Records of one document that follow each other are one part.
        whole = made.owners[numbers[shard]][:, :2]
        if parts and parts[-1][2] == begin and (whole[begin] == whole[begin - 1]).all() and plan.packing != "concat":
            parts[-1] = (shard, parts[-1][1], end)
        else:
            parts.append((shard, begin, end))
        part[slice(*piece.row_tokens)] = len(parts)
        owner = made.owners[numbers[shard]][begin]
        assert (piece.input, piece.line, piece.part) == tuple(owner[:3].tolist())
    return row, part, parts


def features_of(row: np.ndarray, part: np.ndarray) -> dict[str, np.ndarray]:
    """Features of one row, place by place."""
    seq_len = len(row) - 1
    names = ("input_ids", "labels", "segment_ids", "positions", "loss_mask")
    found: dict[str, Any] = {name: np.zeros(seq_len, dtype=np.int32) for name in names}
    for place in range(seq_len):
        found["input_ids"][place] = row[place]
        found["labels"][place] = row[place + 1]
        found["segment_ids"][place] = part[place]
        same = place > 0 and part[place] == part[place - 1]
        found["positions"][place] = found["positions"][place - 1] + 1 if same and part[place] else 0
        found["loss_mask"][place] = int(part[place] > 0 and part[place] == part[place + 1])
    return found


def concat_parts(row: np.ndarray, eod_id: int) -> np.ndarray:
    """Numbers of the documents in a row of the plain stream."""
    part, number = np.zeros(len(row), dtype=np.int64), 1
    for place, token in enumerate(row.tolist()):
        part[place] = number
        number += token == eod_id
    return part
