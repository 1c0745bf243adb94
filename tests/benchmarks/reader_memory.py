"""Memory of a reader beside what the formula says, on a built dataset with many sources.

    python -m tests.benchmarks.reader_memory DATASET [--ranks 1 8 96]

Each case runs in a process of its own: 2,000 batches of 8 x 2048 of the Pile-like mixture that all sources make
together, for the last rank. Resident memory above that after the imports, at its highest.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys

CASE = """
import sys
import numpy as np
import pileshard
path, ranks, packing = sys.argv[1], int(sys.argv[2]), sys.argv[3]
pileshard.numpy_dataset
def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))
sources = {entry.name: 1.0 for entry in pileshard.open(path).sources}
before = kilobytes("VmRSS")
batches = pileshard.numpy_dataset(
    ranks - 1, 1, path=path, world_size=ranks, batch_size=8, epochs=None, weights=sources, packing=packing
)
for _ in range(2000):
    next(batches)
print(len(sources), (kilobytes("VmHWM") - before) * 1024)
"""


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 96])
    args = parser.parse_args()
    for packing in ("concat", "best_fit"):
        for ranks in args.ranks:
            command = [sys.executable, "-c", CASE, args.dataset, str(ranks), packing]
            sources, held = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            chunks = 768 // math.gcd(ranks, 768)
            held_mb = int(held) / 1e6
            print(f"{packing:9} {sources} sources, {ranks:3} ranks: {chunks:3} chunks a rank, {held_mb:6.0f} MB held")


if __name__ == "__main__":
    main()
