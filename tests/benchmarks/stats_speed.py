"""Speed and memory of `pileshard stats`, at the sizes of the Pile and of ten times the web.

    python -m tests.benchmarks.stats_speed [--shards 40000] [--documents 100000000]

The shards are hard links of one: as many names, manifest entries, files to open and indexes to read as there would be.
Each line is a fresh process, timed after its imports, on warm pages; CPU seconds (start-up of workers among them) are
the steadier figure on a shared machine. Without --vocab the indexes are read, with it all tokens, of one shard of
134 MB linked 16 times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from pileshard.format import Manifest, ShardEntry, SourceEntry, Storage
from pileshard.format.index import make_index
from pileshard.format.manifest import Options
from pileshard.format.paths import MANIFEST, index_path, shard_path
from pileshard.format.record import frame
from tests.benchmarks.reader_data import MEAN_DOCUMENT
from tests.built import TOKENIZER

CASE = """
import json, re, resource, sys, time
from pileshard.audit.statistics import collect
def main():
    path, vocab, workers = sys.argv[1], sys.argv[2] == "vocab", int(sys.argv[3]) or None
    def used():
        each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in each)
    before, began = used(), time.perf_counter()
    found = collect(path, vocab=vocab, workers=workers)
    seconds = time.perf_counter() - began
    own = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    cpu, counted = used() - before, found.counted
    print(json.dumps([seconds, cpu, counted.documents, counted.tokens, own / 1024, child / 1024]))
if __name__ == "__main__":
    main()
"""


def one_shard(root: Path, documents: int, vocab_size: int, *, tokens: bool) -> ShardEntry:
    """A shard of random documents; without its tokens, an index alone."""
    rng = np.random.default_rng(0)
    lengths = np.minimum(1 + rng.exponential(MEAN_DOCUMENT, documents).astype(np.int64), 65536)
    before = np.concatenate(([0], np.cumsum(lengths)))
    offsets = before * 2 + np.arange(documents + 1) * 90
    if tokens:
        stream = (rng.zipf(1.2, int(before[-1])) % vocab_size).astype("<u2")
        ends = [0]
        with (root / "one.tfrecord").open("wb") as file:
            for line in range(documents):
                record = frame(0, line + 1, 0, stream[before[line] : before[line + 1]].tobytes())
                file.write(record)
                ends.append(ends[-1] + len(record))
        offsets = np.array(ends)
    text = lengths * 4
    index = make_index(before, offsets, text, np.arange(documents)).to_bytes()  # type: ignore[arg-type]
    (root / "one.index.npy").write_bytes(index)
    return ShardEntry(
        path="one.tfrecord",
        source="",
        split="train",
        number=0,
        count=1,
        size=int(offsets[-1]),
        sha256="0" * 64,
        index_path="one.index.npy",
        index_size=len(index),
        index_sha256="0" * 64,
        records=documents,
        documents=documents,
        tokens=int(before[-1]),
        text_bytes=int(text.sum()),
        key_first="0" * 16,
        key_last="f" * 16,
        identity_sum="0" * 16,
    )


def make(root: Path, shards: int, documents: int, *, tokens: bool = False, sources: int = 22) -> int:
    """A dataset of links; returns the size of its manifest."""
    import hashlib

    tokenizer = TOKENIZER.read_bytes()
    (root / "tokenizer.json").write_bytes(tokenizer)
    vocab = json.loads(tokenizer)
    vocab_size = 1 + max([*vocab["model"]["vocab"].values(), *(entry["id"] for entry in vocab["added_tokens"])])
    first = one_shard(root, documents, vocab_size, tokens=tokens)
    entries: list[ShardEntry] = []
    groups: list[SourceEntry] = []
    for at in range(min(sources, shards)):
        name = f"source {at:02}"
        count = shards // sources + (at < shards % sources)
        for number in range(count):
            path = shard_path(name, "train", number, count)
            where = {"path": path, "index_path": index_path(path), "number": number, "count": count, "source": name}
            entries.append(msgspec.structs.replace(first, **where))
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if tokens:
                os.link(root / first.path, root / path)
            os.link(root / first.index_path, root / index_path(path))
        totals = {field: count * getattr(first, field) for field in ("documents", "tokens", "text_bytes")}
        groups.append(SourceEntry(name=name, split="train", shards=count, **totals))
    options = Options(
        seed=0, shard_bytes=10**9, validation=0, dedup="none", special_tokens="text", text_key="text", source_key="meta"
    )
    manifest = Manifest(
        dtype="uint16",
        vocab_size=vocab_size,
        eod_id=0,
        eod_token="<|endoftext|>",
        tokenizer_sha256=hashlib.sha256(tokenizer).hexdigest(),
        options=options,
        documents=shards * first.documents,
        tokens=shards * first.tokens,
        text_bytes=shards * first.text_bytes,
        inputs=[],
        sources=groups,
        shards=entries,
    )
    data = manifest.to_bytes()
    Storage(str(root)).write_bytes(MANIFEST, data)
    return len(data)


def measure(root: Path, what: str, workers: int) -> str:
    """One line: seconds, rates and memory."""
    script = root / "case.py"
    script.write_text(CASE)
    command = [sys.executable, str(script), str(root), what, str(workers)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    seconds, cpu, documents, tokens, own, child = json.loads(out)
    how = f"{workers} processes" if workers > 1 else "1 process" if workers else "threads"
    return (
        f"{what:7} {how:11} {seconds:6.1f} s, {cpu:6.1f} s of CPU; a CPU second: "
        f"{documents / cpu / 1e6:6.2f} M documents, {tokens / cpu / 1e6:7,.0f} M tokens; "
        f"{own:4,.0f} MB, {child:4,.0f} MB a worker"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=40_000)
    parser.add_argument("--documents", type=int, default=100_000_000)
    args = parser.parse_args()
    # Many small indexes, and as many documents in few large ones, as shards of 1 GB have them.
    for shards, each in ((args.shards, args.documents // args.shards), (args.documents // 350_000, 350_000)):
        with tempfile.TemporaryDirectory() as folder:
            size = make(Path(folder), shards, each)
            print(f"{shards:,} shards of {each:,} documents, manifest of {size / 1e6:.1f} MB", flush=True)
            for workers in (0, 1, 2):
                print("  " + measure(Path(folder), "indexes", workers), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), 16, 45_000, tokens=True, sources=4)
        print("16 shards of 134 MB, every token")
        for workers in (1, 2):
            print("  " + measure(Path(folder), "vocab", workers), flush=True)


if __name__ == "__main__":
    main()
