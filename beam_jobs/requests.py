"""How many requests a build makes of its store, told from its plan."""

from __future__ import annotations

import math

from beam_jobs.gather_plan import MOST_RUNS, batch_count, blocks_an_item
from beam_jobs.merge_stage import slab_bytes
from pileshard.format.remote import REQUEST_BYTES

#: What the clients of object stores send in one part of an upload, about.
UPLOAD_BYTES = 50 << 20


def uploads(size: float) -> int:
    """Requests that write a file."""
    return 1 if size <= UPLOAD_BYTES else 2 + math.ceil(size / UPLOAD_BYTES)


def input_reads(stored: float) -> int:
    """Requests that read so many bytes of an input."""
    return math.ceil(stored / REQUEST_BYTES)


def merge_reads(slices: int, shard_size: float, run_bytes: int) -> int:
    """Requests that read a shard's slices of runs: of each run its table, its rows, and tokens once a slab."""
    return 1 + slices * (2 + math.ceil(shard_size / slab_bytes(run_bytes)))


def gather_reads(in_batch: int, blocks: int) -> int:
    """Requests of a gather item: two lists, and of each run a table, and rows and tokens for each block."""
    return 2 + in_batch * (1 + 2 * blocks)


def build_requests(
    input_bytes: float, items: int, run_bytes_all: float, shard_bytes_all: float, shards: int, run_bytes: int
) -> tuple[int, int]:
    """Requests that read and that write, of a build whose runs hold every source: the most that there can be.

    Args:
      input_bytes: that are read of the inputs.
      items: of the tokenize stage.
      run_bytes_all: of all runs.
      shard_bytes_all: of all shards.
      shards: how many.
      run_bytes: of a run.
    """
    runs = max(1, items * math.ceil(run_bytes_all / max(1, items) / run_bytes))
    slices = runs
    # Of each item: whether it has a receipt, the tokenizer or its list, and the driver's look at the receipt.
    reads = input_reads(input_bytes) + 3 * items
    writes = items + runs * uploads(run_bytes_all / runs)
    if runs > MOST_RUNS:
        batches = batch_count(runs)
        step = blocks_an_item(int(run_bytes_all / batches / batches))
        gathers = batches * math.ceil(batches / step)
        reads += gathers * (2 + gather_reads(math.ceil(runs / batches), step))
        writes += gathers + batches * batches * uploads(run_bytes_all / batches / batches)
        slices = round(batches * (1 + batches / shards))
    reads += shards * (2 + merge_reads(slices, shard_bytes_all / shards, run_bytes))
    writes += shards * (2 + uploads(shard_bytes_all / shards))
    return reads, writes
