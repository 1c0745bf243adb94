"""How fast the readers are, beside what the machine can do at all.

    taskset -c 0 python -m tests.benchmarks.reader_speed [--tokens 300000000] [--mean 1500]

Makes its own dataset of uint16 tokens (documents of the Pile's mean length or another, 3 shards) in a temporary
directory, whose pages are warm, and reads batches of 8 x 2048. Each figure is M tokens/s; both by the clock and by the
process's own CPU time, which a busy machine disturbs less. Pin it to one core when comparing: threads on two hand work
to each other.

    shard bytes            the shards' files read from front to back in pieces of 1 MB
    memmap gather          the same rows out of one flat token file by np.memmap, into fresh int32 arrays as the numpy
                           reader gives them: this needs a corpus in a flat file, and no order but a list of rows
    numpy reader           pileshard.numpy_dataset
    without checksums      the same with checksums=False
    TensorFlow's floor     a constant pair of int32 batches, repeated: what a pipeline costs that does nothing
    tf reader              pileshard.dataset
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pileshard
from tests.benchmarks.reader_data import MEAN_DOCUMENT, make

BATCH, SEQ_LEN = 8, 2048
TOKENS = BATCH * SEQ_LEN
SECONDS = 1.5

Rates = tuple[float, float]


def rate(batches: Iterator[Any]) -> Rates:
    """M tokens/s of an endless iterator of batches, by the clock and by CPU time, after its first 300."""
    for _ in range(300):
        next(batches)
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.process_time() - cpu < SECONDS:
        for _ in range(100):
            next(batches)
        count += 100
    tokens = count * TOKENS / 1e6
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def shard_bytes(root: Path) -> Rates:
    """Plain sequential reading of the shards, as if all their bytes were tokens."""
    paths = sorted(root.glob("shards/*/*.tfrecord"))
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    piece = bytearray(1 << 20)
    while time.process_time() - cpu < SECONDS:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while got := file.readinto(piece):
                    count += got
    return count / 2e6 / (time.perf_counter() - wall), count / 2e6 / (time.process_time() - cpu)


def memmap_gather(path: Path, tokens: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of random rows of a flat token file."""
    flat = np.memmap(path, dtype=np.uint16, mode="r")
    rows = np.random.default_rng(0).permutation((tokens - 1) // SEQ_LEN) * SEQ_LEN
    while True:
        for at in range(0, len(rows) - BATCH, BATCH):
            inputs = np.empty((BATCH, SEQ_LEN), dtype=np.int32)
            labels = np.empty((BATCH, SEQ_LEN), dtype=np.int32)
            for row, first in enumerate(rows[at : at + BATCH].tolist()):
                inputs[row] = flat[first : first + SEQ_LEN]
                labels[row] = flat[first + 1 : first + SEQ_LEN + 1]
            yield inputs, labels


def tensorflow_rates(make_dataset: Callable[[], Any]) -> tuple[Rates, Rates]:
    """Rates of a `tf.data` pipeline in a loop inside `tf.function`, and in an eager loop."""
    import tensorflow as tf

    @tf.function
    def consume(iterator: Any, count: Any) -> Any:
        total = tf.zeros([], tf.int32)
        for _ in tf.range(count):
            inputs, labels = next(iterator)
            total += inputs[0, 0] + labels[0, 0]
        return total

    iterator = iter(make_dataset())
    consume(iterator, tf.constant(300))
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.process_time() - cpu < SECONDS:
        consume(iterator, tf.constant(2000))
        count += 2000
    tokens = count * TOKENS / 1e6
    graph = (tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu))
    return graph, rate(iter(make_dataset()))


def floor() -> Any:
    """The pipeline that does nothing."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    pair = (tf.zeros((BATCH, SEQ_LEN), tf.int32), tf.zeros((BATCH, SEQ_LEN), tf.int32))
    return tf.data.Dataset.from_tensors(pair).repeat().with_options(options)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=300_000_000)
    parser.add_argument("--mean", type=int, default=MEAN_DOCUMENT, help="tokens of a document")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, 3, options.tokens // 3, options.mean)
        plan = pileshard.open(root).plan()
        print(plan.describe())
        flat = root / "flat.bin"
        with open(flat, "wb") as file:
            for _ in range(3):
                file.write(np.random.default_rng(0).integers(0, 50257, options.tokens // 3, dtype=np.uint16).tobytes())
        arguments: dict[str, Any] = {"path": root, "batch_size": BATCH, "seq_len": SEQ_LEN, "epochs": None}
        results = {
            "shard bytes": shard_bytes(root),
            "memmap gather": rate(memmap_gather(flat, options.tokens)),
            "numpy reader": rate(pileshard.numpy_dataset(**arguments)),
            "numpy reader, without checksums": rate(pileshard.numpy_dataset(**arguments, checksums=False)),
        }
        names = ("in tf.function", "eager")
        for what, made in (("TensorFlow's floor", floor), ("tf reader", lambda: pileshard.dataset(**arguments))):
            for name, found in zip(names, tensorflow_rates(made), strict=True):
                results[f"{what}, {name}"] = found
    print(f"{'':36}{'clock':>8}{'CPU':>8}   M tokens/s, {len(os.sched_getaffinity(0))} core(s)")
    for name, (wall, cpu) in results.items():
        print(f"{name:36}{wall:8,.0f}{cpu:8,.0f}")
    print()
    ratios = [("numpy reader", "memmap gather"), ("numpy reader", "shard bytes")]
    ratios.append(("numpy reader", "numpy reader, without checksums"))
    ratios += [(f"tf reader, {name}", f"TensorFlow's floor, {name}") for name in names]
    for one, other in ratios:
        wall, cpu = (a / b for a, b in zip(results[one], results[other], strict=True))
        print(f"{one} / {other}: {wall:.0%} by the clock, {cpu:.0%} by CPU time")


if __name__ == "__main__":
    main()
