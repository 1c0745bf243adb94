"""What `make demo` runs: builds a dataset from the corpus in tests/data/demo, proves it, and reads batches.

python tests/demo/demo.py DIRECTORY
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "demo"


def step(title: str) -> None:
    """Prints a heading."""
    print(f"\n== {title}", flush=True)


def pileshard(*args: str) -> None:
    """Shows and runs a command."""
    shown = " ".join(arg if " " not in arg and "*" not in arg else f"'{arg}'" for arg in args)
    print(f"$ pileshard {shown}", flush=True)
    subprocess.run([sys.executable, "-m", "pileshard", *args], check=True, cwd=ROOT)


def main() -> None:
    """Runs the demo."""
    output = os.path.relpath(Path(sys.argv[1]) / "dataset", ROOT)
    began = time.monotonic()
    step("build shards from three jsonl.zst inputs (two workers)")
    inputs = "tests/data/demo/*.jsonl.zst"
    tokenizer = "tests/data/demo/tokenizer.json"
    build = ["build", "--input", inputs, "--output", output, "--tokenizer", tokenizer]
    pileshard(*build, "--shard-bytes", "100KB", "--validation", "0.02", "--workers", "2")
    step("two lines were rejected, each with its reason")
    for path in sorted((ROOT / output / "rejected").iterdir()):
        print(path.read_text(), end="")
    step("prove the dataset from its bytes")
    pileshard("verify", output)
    read(str(ROOT / output))
    print(f"\ndone in {time.monotonic() - began:.0f} s; the dataset is in {output}")


def read(path: str) -> None:
    """Reads batches with TensorFlow, as one rank and as two, and traces a row back."""
    import numpy as np
    from tokenizers import Tokenizer

    import pileshard

    step("read it in training: pileshard.dataset(rank, seed)")
    options = {"path": path, "seq_len": 64}
    alone = pileshard.dataset(0, 7, world_size=1, batch_size=4, **options)
    print("element spec:", alone.element_spec)
    batches = [inputs.numpy() for inputs, _ in alone.take(3)]
    pair = [pileshard.dataset(rank, 7, world_size=2, batch_size=2, **options).take(3) for rank in (0, 1)]
    for batch, halves in zip(batches, zip(*pair, strict=True), strict=True):
        rows = np.empty_like(batch)
        rows[0::2], rows[1::2] = (inputs.numpy() for inputs, _ in halves)
        assert np.array_equal(rows, batch)
    print("3 batches of one rank are, row by row, those of two ranks with half the batch each")
    resumed = next(iter(pileshard.dataset(0, 7, world_size=1, batch_size=4, start=8, **options)))[0].numpy()
    assert np.array_equal(resumed, batches[2])
    print("start=8 gives the third batch at once")
    step("where does row 9 come from?")
    corpus = pileshard.open(path)
    print(corpus.plan(seed=7, seq_len=64).locate(9))
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    print("its text:", repr(tokenizer.decode(batches[2][1].tolist(), skip_special_tokens=False)[:120]), "...")


if __name__ == "__main__":
    main()
