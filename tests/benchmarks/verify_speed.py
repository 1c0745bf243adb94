"""Speed of `pileshard verify` beside `sha256sum` of the same files, by size of records and by number of workers.

    python -m tests.benchmarks.verify_speed [--megabytes 200] [--rounds 3]

Datasets of records of about 160 bytes, 260 bytes, 740 bytes and of whole documents are built from the shared corpus (or
the demo's, repeated, in a clone without it). On one core, on warm pages, sha256sum and the commands run in turn; a
command is measured whole, and less its start (what level quick takes). CPU seconds are the steadier figure on a shared
machine. Then the largest dataset is verified at the levels full and deep by threads and by processes, unpinned.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.paths import SHARED  # noqa: E402

#: Characters that texts are cut to, None for whole documents; and the share of the bytes asked for that are built.
CLASSES = {"160": (110, 0.5), "260": (250, 0.7), "740": (1000, 1.0), "whole documents": (None, 1.0)}


def run(command: list[str], pinned: bool = True) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    cores = {min(os.sched_getaffinity(0))} if pinned else os.sched_getaffinity(0)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores), cwd=ROOT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def texts() -> Iterator[str]:
    """Texts without end."""
    from backports import zstd

    paths = (
        sorted((SHARED / "corpus").glob("0?.jsonl.zst")) if SHARED else sorted((ROOT / "tests/data/demo").glob("*.zst"))
    )
    for path in cycle(paths):
        with zstd.open(path, "rb") as file:
            for line in file:
                try:
                    text = json.loads(line)["text"]
                except (ValueError, KeyError, TypeError):
                    continue
                if isinstance(text, str):
                    yield text


def build(folder: Path, characters: int | None, size: float) -> Path:
    """A dataset of about so many bytes of text, in two inputs, of texts of so many characters."""
    from backports import zstd

    tokenizer = SHARED / "tokenizers/gpt2.json" if SHARED else ROOT / "tests/data/demo/tokenizer.json"
    folder.mkdir()
    source = texts()
    for number in range(2):
        written = 0
        with zstd.open(folder / f"{number}.jsonl.zst", "wb") as file:
            while written < size / 2:
                text = next(source)
                step = characters or len(text) or 1
                for at in range(0, len(text), step):
                    piece = text[at : at + step]
                    file.write(json.dumps({"text": piece}).encode() + b"\n")
                    written += len(piece)
    command = [sys.executable, "-m", "pileshard", "build", "--output", str(folder / "dataset"), "--tokenizer"]
    command += [str(tokenizer), "--shard-bytes", str(int(size / 8)), "--input", *map(str, folder.glob("*.zst"))]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return folder / "dataset"


def verify(dataset: Path, *more: str) -> list[str]:
    """The command."""
    return [sys.executable, "-m", "pileshard", "verify", str(dataset), *more]


def by_size_of_records(name: str, dataset: Path, rounds: int) -> None:
    """A line: sha256sum's speed, verify's beside it."""
    files = [str(path) for path in (dataset / "shards").rglob("*") if path.is_file()]
    size = sum(map(os.path.getsize, files))
    manifest = json.loads((dataset / "manifest.json").read_bytes())
    records = sum(shard["records"] for shard in manifest["shards"])
    sums, whole, start = [], [], []
    run(["sha256sum", *files])
    for _ in range(rounds):
        sums.append(run(["sha256sum", *files])[1])
        whole.append(run(verify(dataset, "--workers", "1"))[1])
        start.append(run(verify(dataset, "--level", "quick"))[1])
    base, all_of_it, begin = (statistics.median(seconds) for seconds in (sums, whole, start))
    speeds = [f"{size / seconds / 1e6:,.0f}" for seconds in (base, all_of_it)]
    ratios = [f"{base / all_of_it:.0%}", f"{base / (all_of_it - begin):.0%}", f"{begin:.1f}"]
    print(_line(name, f"{size / records:,.0f}", f"{size / 1e6:,.0f}", *speeds, *ratios), flush=True)


def _line(name: str, *cells: str) -> str:
    return f"{name:>16}" + "".join(f"{cell:>11}" for cell in cells)


def by_workers(dataset: Path) -> None:
    """Levels full and deep, by threads and by processes."""
    size = sum(path.stat().st_size for path in (dataset / "shards").rglob("*") if path.is_file())
    print(f"\n{size / 1e6:,.0f} MB, {os.cpu_count()} cores, wall seconds (CPU seconds)")
    ways = {"threads (--workers 1)": ["--workers", "1"], "2 processes": ["--workers", "2"], "default": []}
    for level, more in (("full", []), ("deep", ["--sample", "1000"])):
        for name, workers in ways.items():
            wall, cpu = run(verify(dataset, "--level", level, *more, *workers), pinned=False)
            print(f"level {level}, {name:22} {wall:6.1f} ({cpu:.1f})", flush=True)


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=200, help="of text for whole documents")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("MB a CPU second on one core; `net` leaves out the start, which is what level quick takes")
    print(_line("records", "bytes", "MB", "sha256sum", "verify", "ratio", "net ratio", "start, s"))
    with tempfile.TemporaryDirectory(prefix="pileshard-bench-") as temp:
        for number, (name, (characters, share)) in enumerate(CLASSES.items()):
            dataset = build(Path(temp) / str(number), characters, share * args.megabytes * 1e6)
            by_size_of_records(name, dataset, args.rounds)
        by_workers(dataset)


if __name__ == "__main__":
    main()
