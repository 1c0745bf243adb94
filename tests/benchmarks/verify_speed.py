"""Speed of `pileshard verify --level full` beside `sha256sum` of the same files.

    python tests/benchmarks/verify_speed.py [--rounds 3]

Three copies of the shared corpus are built (or the demo's corpus, repeated, in a clone without it). Both commands are
run whole, pinned to one core, on warm pages; CPU seconds are the steadier figure on a shared machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.paths import SHARED  # noqa: E402


def pinned(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command on one core."""
    core = min(os.sched_getaffinity(0))
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {core}), cwd=ROOT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if SHARED:
        originals = sorted((SHARED / "corpus").glob("0?.jsonl.zst"))
        tokenizer = SHARED / "tokenizers" / "gpt2.json"
    else:
        originals = sorted((ROOT / "tests/data/demo").glob("*.zst")) * 20
        tokenizer = ROOT / "tests/data/demo/tokenizer.json"
    with tempfile.TemporaryDirectory(prefix="pileshard-bench-") as temp:
        inputs = []
        for copy in range(args.copies):
            for number, path in enumerate(originals):
                inputs.append(str(shutil.copy(path, f"{temp}/{copy}-{number:03d}.jsonl.zst")))
        build = [sys.executable, "-m", "pileshard", "build", "--output", f"{temp}/dataset", "--input", *inputs]
        subprocess.run([*build, "--tokenizer", str(tokenizer)], check=True, cwd=ROOT, capture_output=True)
        files = [str(path) for path in Path(f"{temp}/dataset/shards").rglob("*") if path.is_file()]
        size = sum(map(os.path.getsize, files))
        print(f"{size / 1e6:,.0f} MB in {len(files)} files")
        for _ in range(args.rounds):
            wall, cpu = pinned(["sha256sum", *files])
            print(f"sha256sum:      {size / wall / 1e6:7,.0f} MB/s  {size / cpu / 1e6:7,.0f} MB a CPU second")
            base = cpu
            wall, cpu = pinned([sys.executable, "-m", "pileshard", "verify", f"{temp}/dataset"])
            print(
                f"verify (full):  {size / wall / 1e6:7,.0f} MB/s  {size / cpu / 1e6:7,.0f} MB a CPU second  "
                f"{base / cpu:.0%} of sha256sum's"
            )


if __name__ == "__main__":
    main()
