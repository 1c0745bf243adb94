"""A sample of a build's inputs: what their first megabytes hold, and how far that can be trusted for the rest."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from beam_jobs.inputs import InputFile
from beam_jobs.job import Job
from pileshard.errors import InputError
from pileshard.format.storage import open_url
from pileshard.ingest import line_blocks, parse_lines
from pileshard.ingest.frames import decompressed
from pileshard.tokenize import Tokenizer

#: Decompressed bytes that are read of each sampled input, and how many inputs are sampled.
SAMPLE_BYTES = 8 << 20
SAMPLE_INPUTS = 8

#: How far off (a share) is what is foretold from one input of several, and from the begin of one for the rest of it.
_ONE_ERROR = 0.25
_PART_ERROR = 0.06
_LEAST_ERROR = 0.03


@dataclass
class Sampled:
    """What was read of one input.

    Attributes:
      size: stored bytes of the input.
      stored: bytes that the lines read take of it, by the rate at which its first megabytes decompress.
      raw_bytes: of those lines.
      text_bytes: of their documents.
      documents: in those lines.
      tokens: with end-of-document ids.
    """

    size: int
    stored: float = 0.0
    raw_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    tokens: float = 0.0


@dataclass
class Sample:
    """Sums over what was read, and what it tells of all inputs.

    Attributes:
      lines: how many.
      seconds: that reading, parsing and tokenizing took.
      warm_seconds: those of all inputs but the first, which warms the engine.
      sources: bytes of text by source.
      inputs: that were sampled.
      others: stored bytes of the inputs that were not.
    """

    lines: int = 0
    seconds: float = 0.0
    warm_seconds: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)
    inputs: list[Sampled] = field(default_factory=list)
    others: int = 0

    def total(self, name: str) -> float:
        """What was read of `documents`, `tokens`, `text_bytes`, `raw_bytes` or `stored`."""
        return float(sum(getattr(one, name) for one in self.inputs))

    def foretold(self, name: str) -> float:
        """How much of it all inputs have: each sampled one by its own rate, and the others by the rate of those."""
        sampled = sum(one.size for one in self.inputs)
        whole = sum(self._rate(one, name) * one.size for one in self.inputs)
        return whole * (1 + self.others / sampled) if sampled else 0.0

    def error(self) -> float:
        """How far off the tokens foretold may be, as a share.

        Two standard errors of the rate, between inputs, for those that were not sampled; and 6% for those that were
        read in part, for an input may begin unlike its rest; no less than 3%, but 0 where all were read whole.
        """
        sizes = [one.size for one in self.inputs]
        sampled, tokens = sum(sizes), self.foretold("tokens")
        if not sampled or not tokens:
            return _ONE_ERROR
        part = sum(one.size for one in self.inputs if one.stored < one.size) / sampled
        share = self.others / (sampled + self.others)
        if not share:
            return max(_LEAST_ERROR, _PART_ERROR * part) if part else 0.0
        if len(sizes) < 2:
            return _ONE_ERROR
        mean = tokens / (sampled + self.others)
        squares = sum(one.size * (self._rate(one, "tokens") - mean) ** 2 for one in self.inputs) / sampled
        return max(_LEAST_ERROR, _PART_ERROR * part + 2 * share * math.sqrt(squares / (len(sizes) - 1)) / mean)

    @staticmethod
    def _rate(one: Sampled, name: str) -> float:
        return float(getattr(one, name)) / one.stored if one.stored else 0.0

    @property
    def rate(self) -> float:
        """Bytes of lines a second that one worker reads, parses and tokenizes."""
        if self.warm_seconds:
            return sum(one.raw_bytes for one in self.inputs[1:]) / self.warm_seconds
        return self.total("raw_bytes") / max(self.seconds, 1e-9)


def sampled_inputs(inputs: list[InputFile]) -> list[InputFile]:
    """Some inputs, spread over all by size."""
    ordered = sorted(inputs, key=lambda entry: -entry.size)
    count = min(SAMPLE_INPUTS, len(ordered))
    return [ordered[len(ordered) * at // count] for at in range(count)]


def take_sample(job: Job, tokenizer: Tokenizer, most_encoded: int | None = None) -> Sample:
    """Reads and tokenizes the begin of some inputs. A damaged one counts for nothing where it is to be left out.

    Args:
      job: the job.
      tokenizer: with the engine that is to be timed.
      most_encoded: bytes of text to tokenize, about; the tokens of the rest are taken to be as many a byte.
    """
    chosen = sampled_inputs(job.record.inputs)
    sample = Sample(others=sum(e.size for e in job.record.inputs) - sum(e.size for e in chosen))
    encoded = tokens = 0
    for entry in chosen:
        one = Sampled(size=entry.size)
        sample.inputs.append(one)
        began = time.monotonic()
        try:
            for size, documents in _documents(job, entry, sample):
                one.raw_bytes += size
                one.text_bytes += sum(map(len, documents))
                one.documents += len(documents)
                if most_encoded is None:
                    one.tokens += len(tokenizer.encode_batch(documents, range(len(documents)))[0])
                    continue
                for document in documents:
                    if encoded < most_encoded:
                        encoded += len(document)
                        tokens += len(tokenizer.encode_batch([document], [0])[0])
            seconds = time.monotonic() - began
            if one.raw_bytes:
                one.stored = one.raw_bytes / _text_per_stored(job, entry)
        except InputError:
            if job.on_bad_input != "skip":
                raise
            sample.inputs.pop()
            continue
        sample.seconds += seconds
        sample.warm_seconds += seconds if len(sample.inputs) > 1 else 0.0
        if one.stored > 0.97 * entry.size:
            one.stored = float(entry.size)
    for one in sample.inputs:
        if most_encoded is not None:
            one.tokens = one.text_bytes * tokens / max(1, encoded)
        one.tokens += one.documents
    return sample


def _documents(job: Job, entry: InputFile, sample: Sample) -> Iterator[tuple[int, list[bytes]]]:
    """The first blocks of an input: bytes of their lines, and their documents."""
    options = job.record.options
    paths = tuple(options.text_key.split(".")), tuple(options.source_key.split("."))
    read = 0
    with open_url(entry.url, job.storage_options, retry=job.retry) as raw:
        for block in line_blocks(raw, entry.url):
            size = sum(map(len, block.lines)) + len(block.lines)
            parsed = parse_lines(block, *paths)
            sample.lines += parsed.total
            for source, text in zip(parsed.sources, parsed.texts, strict=True):
                sample.sources[source] += len(text)
            yield size, parsed.texts
            read += size
            if read >= SAMPLE_BYTES:
                return


def _text_per_stored(job: Job, entry: InputFile) -> float:
    """Bytes of text that a stored byte gives, over the first megabytes of an input."""
    with open_url(entry.url, job.storage_options, retry=job.retry) as raw:
        return text_per_stored(raw, entry.url, entry.size)


def text_per_stored(raw: BinaryIO, url: str, size: int) -> float:
    """Bytes of text that a stored byte gives: over the whole input, or its first megabytes.

    Args:
      raw: at the input's first byte.
      url: its name, for errors.
      size: its stored bytes.
    """
    marks = [at for at in (1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20) if 2 * at <= size]
    text = 0
    at_marks: list[int] = []
    # What is read ahead counts for nothing: at a mark, all that the bytes before it give has come, but for what a
    # decompressor holds back, and that is as much at each mark.
    for piece in decompressed(raw, url, marks=marks):
        text += len(piece)
        if not piece:
            at_marks.append(text)
            count = len(at_marks)
            if count > 1 and (text >= SAMPLE_BYTES or count == len(marks)):
                return max(1, text - at_marks[0]) / (marks[count - 1] - marks[0])
    return max(1, text) / max(1, size)
