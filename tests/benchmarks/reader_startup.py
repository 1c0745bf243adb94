"""How long opening a dataset and taking the first batch lasts, at the sizes of the Pile and of ten times the web.

    python -m tests.benchmarks.reader_startup [--shards 660 40000]

The shards are hard links of one of 134 MB: as many names, manifest entries and files to open as there would be, few
bytes. Each line is a fresh process, timed after its imports, from `pileshard.open` to the first batch of 8 x 2048.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.reader_data import make_linked

TOKENS = 512 * 131072 + 1

CODE = """
import json, re, sys, time
import numpy
from pileshard import dataset, numpy_dataset, open
which, path, share = sys.argv[1], sys.argv[2], float(sys.argv[3])
if which == "tf":
    import tensorflow as tf
    tf.constant(0) + 1
def peak():
    with __builtins__.open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+)", file.read())[1])
base = peak()
t0 = time.perf_counter()
plan = open(path).plan()
t1 = time.perf_counter()
start = int(plan.samples_per_epoch * share)
ranks = dict(rank=0, world_size=1) if which != "rank" else dict(rank=95, world_size=96)
reader = iter((dataset if which == "tf" else numpy_dataset)(path=path, batch_size=8, start=start, **ranks))
next(reader)
t2 = time.perf_counter()
print(json.dumps([t1 - t0, t2 - t1, (peak() - base) / 1024]))
"""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[660, 40_000])
    options = parser.parse_args()
    print(" shards  manifest             reader  start  open, plan  first batch   memory")
    for shards in options.shards:
        with tempfile.TemporaryDirectory() as folder:
            make_linked(Path(folder), shards, TOKENS)
            size = (Path(folder) / "manifest.json").stat().st_size / 1e6
            for which, name in (("numpy", "numpy"), ("rank", "numpy, rank 95/96"), ("tf", "tf.data")):
                for share in (0.0, 0.5):
                    command = [sys.executable, "-c", CODE, which, folder, str(share)]
                    opened, first, memory = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
                    print(
                        f"{shards:7,} {size:6.1f} MB {name:>18} {share:6.0%} {opened:9.3f} s {first:10.3f} s "
                        f"{memory:5,.0f} MB",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
