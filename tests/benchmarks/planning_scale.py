"""Time and memory of the driver between the stages, for a corpus of 10 T tokens.

    python -m tests.benchmarks.planning_scale [--items 3000] [--runs 50] [--sources 9]

Makes receipts as the tokenize items of such a build leave them (150,000 runs that hold every source), plans the
gather stage, the shards and the lists of runs from them, and prints what that took and how large the files are.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from beam_jobs.gather_plan import gathered, plan_gather  # noqa: E402
from beam_jobs.job import GatherReceipt, RunEntry, RunGroup, Spread, TokenizeItem, TokenizeReceipt  # noqa: E402
from beam_jobs.runs import BUCKET  # noqa: E402
from beam_jobs.shard_plan import group_path, merge_items, plan_groups  # noqa: E402
from pileshard.format.storage import Storage  # noqa: E402

TOTAL_BYTES = 40 * 10**12
RUN_DOCUMENTS = 65_000


def receipt(number: int, runs: int, names: list[str], tokens: int, spread: Spread | None) -> TokenizeReceipt:
    """What a tokenize item leaves, as its JSON is read."""
    groups = [
        RunGroup(
            source=name,
            split="train",
            documents=RUN_DOCUMENTS // len(names),
            tokens=tokens,
            text_bytes=4 * tokens,
            tokens_at=at * tokens * 4 + 8,
            rows_at=at * 40_000 + 10**9,
            buckets_at=at * 1024 * BUCKET.itemsize,
            buckets=1024,
        )
        for at, name in enumerate(names)
    ]
    prefix = f"_build/runs-0123456789abcdef/tokenize-{number:05d}-000-of-001-01234567-0123456789"
    return TokenizeReceipt(
        item=TokenizeItem(input=number, part=0, parts=1, engine="auto"),
        input_size=10**10,
        input_sha256="0" * 64,
        runs=[RunEntry(path=f"{prefix}{at:02x}.run", size=10**9, groups=groups) for at in range(runs)],
        spread=spread,
    )


@contextmanager
def step(name: str) -> Iterator[None]:
    """Prints how long a step took."""
    began = time.monotonic()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name:40} {time.monotonic() - began:8.1f} s   peak {peak:.1f} GiB")


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=50, help="of each item")
    parser.add_argument("--sources", type=int, default=9)
    args = parser.parse_args()
    names = [f"source {number}" for number in range(args.sources)]
    tokens = TOTAL_BYTES // 4 // (args.items * args.runs * args.sources)
    table = np.zeros(1024, dtype=BUCKET)
    table["bucket"] = np.arange(1024)
    table["documents"] = max(1, RUN_DOCUMENTS * args.runs // args.sources // 1024)
    table["tokens"] = tokens * args.runs // 1024
    with tempfile.TemporaryDirectory(prefix="pileshard-plan-") as temp:
        storage = Storage(temp)
        storage.write_bytes("spread", table.tobytes() * args.sources)
        spread = Spread(path="spread", groups=[(name, "train", 1024) for name in names])
        for number in range(args.items):
            data = msgspec.json.encode(receipt(number, args.runs, names, tokens, spread))
            (Path(temp) / f"{number}.json").write_bytes(data)
        print(f"{args.items:,} receipts of {len(data) / 1e3:,.0f} KB, {args.items * args.runs:,} runs")
        with step("read the receipts"):
            paths = [Path(temp) / f"{number}.json" for number in range(args.items)]
            receipts = [msgspec.json.decode(path.read_bytes(), type=TokenizeReceipt) for path in paths]
        with step("plan the groups"):
            groups = plan_groups(receipts, storage, 4)
        with step("plan the shards"):
            shards = merge_items(groups, 10**9)
        with step("plan the gather stage"):
            plan = plan_gather(receipts, groups)
            if plan is not None:
                plan.write(storage)
        if plan is not None:
            size = sum(path.stat().st_size for path in (Path(temp) / "_build" / "gather").rglob("*.json"))
            print(f"  {len(plan.items):,} items, {len(plan.batches):,} batches, lists of {size / 1e6:,.0f} MB")
            made = []
            for item in plan.items:
                runs = [
                    (number, RunEntry(path="x" * 90, size=1, groups=[])) for number in range(item.first, item.last + 1)
                ]
                for _, run in runs:
                    spans = plan.blocks[_]
                    run.groups.extend(
                        msgspec.structs.replace(receipts[0].runs[0].groups[0], source=span.source) for span in spans
                    )
                made.append(GatherReceipt(item=item, runs=runs, documents=1))
            with step("put the gathered runs in place"):
                groups = gathered(groups, plan, made)
        with step("write the lists of runs"):
            sizes = []
            for number, group in enumerate(groups):
                storage.write_bytes(group_path(number), data := msgspec.json.encode(group.runs))
                sizes.append(len(data))
        print(f"  {len(shards):,} shards; the longest list has {max(sizes) / 1e6:,.1f} MB")
        read = [
            sum(run.touches(item.key_first, item.key_last) for run in groups[item.group].runs)
            for item in shards[:: max(1, len(shards) // 100)]
        ]
        print(f"  a shard reads from {sum(read) / len(read):,.0f} runs, at most {max(read):,}")


if __name__ == "__main__":
    main()
