"""Datasets on stores, and their batches as one array, for comparisons."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

import pileshard
from tests.servers.stores import Store

#: Small rows, so that chunks hold several; few slots, so that there are several windows.
OPTIONS: dict[str, Any] = {"seed": 3, "world_size": 1, "seq_len": 64, "batch_size": 16, "slots": 4}
#: What of them makes the order.
ORDER = {name: OPTIONS[name] for name in ("seed", "seq_len", "slots")}


def upload(store: Store, folder: str) -> str:
    """Puts a directory into a new place of a store, by a client of its own; returns its URL."""
    url = store.url()
    fs, top = store.filesystem(), url.split("://", 1)[1]
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base) / name
            fs.pipe_file(f"{top}/{path.relative_to(folder)}", path.read_bytes())
    return url


def batches(path: str, count: int | None = None, **options: Any) -> np.ndarray:
    """The first batches that a rank reads: [batches, rows, seq_len + 1]."""
    rows = pileshard.numpy_dataset(options.pop("rank", 0), path=path, **{**OPTIONS, **options})
    found = [np.concatenate([inputs, labels[:, -1:]], axis=1) for inputs, labels in itertools.islice(rows, count)]
    rows.close()
    return np.stack(found)
