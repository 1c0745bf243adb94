"""Threads and processes of a worker: rate and memory with items one after another, in threads, and in processes.

    python -m tests.benchmarks.worker_threads [--copies 3] [--at-once 2]

The items are a build's own (tokenize, the shared corpus or the demo's). Engines differ in where they put items that are
done at once: Dask's workers and Prism take threads of one process, a Dask worker of one thread and Beam's local runner
take processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from beam_jobs.build import _Driver
from beam_jobs.job import JOB_TOKENIZER, Item
from beam_jobs.options import BuildOptions
from beam_jobs.spread import Spread, parts_plan
from tests.paths import SHARED

ROOT = Path(__file__).resolve().parents[2]

WORK = """
import sys, msgspec
from concurrent.futures import ThreadPoolExecutor
from beam_jobs.items import run_item
from beam_jobs.job import Item, Job
threads, eod = int(sys.argv[1]), int(sys.argv[2])
job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
items = [msgspec.json.decode(line, type=Item) for line in sys.stdin.buffer]
with ThreadPoolExecutor(threads) as pool:
    list(pool.map(lambda item: run_item(job, item, 2, eod), items))
[line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(line.split()[1]) / 2**20)
"""


def work(job: bytes, items: list[Item], eod: int, processes: int, threads: int) -> tuple[float, list[float]]:
    """Seconds, and the high-water mark of each process in GiB."""
    began = time.monotonic()
    marks: list[float] = []

    def one(mine: list[Item]) -> None:
        data = b"\n".join([job, *map(msgspec.json.encode, mine)]) + b"\n"
        command = [sys.executable, "-c", WORK, str(threads), str(eod)]
        marks.append(float(subprocess.run(command, input=data, stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout))

    runners = [threading.Thread(target=one, args=(items[at::processes],)) for at in range(processes)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    return time.monotonic() - began, marks


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    if SHARED:
        inputs = sorted((SHARED / "corpus").glob("0?.jsonl.zst"))
        tokenizer = SHARED / "tokenizers/gpt2.json"
    else:
        inputs = sorted((ROOT / "tests/data/demo").glob("*.zst"))
        tokenizer = ROOT / "tests/data/demo/tokenizer.json"
    with tempfile.TemporaryDirectory(prefix="pileshard-bench-") as temp:
        links = []
        for copy in range(args.copies):
            for path in inputs:
                link = Path(temp) / f"{copy}-{path.name}"
                link.symlink_to(path)
                links.append(str(link))
        shapes = {"one after another": (1, 1), "threads": (1, args.at_once), "processes": (args.at_once, 1)}
        for number, (name, (processes, threads)) in enumerate(shapes.items()):
            output = f"{temp}/{number}"
            driver = _Driver(BuildOptions(tuple(links), output, str(tokenizer), parts_per_input=1))
            driver.storage.write_bytes(JOB_TOKENIZER, driver.tokenizer_bytes)
            items = list(Spread(parts_plan(driver.job, 1, 1), driver.job, None).items(()))  # type: ignore[arg-type]
            job = msgspec.json.encode(driver.job)
            seconds, marks = work(job, items, driver.tokenizer.eod_id, processes, threads)
            stored = sum(Path(link).stat().st_size for link in links)
            print(
                f"{name:18} {processes} x {threads}: {seconds:6.1f} s, {stored / seconds / 1e6:5.1f} MB/s stored, peak "
                f"{' '.join(f'{mark:.2f}' for mark in marks)} GiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
