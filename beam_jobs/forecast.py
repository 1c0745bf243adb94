"""`--plan-only`: what a build would do and take, told from a sample of its inputs."""

from __future__ import annotations

import heapq
import math
import os
import shutil
from collections.abc import Sequence
from typing import Literal

import msgspec

from beam_jobs.engine_workers import engine_workers
from beam_jobs.gather_plan import MOST_RUNS
from beam_jobs.job import Job
from beam_jobs.options import BuildOptions
from beam_jobs.parts import PASS_OVER, InputParts
from beam_jobs.requests import build_requests
from beam_jobs.runs import ROW
from beam_jobs.sample import take_sample
from beam_jobs.shard_plan import INDEX_BYTES, RECORD_OVERHEAD
from beam_jobs.spread import parts_plan
from beam_jobs.status import spell
from pileshard.tokenize import load

#: Bytes of shards a second that a worker merges: on slow and on fast storage.
_MERGE_RATES = (60e6, 250e6)
_START_SECONDS = 10.0

#: Space beyond what the tokens may take: there may be more documents than the sample shows.
_ROOM = 0.05


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a build would do and take; `schemas/forecast.schema.json` is the schema of its JSON.

    What is foretold from the sample is null where the sample holds no document.

    Attributes:
      forecast_version: of this form.
      output: the dataset's root.
      temp_url: where runs would lie.
      inputs: how many there are.
      input_bytes: stored bytes of them.
      workers: items done at once.
      tokenize_items: work items of the first stage.
      sample_documents: documents of the sample.
      sample_bytes: stored bytes of the sample.
      error: how far off what follows may be, as a share: two standard errors between inputs for those that were not
        sampled, and 6% for what was sampled in part; 0 where the sample is all there is.
      documents: about how many the inputs hold.
      tokens: about how many, end-of-document ids counted.
      shard_bytes: about how many all shards have.
      shards: about how many, with one at least of each source that the sample shows.
      output_bytes: space that is needed at the output on the way, at most.
      temp_bytes: space that is needed for runs elsewhere, at most; 0 where they lie at the output.
      free_bytes: that are free at the output; null where that cannot be told.
      worker_bytes: about the memory of a worker, without its longest line.
      bytes_per_second: of lines that one worker reads, parses and tokenizes here.
      seconds_least: that the build takes on workers as fast as this machine and fast storage.
      seconds_most: the same on slow storage.
      reads: requests of the store that read, where it is one, about.
      writes: requests that write.
    """

    forecast_version: Literal[1] = 1
    output: str
    temp_url: str
    inputs: int
    input_bytes: int
    workers: int
    tokenize_items: int
    sample_documents: int
    sample_bytes: int
    error: float | None = None
    documents: int | None = None
    tokens: int | None = None
    shard_bytes: int | None = None
    shards: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    free_bytes: int | None = None
    worker_bytes: int | None = None
    bytes_per_second: int | None = None
    seconds_least: float | None = None
    seconds_most: float | None = None
    reads: int | None = None
    writes: int | None = None


def make_forecast(job: Job, options: BuildOptions, tokenizer_bytes: bytes, token_bytes: int) -> Forecast:
    """The forecast of a job, from a sample of its inputs."""
    inputs = job.record.inputs
    stored = sum(entry.size for entry in inputs)
    workers, _ = engine_workers(options.workers, options.beam_args)
    plan = parts_plan(job, options.parts_per_input, workers)
    special = job.record.options.special_tokens
    sample = take_sample(job, load(tokenizer_bytes, eod=job.record.eod, special_tokens=special, engine=job.engine))
    known = Forecast(
        output=job.output,
        temp_url=job.temp_url,
        inputs=len(inputs),
        input_bytes=stored,
        workers=workers,
        tokenize_items=sum(one.parts for one in plan.inputs),
        sample_documents=round(sample.total("documents")),
        sample_bytes=round(sample.total("stored")),
    )
    if not known.sample_documents:
        return known
    tokens, documents = sample.foretold("tokens"), sample.foretold("documents")
    size = tokens * token_bytes + documents * RECORD_OVERHEAD
    runs_size = tokens * token_bytes + documents * ROW.itemsize
    items = known.tokenize_items
    run_count = items * math.ceil(runs_size / items / job.run_bytes)
    shares = [held / max(1, sample.sources.total()) for held in sample.sources.values()]
    splits = 2 if job.record.options.validation else 1
    shards = sum(max(splits, math.ceil(size * share / options.shard_bytes)) for share in shares)
    costs = [cost for one, entry in zip(plan.inputs, inputs, strict=True) for cost in item_costs(one, entry.size)]
    text = sample.foretold("raw_bytes") / stored
    tokenize = schedule([cost * text for cost in costs], workers) / sample.rate
    slow, fast = (size / rate / min(workers, shards) for rate in _MERGE_RATES)
    reads, writes = build_requests(
        sum(passed_over(one, e.size) for one, e in zip(plan.inputs, inputs, strict=True)),
        items,
        runs_size,
        size,
        shards,
        job.run_bytes,
    )
    error = sample.error()
    room = 1 + error + (_ROOM if error else 0)
    most_runs = room * runs_size * (2 if run_count > MOST_RUNS else 1)
    beside = job.temp_url == job.output
    return msgspec.structs.replace(
        known,
        error=round(error, 3),
        documents=round(documents),
        tokens=round(tokens),
        shard_bytes=round(size),
        shards=shards,
        output_bytes=round(room * (size + documents * INDEX_BYTES) + (most_runs if beside else 0)),
        temp_bytes=0 if beside else round(most_runs),
        free_bytes=_free(job),
        worker_bytes=options.worker_memory,
        bytes_per_second=round(sample.rate),
        seconds_least=round(tokenize / 1.3 + fast, 1),
        seconds_most=round(2 * tokenize + slow + _START_SECONDS, 1),
        reads=reads,
        writes=writes,
    )


def item_costs(one: InputParts, size: int) -> list[float]:
    """What each part of an input costs, in stored bytes that are read and tokenized whole."""
    if one.way == "whole":
        return [float(size)]
    share = PASS_OVER[one.container]
    if one.way == "enter":
        return [size * (1 + share) / one.parts] * one.parts
    return [size * share / (1 - (1 + share) ** -one.parts)] * one.parts


def passed_over(one: InputParts, size: int) -> int:
    """Stored bytes that the parts of an input read together."""
    if one.way == "through":
        return sum(one.cuts[1:])
    return size if one.way == "whole" else 2 * size


def schedule(costs: Sequence[float], workers: int) -> float:
    """When the last of some workers is done that take the largest item first."""
    free = [0.0] * max(1, min(workers, len(costs)))
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def forecast_text(found: Forecast) -> list[str]:
    """A forecast in sentences."""
    lines = [
        f"{found.inputs:,} inputs, {found.input_bytes:,} bytes; {found.tokenize_items:,} tokenize items for "
        f"{found.workers:,} workers"
    ]
    if found.error is None or found.documents is None or found.tokens is None or found.shard_bytes is None:
        return [*lines, "the sample holds no document: nothing can be foretold"]
    low, high = ((1 + sign * found.error) * found.tokens / 1e9 for sign in (-1, 1))
    sampled = f"from a sample of {found.sample_documents:,} documents ({found.sample_bytes:,} stored bytes)"
    lines.append(
        f"{sampled}: about {found.documents:,} documents, {found.tokens / 1e9:,.3f} G tokens ({low:,.3f} to "
        f"{high:,.3f}), {found.shard_bytes / 1e9:,.2f} GB of shards, about {found.shards:,} of them; an input may "
        "begin unlike its rest"
    )
    need = f"space on the way: up to {(found.output_bytes or 0) / 1e9:,.2f} GB"
    if found.temp_bytes:
        need += f" of shards at {found.output} and {found.temp_bytes / 1e9:,.2f} GB of runs at {found.temp_url}"
    else:
        need += f" (runs and shards) at {found.output}"
    lines.append(need + (f"; {found.free_bytes / 1e9:,.1f} GB are free there" if found.free_bytes is not None else ""))
    memory = (found.worker_bytes or 0) / 1e9
    lines.append(f"memory a worker: about {memory:,.1f} GB, and three to five times the longest line")
    rate = (found.bytes_per_second or 0) / 1e6
    lines.append(
        f"time: {spell(found.seconds_least or 0)} to {spell(found.seconds_most or 0)}, with workers that do "
        f"{rate:,.0f} MB of text a second, as this machine does in the sample"
    )
    lines.append(
        f"requests, where storage counts them: about {found.reads:,} that read and {found.writes:,} that write"
    )
    return lines


def _free(job: Job) -> int | None:
    path = job.storage().local_path("")
    while path and not os.path.exists(path):
        path = os.path.dirname(path.rstrip("/"))
    return shutil.disk_usage(path).free if path else None
