"""`--plan-only`: what a build would do and take, told from a sample of its inputs."""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass
from typing import Literal

import msgspec

from beam_jobs.engine_workers import engine_workers
from beam_jobs.job import Job
from beam_jobs.options import BuildOptions
from beam_jobs.shard_plan import RECORD_OVERHEAD
from beam_jobs.spread import parts_plan
from pileshard.format.storage import open_url
from pileshard.ingest import line_blocks, parse_lines
from pileshard.tokenize import Tokenizer, load

#: Decompressed bytes that are read of each sampled input, and how many inputs are sampled.
SAMPLE_BYTES = 8 << 20
SAMPLE_INPUTS = 3


@dataclass
class Sample:
    """Sums over what was read."""

    stored: int = 0
    lines: int = 0
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    seconds: float = 0.0


def take_sample(job: Job, tokenizer: Tokenizer, most_encoded: int | None = None) -> Sample:
    """Reads and tokenizes the begin of some inputs, spread over the list.

    Args:
      job: the job.
      tokenizer: with the engine that is to be timed.
      most_encoded: bytes of text to tokenize, about; the tokens of the rest are taken to be as many a byte.
    """
    options = job.record.options
    encoded = 0
    paths = tuple(options.text_key.split(".")), tuple(options.source_key.split("."))
    inputs = sorted(job.record.inputs, key=lambda entry: -entry.size)
    step = max(1, len(inputs) // SAMPLE_INPUTS)
    sample = Sample()
    for entry in inputs[::step][:SAMPLE_INPUTS]:
        stored = 0

        def on_bytes(chunk: bytes) -> None:
            nonlocal stored
            stored += len(chunk)

        read = 0
        with open_url(entry.url, job.storage_options, retry=job.retry) as raw:
            for block in line_blocks(raw, entry.url, on_bytes=on_bytes):
                parsed = parse_lines(block, *paths)
                read += sum(map(len, block.lines))
                sample.lines += parsed.total
                sample.documents += len(parsed.texts)
                sample.text_bytes += sum(map(len, parsed.texts))
                for text, line in zip(parsed.texts, parsed.lines, strict=True) if most_encoded else ():
                    if encoded >= (most_encoded or 0):
                        break
                    encoded += len(text)
                    sample.tokens += len(tokenizer.encode_batch([text], [line])[0])
                if most_encoded is None:
                    began = time.monotonic()
                    ids, _ = tokenizer.encode_batch(parsed.texts, parsed.lines)
                    sample.seconds += time.monotonic() - began
                    sample.tokens += len(ids) + len(parsed.texts)
                if read >= SAMPLE_BYTES:
                    break
        sample.stored += stored
    if encoded:
        sample.tokens = sample.tokens * sample.text_bytes // encoded + sample.documents
    return sample


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
      documents: about how many the inputs hold.
      tokens: about how many, end-of-document ids counted.
      shard_bytes: about how many all shards have.
      shards: at least so many.
      output_bytes: space that is needed at the output on the way.
      temp_bytes: space that is needed for runs elsewhere; 0 where they lie at the output.
      free_bytes: that are free at the output; null where that cannot be told.
      worker_bytes: about the memory of a worker, without its longest line.
      engine_bytes_per_second: of text that the tokenizer engine does here on a core, cold.
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
    documents: int | None = None
    tokens: int | None = None
    shard_bytes: int | None = None
    shards: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    free_bytes: int | None = None
    worker_bytes: int | None = None
    engine_bytes_per_second: int | None = None


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
        sample_documents=sample.documents,
        sample_bytes=sample.stored,
    )
    if not sample.documents:
        return known
    scale = stored / sample.stored
    tokens, documents = sample.tokens * scale, sample.documents * scale
    size = tokens * token_bytes + documents * RECORD_OVERHEAD
    beside = job.temp_url == job.output
    return msgspec.structs.replace(
        known,
        documents=round(documents),
        tokens=round(tokens),
        shard_bytes=round(size),
        shards=math.ceil(size / options.shard_bytes),
        output_bytes=round(2 * size if beside else size),
        temp_bytes=0 if beside else round(tokens * token_bytes),
        free_bytes=_free(job),
        worker_bytes=options.worker_memory,
        engine_bytes_per_second=round(sample.text_bytes / max(sample.seconds, 1e-9)),
    )


def forecast_text(found: Forecast) -> list[str]:
    """A forecast in sentences."""
    lines = [
        f"{found.inputs:,} inputs, {found.input_bytes:,} bytes; {found.tokenize_items:,} tokenize items for "
        f"{found.workers:,} workers"
    ]
    if found.documents is None or found.tokens is None or found.shard_bytes is None:
        return [*lines, "the sample holds no document: nothing can be foretold"]
    lines.append(
        f"from a sample of {found.sample_documents:,} documents ({found.sample_bytes:,} stored bytes): about "
        f"{found.documents:,} documents, {found.tokens / 1e9:,.3f} G tokens, {found.shard_bytes / 1e9:,.2f} GB of "
        f"shards, at least {found.shards:,} of them"
    )
    need = f"space on the way: about {(found.output_bytes or 0) / 1e9:,.2f} GB"
    if found.temp_bytes:
        need += f" of shards at {found.output} and {found.temp_bytes / 1e9:,.2f} GB of runs at {found.temp_url}"
    else:
        need += f" (runs and shards) at {found.output}"
    lines.append(need + (f"; {found.free_bytes / 1e9:,.1f} GB are free there" if found.free_bytes is not None else ""))
    memory = (found.worker_bytes or 0) / 1e9
    lines.append(f"memory a worker: about {memory:,.1f} GB, and three to five times the longest line")
    rate = (found.engine_bytes_per_second or 0) / 1e6
    lines.append(f"tokenizer engine here: {rate:,.0f} MB of text a second and core, cold; the sample says no more")
    return lines


def _free(job: Job) -> int | None:
    path = job.storage().local_path("")
    while path and not os.path.exists(path):
        path = os.path.dirname(path.rstrip("/"))
    return shutil.disk_usage(path).free if path else None
