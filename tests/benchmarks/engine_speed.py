"""The engines' overhead: one build on each of them with 1 and 2 workers, beside the build of one process.

python -m tests.benchmarks.engine_speed [--inputs N] [--repeat N]

Inputs are those of ../shared/corpus, cut so that each has several items. All commands are whole (imports, start of
workers, both stages); servers and Dask's workers run already, as those of a cluster do. The order of engines is
reversed in every other round, and the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.beam_jobs.engine_builds import run
from tests.built import shard_hashes
from tests.paths import SHARED
from tests.servers.engines import RunningEngine, running

#: Name in the table, engine, Dask's worker processes, threads of each, `--workers`.
CASES = (
    ("one process", "local", 0, 0, 1),
    ("local, 2 processes", "local", 0, 0, 2),
    ("Dask, 1 worker", "dask", 1, 1, 1),
    ("Dask, 2 workers", "dask", 2, 1, 2),
    ("Dask, 1 worker of 2 threads", "dask", 1, 2, 2),
    ("Prism, LOOPBACK", "prism-loopback", 0, 0, 2),
    ("Prism, EXTERNAL pool", "prism-external", 0, 0, 2),
)


def measure(engine: RunningEngine, workers: int, inputs: list[str], output: Path) -> float:
    """Seconds of a whole build."""
    assert SHARED
    arguments = ["--tokenizer", str(SHARED / "tokenizers" / "gpt2.json"), "--shard-bytes", "16MB"]
    arguments += ["--parts-per-input", "2", "--workers", str(workers), "--input", *inputs]
    arguments += ["--", *engine.beam_args] if engine.beam_args else []
    began = time.monotonic()
    done = run([sys.executable, "-m", "pileshard", "build", "--output", str(output), *arguments])
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    return seconds


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=4, help="of the shared corpus (default 4)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default 3)")
    args = parser.parse_args()
    if SHARED is None:
        raise SystemExit("needs ../shared/corpus")
    inputs = [str(path) for path in sorted((SHARED / "corpus").glob("0?.jsonl.zst"))[: args.inputs]]
    seconds: dict[str, list[float]] = {case[0]: [] for case in CASES}
    hashes: dict[str, str] | None = None
    with tempfile.TemporaryDirectory(prefix="pileshard-engines-") as folder:
        counter = itertools.count()
        for round_number in range(args.repeat):
            for name, kind, workers, threads, items in CASES[:: -1 if round_number % 2 else 1]:
                place = Path(folder) / str(next(counter))
                with running(kind, place / "engine", workers, threads) as engine:
                    seconds[name].append(measure(engine, items, inputs, place / "dataset"))
                found = shard_hashes(place / "dataset")
                if found != (hashes := hashes or found):
                    raise RuntimeError(f"{name} gave other bytes")
    base = statistics.median(seconds["one process"])
    print(f"{len(inputs)} inputs, {args.repeat} rounds; one process: {base:.1f} s")
    print("| engine | seconds | speed of the one process's |")
    print("|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {statistics.median(taken):.1f} | {base / statistics.median(taken):.2f} |")


if __name__ == "__main__":
    main()
