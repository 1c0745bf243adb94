"""What it costs to cut one input into parts: processor time of each part, in every container.

    python -m tests.benchmarks.parts_speed [--parts 4] [--copies 2]

One input with the text of the shared corpus (or the demo's, repeated) is tokenized whole, and in parts, by the items of
a build in this process. `all / whole` is what the parts cost together; `longest / whole` is how much sooner the last
one is done where each has a worker.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
import time
from pathlib import Path

from beam_jobs.build import _Driver
from beam_jobs.items import run_item
from beam_jobs.job import JOB_TOKENIZER
from beam_jobs.options import BuildOptions
from beam_jobs.spread import Spread, parts_plan
from tests.paths import SHARED

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROOT = Path(__file__).resolve().parents[2]
FRAME_BYTES = 8 << 20


def corpus(copies: int) -> bytes:
    """Text of the shared corpus, or of the demo's."""
    options = {zstd.DecompressionParameter.window_log_max: 31}
    if SHARED:
        paths = sorted((SHARED / "corpus").glob("0?.jsonl.zst"))
    else:
        paths, copies = sorted((ROOT / "tests/data/demo").glob("*.zst")), copies * 100
    return b"".join(zstd.decompress(path.read_bytes(), options=options) for path in paths) * copies


def seconds(job, items, width: int, eod: int) -> list[float]:
    """Processor time of each item."""
    spent = []
    for item in items:
        began = time.process_time()
        run_item(job, item, width, eod)
        spent.append(time.process_time() - began)
    return spent


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--copies", type=int, default=2)
    args = parser.parse_args()
    text = corpus(args.copies)
    tokenizer = SHARED / "tokenizers/gpt2.json" if SHARED else ROOT / "tests/data/demo/tokenizer.json"
    frames = [text[at : at + FRAME_BYTES] for at in range(0, len(text), FRAME_BYTES)]
    stored = {
        "zstd, one frame": lambda: zstd.compress(text),
        f"zstd, {len(frames)} frames": lambda: b"".join(map(zstd.compress, frames)),
        "gzip": lambda: gzip.compress(text, 6),
        "plain": lambda: text,
    }
    print(f"{len(text) / 1e6:,.0f} MB of text, {tokenizer.name}, {args.parts} parts")
    for name, make in stored.items():
        with tempfile.TemporaryDirectory(prefix="pileshard-bench-") as temp:
            path = Path(temp) / "input"
            path.write_bytes(make())
            rows = []
            for parts in (1, args.parts):
                output = f"{temp}/{parts}"
                driver = _Driver(BuildOptions((str(path),), output, str(tokenizer), parts_per_input=parts, workers=1))
                driver.storage.write_bytes(JOB_TOKENIZER, driver.tokenizer_bytes)
                job, width, eod = driver.job, driver.tokenizer.dtype.itemsize, driver.tokenizer.eod_id
                counted: list[float] = []

                class Counts:
                    def do(self, stage, items, kind, weights):
                        counted.extend(seconds(job, items, width, eod))  # noqa: B023
                        from beam_jobs.job import finished

                        done = dict(finished(job.storage(), job.fingerprint, items, kind))  # noqa: B023
                        return [done[item] for item in items]

                plan = parts_plan(job, parts, 1)
                items = Spread(plan, job, Counts()).items(())  # type: ignore[arg-type]
                rows.append((counted, seconds(job, items, width, eod)))
            (_, [whole]), (counted, spent) = rows
            longest = max(spent) + (max(counted) if counted else 0)
            rate, total = len(text) / whole / 1e6, sum(spent) + sum(counted)
            print(
                f"{name:20} whole {whole:5.2f} s ({rate:4.0f} MB/s)  counted {sum(counted):5.2f} s  "
                f"parts {' '.join(f'{one:.2f}' for one in spent)}  all / whole {total / whole:.2f}  "
                f"longest / whole {longest / whole:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
