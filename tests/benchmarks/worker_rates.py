"""Rates of one worker in each stage of a build, for `cluster_simulation.py`.

    python -m tests.benchmarks.worker_rates [--copies 3] [--tokenizer gpt2.json]

Builds the shared corpus (or the demo's, repeated, in a clone without it) in this process, as one input of one source,
once with gathered runs and once without, and prints bytes a second of processor time, so that other load on the machine
counts less. What a worker waits for its disk is not in it.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backports import zstd

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from beam_jobs import gather_plan, items  # noqa: E402
from pileshard.ingest.containers import Container  # noqa: E402
from pileshard.ingest.count import count_range  # noqa: E402
from tests.built import TOKENIZER, run_build  # noqa: E402
from tests.paths import SHARED  # noqa: E402

STAGES = {"tokenize": "tokenize_item", "gather": "gather_item", "merge": "merge_item"}


def amount(receipt: Any) -> int:
    """Bytes that an item worked through: of text, of its runs or of its shard."""
    if hasattr(receipt, "text_bytes"):
        return int(receipt.text_bytes)
    return int(receipt.shard["size"]) if hasattr(receipt, "shard") else sum(run.size for _, run in receipt.runs)


def measure(tokenizer: Path, inputs: list[Path], copies: int) -> dict[str, float]:
    """Bytes a second of processor time: of text for `decompress` and `tokenize`, of runs, and of shards."""
    spent: dict[str, float] = defaultdict(float)
    done: dict[str, int] = defaultdict(int)

    def timed(stage: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            began = time.process_time()
            receipt = do(*args, **options)
            spent[stage] += time.process_time() - began
            done[stage] += amount(receipt)
            return receipt

        return run

    with tempfile.TemporaryDirectory(prefix="pileshard-rates-") as temp:
        text = b"".join(zstd.decompress(path.read_bytes()) for path in inputs)
        stored = zstd.compress(text)
        whole = Path(temp) / "all.jsonl.zst"
        whole.write_bytes(stored * copies)
        began = time.process_time()
        count_range(io.BytesIO(stored), "all", Container.ZSTD, 0, len(stored), len(stored))
        decompress = len(text) / (time.process_time() - began)
        originals = {stage: getattr(items, name) for stage, name in STAGES.items()}
        most = gather_plan.MOST_RUNS
        options: dict[str, Any] = {"tokenizer": str(tokenizer), "shard_bytes": 10**9, "source_key": "no_such_key"}
        try:
            for stage, name in STAGES.items():
                setattr(items, name, timed(stage, originals[stage]))
            run_build(Path(temp) / "plain", [str(whole)], **options)
            gather_plan.MOST_RUNS = 1
            run_build(Path(temp) / "gathered", [str(whole)], run_bytes=32 << 20, **options)
        finally:
            gather_plan.MOST_RUNS = most
            for stage, name in STAGES.items():
                setattr(items, name, originals[stage])
    return {"decompress": decompress, **{stage: done[stage] / spent[stage] for stage in STAGES}}


def main() -> None:
    """Prints the rates as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--tokenizer", default="gpt2.json")
    args = parser.parse_args()
    if SHARED:
        inputs, tokenizer = sorted((SHARED / "corpus").glob("0?.jsonl.zst")), SHARED / "tokenizers" / args.tokenizer
    else:
        inputs, tokenizer = sorted((ROOT / "tests/data/demo").glob("*.zst")) * 50, TOKENIZER
    print(json.dumps({name: round(rate) for name, rate in measure(tokenizer, inputs, args.copies).items()}))


if __name__ == "__main__":
    main()
