"""What a cluster would take for the Pile and for 10 T tokens, from measured rates of one worker.

    python -m tests.benchmarks.cluster_simulation              the table, from the rates below
    python -m tests.benchmarks.cluster_simulation --rates FILE    from what `worker_rates.py` printed
    python -m tests.benchmarks.cluster_simulation --build URL     from the receipts of a build with --keep-runs

Each stage is simulated by events as engines run it: items, largest first, go to the worker that is free first. An
item's time is its computing at the measured rate, its bytes at the worker's share of the network, its requests at
the store's latency, and what the engine adds to each item; nothing of it is taken to overlap. The counts of items,
runs, blocks, slabs and requests are those of the build's own plans. Nothing random: the same options, the same table.

Reading of inputs is simulated for zstd of a single frame, which is how the Pile was published: part k of n decompresses
all that comes before it. `--frames` simulates inputs that can be entered at their frames, counted first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from beam_jobs.memory import run_bytes  # noqa: E402
from pileshard.format.storage import Storage  # noqa: E402
from tests.benchmarks.cluster_corpora import TEN_T, THE_PILE, auto_parts  # noqa: E402
from tests.benchmarks.cluster_model import Rates, Result, Store, simulate  # noqa: E402


def amount(value: float, units: Sequence[str] = ("", " k", " M", " G", " T")) -> str:
    """A number with three digits and a unit."""
    step = 0
    while value >= 999.5 and step < len(units) - 1:
        value /= 1000
        step += 1
    return f"{value:.3g}{units[step]}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(results: Sequence[Result]) -> str:
    """The results in Markdown."""
    head = "corpus | workers | parts | time | tokenize | gather | merge | worker-hours | at work | longest item"
    head += " | reads | writes | read | written | peak space"
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for result in results:
        spent = {stage.name: duration(stage.seconds) for stage in result.stages}
        longest = max(result.stages, key=lambda stage: stage.longest)
        cells = [
            result.corpus.name,
            f"{result.workers:,}",
            f"{result.parts:,}",
            duration(result.seconds),
            spent["tokenize"],
            spent.get("gather", "-"),
            spent["merge"],
            f"{result.seconds * result.workers / 3600:,.0f}",
            f"{result.at_work:.0%}",
            f"{duration(longest.longest)} ({longest.name})",
            amount(sum(stage.reads for stage in result.stages)),
            amount(sum(stage.writes for stage in result.stages)),
            amount(sum(stage.read_bytes for stage in result.stages)) + "B",
            amount(sum(stage.written_bytes for stage in result.stages)) + "B",
            amount(result.space) + "B",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rates_of_build(url: str) -> dict[str, float]:
    """Rates of the workers of a build, from the receipts that it kept."""
    storage = Storage(url)
    done = {"tokenize": 0.0, "gather": 0.0, "merge": 0.0}
    spent = dict(done)
    for path in storage.files("_build/receipts"):
        stage = path.rsplit("/", 1)[-1].split("-")[0]
        receipt = json.loads(storage.read_bytes(path))
        if stage not in done or receipt.get("skipped"):
            continue
        size = {
            "tokenize": lambda receipt: receipt["text_bytes"],
            "gather": lambda receipt: sum(run["size"] for _, run in receipt["runs"]),
            "merge": lambda receipt: receipt["shard"]["size"],
        }[stage](receipt)
        done[stage] += size
        spent[stage] += receipt["seconds"]
    return {stage: done[stage] / spent[stage] for stage in done if spent[stage]}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rates", help="a file with JSON, as worker_rates.py prints it")
    parser.add_argument("--build", help="output of a build that kept its receipts")
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 200, 1000])
    parser.add_argument("--frames", action="store_true", help="inputs can be entered at their frames")
    parser.add_argument("--latency", type=float, default=Store.latency, help="seconds of a request")
    parser.add_argument("--worker-bytes", type=float, default=Store.worker_bytes, help="a second, of one worker")
    parser.add_argument("--total-bytes", type=float, default=Store.total_bytes, help="a second, of all workers")
    parser.add_argument("--total-requests", type=float, default=Store.total_requests, help="a second, of all workers")
    args = parser.parse_args()
    found = json.loads(Path(args.rates).read_text()) if args.rates else {}
    found |= rates_of_build(args.build) if args.build else {}
    rates = replace(Rates(), **found)
    store = Store(args.latency, args.worker_bytes, args.total_bytes, args.total_requests)
    print(
        f"One worker: {rates.tokenize / 1e6:.0f} MB of text a second tokenized ({rates.decompress / 1e6:.0f} "
        f"decompressed), {rates.gather / 1e6:.0f} MB of runs gathered, {rates.merge / 1e6:.0f} MB of shards merged; "
        f"{store.latency * 1e3:.0f} ms a request, {store.worker_bytes / 1e6:.0f} MB/s a worker, "
        f"{store.total_bytes / 1e9:.0f} GB/s and {store.total_requests:,.0f} requests a second in all.\n"
    )
    results = []
    for corpus in (THE_PILE, TEN_T):
        for workers in args.workers:
            for parts in sorted({1, auto_parts(corpus, workers, args.frames)}):
                results.append(simulate(corpus, workers, parts, rates, store, args.frames))
    print(table(results))
    most = max(args.workers)
    roomy = [
        replace(corpus, name=f"{corpus.name}, --worker-memory 4GiB", run_bytes=run_bytes(4 << 30))
        for corpus in (THE_PILE, TEN_T)
    ]
    others = [*roomy, replace(TEN_T, name="10 T tokens without the gather stage", most_runs=10**9)]
    print()
    print(table([simulate(c, most, auto_parts(c, most, args.frames), rates, store, args.frames) for c in others]))


if __name__ == "__main__":
    main()
