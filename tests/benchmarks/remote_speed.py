"""How fast batches come from S3 at some latency: one by one, read ahead, through a cold and a warm local cache.

    python -m tests.benchmarks.remote_speed [--seconds 10] [--latency 0 20 100]

A real S3 server on loopback holds 200 M uint16 tokens in two shards; a proxy before it, in a process of its own, adds
the latency to every answer. Batches of 8 x 2048, 24 slots on one rank (as 768 on 32 ranks), chunks of 65,536 tokens.
Each figure is M tokens/s by the clock over whole windows, the opening of the dataset and the first chunks included.
Server, proxy and reader share the machine: without latency the figures are what the three of them can do.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pileshard
from pileshard.readers import chunk
from pileshard.readers.remote_shards import RemoteShards
from tests.benchmarks.reader_data import make
from tests.remote.reading import upload
from tests.servers.faults import Proxy
from tests.servers.stores import running

BATCH, SEQ_LEN, SLOTS = 8, 2048, 24


def _proxy(upstream: int, latency: float, port: Any) -> None:
    proxy = Proxy(upstream)
    proxy.latency = latency
    port.send(proxy.port)
    port.recv()


@contextlib.contextmanager
def late(upstream: int, latency: float) -> Iterator[int]:
    """A proxy in a process of its own; yields its port."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_proxy, args=(upstream, latency, there))
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def rate(url: str, seconds: float, threads: int | None, **options: Any) -> float:
    """M tokens/s."""
    made = RemoteShards if threads is None else functools.partial(RemoteShards, threads=threads)
    chunk.RemoteShards = made  # type: ignore[misc,assignment]
    started = time.perf_counter()
    rows = pileshard.numpy_dataset(
        0, 1, path=url, world_size=1, seq_len=SEQ_LEN, batch_size=BATCH, slots=SLOTS, epochs=None, **options
    )
    window = SLOTS * rows.plan.chunk_samples // BATCH
    count = 0
    while time.perf_counter() - started < seconds or count % window:
        next(rows)
        count += 1
    taken = time.perf_counter() - started
    rows.close()
    return count * BATCH * SEQ_LEN / 1e6 / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--latency", type=float, nargs="+", default=[0, 20, 100], help="milliseconds of each answer")
    arguments = parser.parse_args()
    heads = ("latency", "one by one", "read ahead", "cold cache", "warm cache")
    print(" | ".join(f"{head:>10}" for head in heads) + "   M tokens/s")
    with tempfile.TemporaryDirectory() as folder, running("s3") as store:
        local = Path(folder) / "data"
        make(local, 2, 100_000_000)
        url = upload(store, str(local))
        for latency in arguments.latency:
            with late(store.port, latency / 1000) as port:
                options = {"storage_options": store.options(port)}
                cache = {"cache_dir": f"{folder}/cache-{latency}"}
                figures = [
                    rate(url, arguments.seconds, 0, **options),
                    rate(url, arguments.seconds, None, **options),
                    rate(url, arguments.seconds, None, **options, **cache),
                    rate(url, arguments.seconds, None, **options, **cache),
                ]
            print(f"{latency:>7.0f} ms | " + " | ".join(f"{figure:>10.1f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
