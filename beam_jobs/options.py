"""What a user may choose about a build."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from beam_jobs.memory import DEFAULT_BYTES, LEAST_BYTES
from pileshard.errors import OptionError
from pileshard.format.secrets import redact, secret_in_url

Dedup = Literal["none", "exact"]
SpecialTokens = Literal["text", "token", "reject"]
EngineName = Literal["auto", "fast", "reference"]
OnBadInput = Literal["fail", "skip"]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS.update({"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40})


def parse_size(text: str, option: str = "size") -> int:
    """Bytes named by a text such as `1GB`, `256MiB` or `4096`.

    Raises:
      OptionError: it names no positive size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", text.upper())
    unit = match.group(2) if match else None
    if unit and not unit.endswith("B"):
        unit += "B"
    if match is None or unit not in _UNITS or not 1 <= (size := _bytes(match.group(1), _UNITS[unit])) < 1 << 62:
        raise OptionError(f"{option} {text!r} is no size: write e.g. 1GB, 256MiB or 4096")
    return size


def _bytes(number: str, unit: int) -> int:
    return int(number) * unit if number.isdecimal() else int(float(number) * unit)


#: How long storage is tried again, by default, until a fault is taken to be lasting: seconds of pauses together.
RETRY_SECONDS = 90.0


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build, as `pileshard build --help` explains them.

    The first group decides the shards' bytes, the second only how the work is done.
    """

    inputs: tuple[str, ...]
    output: str
    tokenizer: str
    eod: str | None = None
    seed: int = 0
    shard_bytes: int = 10**9
    validation: float = 0.0
    dedup: Dedup = "none"
    special_tokens: SpecialTokens = "text"
    text_key: str = "text"
    source_key: str = "meta.pile_set_name"

    parts_per_input: int | Literal["auto"] = "auto"
    engine: EngineName = "auto"
    on_bad_input: OnBadInput = "fail"
    max_rejected: float = 0.01
    workers: int | None = None
    temp_url: str | None = None
    keep_runs: bool = False
    worker_memory: int = DEFAULT_BYTES
    run_bytes: int | None = None
    retry_seconds: float = RETRY_SECONDS
    space_check: bool = True
    storage_options: dict[str, Any] = field(default_factory=dict)
    beam_args: tuple[str, ...] = ()

    def _urls(self) -> list[tuple[str, str]]:
        named = [("--output", self.output), ("--tokenizer", self.tokenizer), ("--temp-url", self.temp_url or "")]
        return [("--input", url) for url in self.inputs] + named

    def check(self) -> None:
        """Raises OptionError for the first value that makes no sense, naming it."""
        if not self.inputs:
            raise OptionError("--input names no file: give at least one URL, path or glob")
        if not -(2**63) <= self.seed < 2**63:
            raise OptionError(f"--seed {self.seed} does not fit 64 bits")
        if not 0 <= self.validation < 1:
            raise OptionError(f"--validation {self.validation} is not a share of the documents: 0 <= F < 1")
        if not 0 <= self.max_rejected <= 1:
            raise OptionError(f"--max-rejected {self.max_rejected} is not a share of the lines: 0 <= F <= 1")
        if self.parts_per_input != "auto" and not 1 <= self.parts_per_input <= 1000:
            raise OptionError(f"--parts-per-input {self.parts_per_input} is not between 1 and 1000")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"--workers {self.workers} is not a number of processes: 1 or more")
        if self.shard_bytes < 1024:
            raise OptionError(f"--shard-bytes {self.shard_bytes} is too small: 1KB or more")
        if self.worker_memory < LEAST_BYTES:
            raise OptionError(
                f"--worker-memory {self.worker_memory:,} is too small for the tokenizers and one run: "
                f"{LEAST_BYTES >> 20}MiB or more"
            )
        if self.run_bytes is not None and self.run_bytes < 2**16:
            raise OptionError(f"--run-bytes {self.run_bytes} is too small: 64KiB or more")
        if not 0 <= self.retry_seconds <= 86_400:
            raise OptionError(f"--retry-seconds {self.retry_seconds:g} is not between 0 and 86400")
        for name, url in self._urls():
            if (what := secret_in_url(url)) is not None:
                raise OptionError(
                    f"{name} {redact(url)}: the URL holds {what}, which would be written down with it; give it by "
                    "--storage-option or the environment"
                )
        for name, value in (("--text-key", self.text_key), ("--source-key", self.source_key)):
            if not all(value.split(".")):
                raise OptionError(f"{name} {value!r} is no dotted path of keys, such as meta.pile_set_name")
        for name, value, kind in (
            ("--dedup", self.dedup, Dedup),
            ("--special-tokens", self.special_tokens, SpecialTokens),
            ("--engine", self.engine, EngineName),
            ("--on-bad-input", self.on_bad_input, OnBadInput),
        ):
            if value not in get_args(kind):
                raise OptionError(f"{name} {value!r} is none of {', '.join(get_args(kind))}")
