"""Flips single bits of a small dataset and cuts its files, tens of thousands of times, and verifies after each.

Every bit of the shard, the index and the list of rejected lines is flipped, and a seed chooses among those of the
manifest and the tokenizer; each of the three is cut off at every length, and stretches are cut out, whole records among
them. Where a file is damaged, verify must name it, and call no other file's bytes wrong; now and then the undamaged
dataset is verified, and must be sound.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import msgspec
import numpy as np

from pileshard.audit.report import FaultKind as K
from pileshard.audit.verify import verify
from pileshard.format.manifest import Manifest
from tests.built import document, run_build, write_input
from tests.data.golden.make_golden import HERE

#: Bits to flip and lengths to cut off at, of files with more; the others are damaged at every place.
MOST = {"manifest": (4500, 1000), "tokenizer": (3000, 600)}
CUT_OUT = 200
FILES = ("shard", "index", "rejected", "manifest", "tokenizer")

_EVERY = 100  # damages between two audits of the sound dataset
_OF_BYTES = {K.MISSING_FILE, K.UNREADABLE, K.WRONG_SIZE, K.WRONG_SHA256}


@dataclass(frozen=True)
class Damage:
    """What is done to a file: a bit flipped, or the bytes [begin, end) taken out.

    Attributes:
      file: which one, a word of FILES.
      path: below the dataset's root.
      how: `flip`, `cut off`, `cut out`, or `record cut` where a cut leaves whole records alone.
      begin: first byte.
      end: byte after the last one cut.
      bit: that is flipped.
    """

    file: str
    path: str
    how: str
    begin: int
    end: int = 0
    bit: int = 0

    def apply(self, data: bytes) -> bytes:
        """The damaged file."""
        if self.how == "flip":
            damaged = bytearray(data)
            damaged[self.begin] ^= 1 << self.bit
            return bytes(damaged)
        return data[: self.begin] + data[self.end :]


@dataclass
class Outcome:
    """What verify made of it.

    Attributes:
      tried: damages by file and how.
      wrong: those that were missed, laid on another file, or ended in an error.
      sound: audits of the undamaged dataset.
      alarms: of these, the ones that found a fault.
    """

    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[tuple[Damage, str]] = field(default_factory=list)
    sound: int = 0
    alarms: int = 0

    def add(self, other: Outcome) -> None:
        """Adds another one's counts."""
        self.tried += other.tried
        self.wrong += other.wrong
        self.sound += other.sound
        self.alarms += other.alarms


def small_dataset() -> dict[str, bytes]:
    """Files by path: one shard of a few documents, a rejected line; the same bytes on any machine."""
    memory = fsspec.filesystem("memory")
    lines = [document(f"Document {number}: " + "é ab" * (number % 4)) for number in range(7)]
    try:
        with tempfile.TemporaryDirectory(prefix="pileshard-random-") as temp:
            path = write_input(Path(temp) / "in.jsonl.zst", [*lines[:2], {"text": 7}, *lines[2:]])
            memory.pipe_file("/random/in.jsonl.zst", Path(path).read_bytes())
        run_build("memory://random/dataset", ["memory://random/in.jsonl.zst"], tokenizer=str(HERE / "tokenizer.json"))
        files = {
            name.removeprefix("/random/dataset/"): memory.cat_file(name)
            for name in memory.find("/random/dataset")
            if "/_build/" not in name
        }
    finally:
        memory.rm("/random", recursive=True)
    manifest = Manifest.from_bytes(files["manifest.json"], "manifest.json")
    files["manifest.json"] = msgspec.structs.replace(manifest, build={}, writer="pileshard").to_bytes()
    return files


def _kind(path: str) -> str:
    for ending, kind in (("tfrecord", "shard"), ("npy", "index"), ("jsonl", "rejected"), ("manifest.json", "manifest")):
        if path.endswith(ending):
            return kind
    return "tokenizer"


def damages(files: dict[str, bytes], seed: int = 0) -> list[Damage]:
    """All that is to be done to a dataset's files."""
    rng = random.Random(seed)
    found = []
    for path, data in sorted(files.items()):
        kind, size = _kind(path), len(data)
        flips, cuts = MOST.get(kind, (8 * size, size))
        for at in rng.sample(range(8 * size), flips):
            found.append(Damage(kind, path, "flip", at // 8, bit=at % 8))
        offsets = set(_offsets(files, path) if kind == "shard" else [])
        for at in rng.sample(range(size), cuts):
            found.append(Damage(kind, path, "record cut" if at in offsets else "cut off", at, size))
        for _ in range(CUT_OUT):
            begin = rng.randrange(size - 1)
            end = rng.randint(begin + 1, size - 1)
            found.append(Damage(kind, path, "cut out", begin, end))
        for begin in offsets:
            found += [Damage(kind, path, "record cut", begin, end) for end in offsets if begin < end < size]
    return found


def _offsets(files: dict[str, bytes], path: str) -> list[int]:
    table = np.frombuffer(files[path.replace(".tfrecord", ".index.npy")][128:], "<u8").reshape(4, -1)
    return [int(offset) for offset in table[1]]


def _do(files: dict[str, bytes], todo: Iterable[Damage]) -> Outcome:
    out = Outcome()
    with tempfile.TemporaryDirectory(prefix="pileshard-random-") as root:
        for name, data in files.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for number, damage in enumerate(todo):
            if number % _EVERY == 0:
                out.sound += 1
                out.alarms += not verify(root).sound
            path, data = Path(root) / damage.path, files[damage.path]
            path.write_bytes(damage.apply(data))
            out.tried[damage.file, damage.how] += 1
            if complaint := _complaint(root, damage):
                out.wrong.append((damage, complaint))
            path.write_bytes(data)
    return out


def _complaint(root: str, damage: Damage) -> str:
    """What is wrong with the audit of a damaged dataset, "" where nothing is."""
    try:
        faults = verify(root).faults
    except Exception as error:
        return f"ended in {error!r}"
    if damage.path not in {fault.path for fault in faults}:
        return f"missed: {faults}"
    others = [fault for fault in faults if fault.kind in _OF_BYTES and fault.path != damage.path]
    return f"laid on others: {others}" if others and damage.file != "manifest" else ""


def run(files: dict[str, bytes], todo: list[Damage], processes: int | None = None) -> Outcome:
    """Does all damages to a dataset, one at a time, and verifies after each; spread over processes."""
    processes = processes or min(8, os.cpu_count() or 1)
    out = Outcome()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(_do, [files] * processes, [todo[number::processes] for number in range(processes)]):
            out.add(part)
    return out
