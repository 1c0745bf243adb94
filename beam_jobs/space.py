"""The space that a build needs, and what there is: told at its start, where it can be known.

It can on file systems of this machine or mounted there. Object stores have no end, and quotas are not seen.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import defaultdict
from dataclasses import dataclass

from beam_jobs.gather_plan import MOST_RUNS
from beam_jobs.job import Job, runs_dir
from beam_jobs.runs import ROW
from beam_jobs.sample import Sample, take_sample
from beam_jobs.shard_plan import INDEX_BYTES, RECORD_OVERHEAD
from pileshard.errors import BuildError
from pileshard.format.paths import SHARDS
from pileshard.format.storage import Storage
from pileshard.tokenize import Tokenizer

_log = logging.getLogger("pileshard.build")

#: Bytes of text that are tokenized to tell how many tokens there are in the rest: a part of a second's work.
_ENCODED_BYTES = 256 << 10

#: Bytes of runs and shards together for a stored byte that no corpus reaches; with so much free nothing is sampled.
_MOST = 20

#: A disk that has not even this share of what the sample foretells is full before the end, whatever it missed.
_SURELY = 0.5


@dataclass(frozen=True)
class Space:
    """What a build needs on one file system.

    Attributes:
      path: a directory there.
      what: runs, shards, or both.
      needed: bytes, of those that are not there yet.
      free: bytes.
    """

    path: str
    what: str
    needed: int
    free: int

    def __str__(self) -> str:
        return (
            f"{self.path}: the build needs about {self.needed / 1e9:,.1f} GB for its {self.what}, and "
            f"{self.free / 1e9:,.1f} GB are free there"
        )


def foretold_bytes(sample: Sample, job: Job, token_bytes: int) -> tuple[int, int]:
    """Bytes of all runs and of all shards, as a sample foretells them."""
    tokens, documents = sample.foretold("tokens") * token_bytes, sample.foretold("documents")
    runs = int(tokens + documents * ROW.itemsize)
    return runs * (2 if runs > MOST_RUNS * job.run_bytes else 1), int(
        tokens + documents * (RECORD_OVERHEAD + INDEX_BYTES)
    )


def space_needed(job: Job, tokenizer: Tokenizer) -> list[Space]:
    """What is needed on each file system of this machine that the build writes to; what surely fits is left out."""
    places = [("runs", job.temp_storage(), runs_dir(job.fingerprint)), ("shards", job.storage(), SHARDS)]
    local = [(what, place, below, _existing(place)) for what, place, below in places if place.is_local]
    stored = sum(entry.size for entry in job.record.inputs)
    if all(shutil.disk_usage(path).free > _MOST * stored for *_, path in local):
        return []
    needed = dict(zip(("runs", "shards"), foretold_bytes(_sample(job, tokenizer), job, _width(tokenizer)), strict=True))
    by_device: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    for what, place, below, path in local:
        left = max(0, needed[what] - sum(place.size(name) for name in place.files(below)))
        by_device[_device(path)].append((what, path, left))
    return [
        Space(
            path=members[0][1],
            what=" and ".join(what for what, _, _ in members),
            needed=sum(left for _, _, left in members),
            free=shutil.disk_usage(members[0][1]).free,
        )
        for members in by_device.values()
    ]


def check_space(job: Job, tokenizer: Tokenizer) -> None:
    """Warns of a disk that will be full before the build ends.

    Raises:
      BuildError: it will be for sure.
    """
    for space in space_needed(job, tokenizer):
        remedy = "make room, or put the runs elsewhere with --temp-url"
        if space.free < _SURELY * space.needed:
            raise BuildError(f"{space}: {remedy}; --no-space-check builds all the same")
        if space.free < 1.1 * space.needed:
            _log.warning("%s: it may not fit; %s", space, remedy)
        else:
            _log.info("%s", space)


def _sample(job: Job, tokenizer: Tokenizer) -> Sample:
    return take_sample(job, tokenizer, _ENCODED_BYTES)


def _width(tokenizer: Tokenizer) -> int:
    return tokenizer.dtype.itemsize


def _device(path: str) -> int:
    return os.stat(path).st_dev


def _existing(place: Storage) -> str:
    """The directory itself, or the nearest above it that is there."""
    path = place.path("")
    while path and not os.path.exists(path):
        path = os.path.dirname(path.rstrip("/"))
    return path or "/"
