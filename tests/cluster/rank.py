"""A training rank on a host: reads its batches and keeps them, step by step.

    python -m tests.cluster.rank numpy|tf RANK RANKS DATASET FILE [POSITION]

The file is a sequence of int32 [BATCH, 2, SEQ_LEN]: inputs and labels of each step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import pileshard

SEED, SEQ_LEN, BATCH = 11, 64, 4


def batches(reader: str, rank: int, ranks: int, path: str, start: int) -> Iterator[np.ndarray[Any, Any]]:
    """Batches of a rank, each int32 [BATCH, 2, SEQ_LEN]."""
    make = pileshard.dataset if reader == "tf" else pileshard.numpy_dataset
    size = {"seq_len": SEQ_LEN, "batch_size": BATCH}
    for inputs, labels in make(rank, SEED, path=path, world_size=ranks, start=start, **size):
        yield np.stack([np.asarray(inputs), np.asarray(labels)], axis=1)


def kept(path: str) -> np.ndarray[Any, Any]:
    """What a rank has kept, whole steps: int32 [steps, BATCH, 2, SEQ_LEN]."""
    values = np.fromfile(path, dtype=np.int32)
    step = BATCH * 2 * SEQ_LEN
    return values[: len(values) // step * step].reshape(-1, BATCH, 2, SEQ_LEN)


def main(reader: str, rank: str, ranks: str, path: str, file: str, start: str = "0") -> None:
    with open(file, "wb", buffering=0) as out:
        for batch in batches(reader, int(rank), int(ranks), path, int(start)):
            out.write(batch.astype(np.int32).tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
