"""Makes the golden dataset beside this file from the inputs beside it.

    python tests/data/golden/make_golden.py

Its shards and indexes never change without a new format version; `tests/format/test_golden.py` builds them again and
compares. The inputs and the tokenizer are read as they are here; no program makes them anew.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import fsspec

HERE = Path(__file__).resolve().parent
INPUTS = HERE / "inputs"
DATASET = HERE / "dataset"


def build_golden(target: Path) -> None:
    """Builds the dataset into a directory, by way of memory: so the names of its inputs are the same on any machine."""
    from beam_jobs.build import build
    from beam_jobs.options import BuildOptions

    memory = fsspec.filesystem("memory")
    try:
        for path in INPUTS.iterdir():
            memory.pipe_file(f"/golden/inputs/{path.name}", path.read_bytes())
        build(
            BuildOptions(
                inputs=("memory://golden/inputs/*.jsonl*",),
                output="memory://golden/dataset",
                tokenizer=str(HERE / "tokenizer.json"),
                seed=2026,
                shard_bytes=1024,
                validation=0.2,
                max_rejected=1.0,
                workers=1,
            )
        )
        for name in memory.find("/golden/dataset"):
            relative = name.removeprefix("/golden/dataset/")
            if not relative.startswith("_build/"):
                path = target / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(memory.cat_file(name))
    finally:
        memory.rm("/golden", recursive=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[2]))
    shutil.rmtree(DATASET, ignore_errors=True)
    build_golden(DATASET)
