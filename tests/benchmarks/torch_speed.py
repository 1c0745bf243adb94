"""How fast PyTorch takes batches from the reader, with and without a DataLoader's workers.

    taskset -c 0 python -m tests.benchmarks.torch_speed [--tokens 100000000]

Makes its own dataset of uint16 tokens in a temporary directory, whose pages are warm, and reads batches of 8 x 2048 as
int64 tensors. Workers give the same batches in the same order; what they cost is the handing over.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import pileshard
from tests.benchmarks.reader_data import make

BATCH, SEQ_LEN, SECONDS = 8, 2048, 2.0


def microseconds(batches: Iterator[Any]) -> float:
    """Mean time of a batch after the first 100."""
    for _ in range(100):
        next(batches)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        for _ in range(50):
            next(batches)
        count += 50
    return (time.perf_counter() - begin) / count * 1e6


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), 3, options.tokens // 3)
        print(f"{'num_workers':>12}{'microseconds a batch':>24}{'M tokens/s':>14}")
        for workers in (0, 1, 2):
            dataset = pileshard.torch_dataset(path=folder, batch_size=BATCH, seq_len=SEQ_LEN, epochs=None)
            loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
            took = microseconds(iter(loader))
            print(f"{workers:12}{took:24,.0f}{BATCH * SEQ_LEN / took:14,.0f}")


if __name__ == "__main__":
    main()
