"""`--plan-only`: what a build would do and take, told from a sample of its inputs."""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass

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


def forecast_lines(job: Job, options: BuildOptions, tokenizer_bytes: bytes, token_bytes: int) -> list[str]:
    """The forecast in sentences."""
    inputs = job.record.inputs
    stored = sum(entry.size for entry in inputs)
    workers, _ = engine_workers(options.workers, options.beam_args)
    plan = parts_plan(job, options.parts_per_input, workers)
    items = sum(one.parts for one in plan.inputs)
    lines = [f"{len(inputs):,} inputs, {stored:,} bytes; {items:,} tokenize items for {workers:,} workers"]
    special = job.record.options.special_tokens
    sample = take_sample(job, load(tokenizer_bytes, eod=job.record.eod, special_tokens=special, engine=job.engine))
    if not sample.documents:
        return [*lines, "the sample holds no document: nothing can be foretold"]
    scale = stored / sample.stored
    tokens, documents = sample.tokens * scale, sample.documents * scale
    size = tokens * token_bytes + documents * RECORD_OVERHEAD
    lines.append(
        f"from a sample of {sample.documents:,} documents ({sample.stored:,} stored bytes): about {documents:,.0f} "
        f"documents, {tokens / 1e9:,.3f} G tokens, {size / 1e9:,.2f} GB of shards, at least "
        f"{math.ceil(size / options.shard_bytes):,} of them"
    )
    need = f"space on the way: about {size / 1e9:,.2f} GB of shards at {job.output}"
    if job.temp_url == job.output:
        need = f"space on the way: about {2 * size / 1e9:,.2f} GB (runs and shards) at {job.output}"
    else:
        need += f" and {tokens * token_bytes / 1e9:,.2f} GB of runs at {job.temp_url}"
    free = _free(job)
    lines.append(need + (f"; {free / 1e9:,.1f} GB are free there" if free is not None else ""))
    memory = (options.run_bytes + (512 << 20)) / 1e9
    lines.append(f"memory a worker: about {memory:,.1f} GB, and three to five times the longest line")
    rate = sample.text_bytes / max(sample.seconds, 1e-9)
    lines.append(
        f"tokenizer engine here: {rate / 1e6:,.0f} MB of text a second and core, cold; the sample says no more"
    )
    return lines


def _free(job: Job) -> int | None:
    path = job.storage().local_path("")
    while path and not os.path.exists(path):
        path = os.path.dirname(path.rstrip("/"))
    return shutil.disk_usage(path).free if path else None
