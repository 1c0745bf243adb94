"""The model behind `cluster_simulation.py`: items of each stage, their times and requests, and how engines run them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from beam_jobs.gather_plan import batch_count, blocks_an_item
from beam_jobs.parts import Kind, cut
from beam_jobs.reads import AT_ONCE
from beam_jobs.requests import gather_reads, input_reads, merge_reads, uploads
from tests.benchmarks.cluster_corpora import Corpus, shard_bytes_in_all


@dataclass(frozen=True)
class Rates:
    """Of one worker (a process on one core), in bytes a second.

    Attributes:
      decompress: text out of zstd, counted.
      tokenize: text through the whole tokenize stage, decompression with it.
      gather: bytes of runs.
      merge: bytes of shards.
      item_seconds: what an engine adds to each item.
      stage_seconds: what an engine adds to each stage: its start, and the driver's wait for its end.
      plan_slice_seconds: the driver's, for each source of each run.
      receipt_seconds: the driver's, for each receipt, beside its request.
    """

    decompress: float = 590e6
    tokenize: float = 71e6
    gather: float = 290e6
    merge: float = 240e6
    item_seconds: float = 0.3
    stage_seconds: float = 5.0
    plan_slice_seconds: float = 9e-6
    receipt_seconds: float = 0.3e-3


@dataclass(frozen=True)
class Store:
    """Where inputs, runs and shards lie.

    Attributes:
      latency: seconds to the first byte of a request.
      worker_bytes: bytes a second that one worker gets.
      total_bytes: bytes a second for all workers together.
      total_requests: requests a second for all workers together.
    """

    latency: float = 0.020
    worker_bytes: float = 100e6
    total_bytes: float = 100e9
    total_requests: float = 50e3

    def share(self, workers: int) -> float:
        """Bytes a second of one of so many workers."""
        return min(self.worker_bytes, self.total_bytes / workers)


@dataclass(frozen=True)
class Work:
    """One item: seconds of a worker, and what it asks of the store."""

    size: float
    seconds: float
    reads: int = 0
    writes: int = 0
    read_bytes: float = 0.0
    written_bytes: float = 0.0


@dataclass
class Stage:
    """A stage as it was simulated."""

    name: str
    items: int
    seconds: float
    work: float
    longest: float
    reads: int
    writes: int
    read_bytes: float
    written_bytes: float


@dataclass
class Result:
    """A build as it was simulated."""

    corpus: Corpus
    workers: int
    parts: int
    runs: int
    shards: int
    slices: int
    stages: list[Stage] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the first item to the manifest."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def at_work(self) -> float:
        """Share of the workers' time that was spent in items."""
        return sum(stage.work for stage in self.stages) / (self.seconds * self.workers)

    @property
    def space(self) -> float:
        """Most bytes on the store at once beside the inputs: runs stay until the manifest is written."""
        size = shard_bytes_in_all(self.corpus)
        return size * (3 if any(stage.name == "gather" for stage in self.stages) else 2)


def schedule(seconds: Sequence[float], workers: int, each: float = 0.0) -> float:
    """Seconds until all items are done that go, in their order, to the worker that is free first."""
    free = [0.0] * min(workers, max(1, len(seconds)))
    for one in seconds:
        heapq.heapreplace(free, free[0] + one + each)
    return max(free) if seconds else 0.0


def simulate(
    corpus: Corpus,
    workers: int,
    parts: int,
    rates: Rates | None = None,
    store: Store | None = None,
    frames: bool = False,
) -> Result:
    """Simulates a build.

    Args:
      corpus: what is built.
      workers: processes, a core each.
      parts: of each input.
      rates: of one worker.
      store: where all lies.
      frames: whether inputs can be entered at frames.
    """
    rates, store = rates or Rates(), store or Store()
    items = corpus.inputs * parts
    size = shard_bytes_in_all(corpus)
    model = _Model(corpus, rates, store, workers)
    runs = corpus.inputs * sum(model.runs_of(*span) for span in model.ranges(parts, frames))
    shards = [math.ceil(size * share / corpus.shard_bytes) for share in corpus.sources]
    gathers = runs > corpus.most_runs
    batches = batch_count(runs) if gathers else runs
    # A shard that holds the end of a block reads from two.
    slices = round(batches * (1 + batches / sum(shards))) if gathers else runs
    result = Result(corpus, workers, parts, runs, sum(shards), slices)

    def stage(name: str, works: Iterator[Work]) -> None:
        done = sorted(works, key=lambda work: -work.size)
        driver = 2 * len(done) * (store.latency / AT_ONCE + rates.receipt_seconds)
        result.stages.append(
            Stage(
                name=name,
                items=len(done),
                seconds=rates.stage_seconds + driver + schedule([w.seconds for w in done], workers, rates.item_seconds),
                work=sum(work.seconds for work in done),
                longest=max(work.seconds for work in done),
                reads=sum(work.reads for work in done) + 2 * len(done),
                writes=sum(work.writes for work in done) + len(done),
                read_bytes=sum(work.read_bytes for work in done),
                written_bytes=sum(work.written_bytes for work in done),
            )
        )

    if parts > 1 and frames:
        stage("count", model.counts(parts))
    stage("tokenize", model.tokenizes(parts, frames))
    plan = runs * len(corpus.sources) * rates.plan_slice_seconds + items * store.latency / AT_ONCE
    result.stages.append(Stage("plan", 0, plan, 0, 0, items, len(corpus.sources), 0, 0))
    if gathers:
        stage("gather", model.gathers(runs, batches))
    stage("merge", model.merges(shards, slices))
    return result


