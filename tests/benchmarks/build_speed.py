"""Speed and memory of `pileshard build` beside the limit of one plain process.

    python tests/benchmarks/build_speed.py [--copies 3] [--tokenizer gpt2.json] [--workers 1 2]

The corpus is the shared one (or the demo's, repeated, in a clone without it). The limit is zstd + JSON + fast
tokenizer + a flat file of tokens in one process on one core, with no account, no order, no hashes. Whole commands are
timed, imports included; seconds of CPU are those of a command and its workers. Memory is each process's own high-water
mark.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.paths import SHARED  # noqa: E402

LIMIT = """
import sys, json, time
import numpy as np, orjson, gigatoken
from backports import zstd
tokenizer, output, *inputs = sys.argv[1:]
config = json.loads(open(tokenizer, "rb").read())
config["added_tokens"] = [t for t in config["added_tokens"] if not t["special"]]
engine = gigatoken.Tokenizer.from_json(json.dumps(config))
size = 0
options = {zstd.DecompressionParameter.window_log_max: 31}
with open(output, "wb") as out:
    for path in inputs:
        rest = b""
        with zstd.open(path, options=options) as stream:
            while block := stream.read(4 << 20):
                lines = (rest + block).split(b"\\n")
                rest = lines.pop()
                texts = [orjson.loads(line)["text"].encode() for line in lines if line]
                size += sum(map(len, texts))
                out.write(engine.encode_batch(texts, parallel=False).layout.content.data.astype("<u2").tobytes())
print(size)
"""


def high_water(process: psutil.Process) -> int:
    """Most resident bytes that a process ever had."""
    with open(f"/proc/{process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def cpu_of_children() -> float:
    """Seconds of CPU of all processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: list[str]) -> tuple[float, float, dict[int, int], str]:
    """Seconds, seconds of CPU, high-water marks by process, and what it printed."""
    marks: dict[int, int] = {}
    cpu = cpu_of_children()
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            try:
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                for one in tree:
                    marks[one.pid] = max(marks.get(one.pid, 0), high_water(one))
            except (psutil.Error, OSError, StopIteration):
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    seconds = time.monotonic() - began
    done.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{command[2]} failed")
    return seconds, cpu_of_children() - cpu, marks, out


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--tokenizer", default="gpt2.json")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if SHARED:
        originals = sorted((SHARED / "corpus").glob("0?.jsonl.zst"))
        tokenizer = SHARED / "tokenizers" / args.tokenizer
    else:
        originals = sorted((ROOT / "tests/data/demo").glob("*.zst")) * 50
        tokenizer = ROOT / "tests/data/demo/tokenizer.json"
    with tempfile.TemporaryDirectory(prefix="pileshard-bench-") as temp:
        inputs = []
        for copy in range(args.copies):
            for number, path in enumerate(originals):
                inputs.append(str(shutil.copy(path, f"{temp}/{copy}-{number:03d}.jsonl.zst")))
        for _ in range(args.rounds):
            seconds, limit_cpu, marks, out = run(
                [sys.executable, "-c", LIMIT, str(tokenizer), f"{temp}/flat.bin", *inputs]
            )
            text = int(out.split()[-1])
            print(f"{text / 1e6:,.0f} MB of text in {len(inputs)} inputs, {tokenizer.name}, {os.cpu_count()} cores")
            limit = text / seconds
            peak = max(marks.values()) / 1e9
            print(
                f"limit, one process:  {limit / 1e6:6.1f} MB/s  {seconds:5.1f} s ({limit_cpu:.1f} of CPU)  "
                f"peak {peak:.2f} GB"
            )
            for workers in args.workers:
                output = f"{temp}/dataset"
                command = [
                    sys.executable,
                    "-m",
                    "pileshard",
                    "build",
                    "--output",
                    output,
                    "--tokenizer",
                    str(tokenizer),
                ]
                seconds, cpu, marks, _ = run([*command, "--workers", str(workers), "--input", *inputs])
                rate = text / seconds
                peak = max(marks.values()) / 1e9
                print(
                    f"build, {workers} worker(s):  {rate / 1e6:6.1f} MB/s  {seconds:5.1f} s ({cpu:.1f} of CPU)  "
                    f"peak {peak:.2f} GB each  {rate / limit:.0%} of the limit, {limit_cpu / cpu:.0%} by CPU"
                )
                shutil.rmtree(output)


if __name__ == "__main__":
    main()