@dataclass(frozen=True)
class _Model:
    corpus: Corpus
    rates: Rates
    store: Store
    workers: int

    def _work(
        self,
        items: int,
        size: float,
        computing: float,
        reads: int,
        writes: int,
        read: float,
        written: float,
        at_once: int = 1,
    ) -> Work:
        active = min(self.workers, items)
        waiting = (reads / at_once + writes) * self.store.latency
        waiting = max(waiting, (reads + writes) * active / self.store.total_requests)
        moving = (read + written) / self.store.share(active)
        return Work(size, computing + waiting + moving, reads, writes, read, written)

    @property
    def size(self) -> float:
        return shard_bytes_in_all(self.corpus)

    def ranges(self, parts: int, frames: bool) -> list[tuple[float, float]]:
        """Where each part of an input begins and ends, as a share of it."""
        stored = int(self.corpus.stored / self.corpus.inputs)
        cuts = cut(stored, Kind("zstd", frames), parts).cuts
        return [(begin / stored, end / stored) for begin, end in pairwise(cuts)]

    def runs_of(self, begin: float, end: float) -> int:
        """Runs of a part."""
        return max(1, math.ceil(self.size / self.corpus.inputs * (end - begin) / self.corpus.run_bytes))

    def counts(self, parts: int) -> Iterator[Work]:
        count = self.corpus.inputs * parts
        stored, text = self.corpus.stored / count, self.corpus.text / count
        work = self._work(count, stored, text / self.rates.decompress, input_reads(stored), 1, stored, 0)
        yield from [work] * count

    def tokenizes(self, parts: int, frames: bool) -> Iterator[Work]:
        inputs = self.corpus.inputs
        stored, text = self.corpus.stored / inputs, self.corpus.text / inputs
        for begin, end in self.ranges(parts, frames):
            before = 0 if frames else begin  # decompressed on the way
            read, share = stored * (end - begin + before), end - begin
            computing = text * before / self.rates.decompress + text * share / self.rates.tokenize
            size, runs = self.size / inputs * share, self.runs_of(begin, end)
            writes = runs * uploads(size / runs) + 1
            cost = stored * (share + before * self.rates.tokenize / self.rates.decompress)
            work = self._work(inputs * parts, cost, computing, input_reads(read) + 1, writes, read, size)
            yield from [work] * inputs

    def gathers(self, runs: int, batches: int) -> Iterator[Work]:
        blocks = batches
        each = self.size / batches / blocks
        step = blocks_an_item(int(each))
        items = batches * math.ceil(blocks / step)
        for first in range(0, blocks, step):
            count = min(step, blocks - first)
            size = each * count
            reads, writes = gather_reads(math.ceil(runs / batches), count), count * uploads(each)
            work = self._work(items, size, size / self.rates.gather, reads, writes, size, size, AT_ONCE)
            yield from [work] * batches

    def merges(self, shards: list[int], slices: int) -> Iterator[Work]:
        for share, count in zip(self.corpus.sources, shards, strict=True):
            size = self.size * share / count
            reads, writes = merge_reads(slices, size, self.corpus.run_bytes), uploads(size) + 1
            moved = (size * 1.02, size * 1.01)  # rows beside tokens, an index beside a shard
            work = self._work(sum(shards), size, size / self.rates.merge, reads, writes, *moved, AT_ONCE)
            yield from [work] * count
