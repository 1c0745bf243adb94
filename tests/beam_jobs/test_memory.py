"""Memory: a worker keeps to `--worker-memory`, whatever the texts; and items side by side in one process."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from beam_jobs import memory, pipeline
from beam_jobs.items import run_item
from beam_jobs.options import BuildOptions
from pileshard.errors import OptionError
from tests.built import DEMO_INPUTS, TOKENIZER, run_build, shard_hashes, write_input

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

BUILD = """
import sys
from pathlib import Path
from pileshard.cli import main
code = main(sys.argv[1:])
[line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print("peak", int(line.split()[1]) << 10)
sys.exit(code)
"""


GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))


@contextlib.contextmanager
def memory_group(limit: int) -> Iterator[Path | None]:
    """A control group (version 1 or 2) whose processes are ended beyond a limit, or None where none can be made."""
    for parent, name in GROUPS:
        group = Path(parent) / f"pileshard-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).exists():
                (group / name).write_text(str(limit))
                yield group
                return
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    yield None


def in_memory(path: Path) -> bool:
    """Whether files there take memory themselves."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    below = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(below, default=(0, ""))[1] in ("tmpfs", "ramfs")


def peak_of_build(output: Path, source: str, worker_memory: int, *more: str) -> int:
    """The most that a build in one process held, which the system ends a little beyond the limit, where it can.

    An eighth is for what the group counts and the process does not hold: pages of files on their way to the disk.
    """
    args = ["build", "--output", str(output), "--tokenizer", str(TOKENIZER), "--workers", "1", "--input", source, *more]
    args += ["--worker-memory", str(worker_memory), "--max-rejected", "1"]
    with memory_group(worker_memory + worker_memory // 8) as group:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(
            [sys.executable, "-c", BUILD, *args],
            cwd=ROOT,
            capture_output=True,
            text=True,
            preexec_fn=enter,
            check=False,
        )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return int(done.stdout.split("peak ")[-1])


def random_words(megabytes: int) -> Iterator[bytes]:
    """Texts of words that never come again, which the fast engine's cache keeps every one of."""
    rng = np.random.default_rng(1)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    for _ in range(megabytes * 10):
        text = letters[rng.integers(0, 26, 100_000)]
        text[rng.integers(0, 100_000, 15_000)] = 32
        yield text.tobytes()


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


@needs_proc
def test_words_that_never_come_again_keep_to_the_memory(tmp_path: Path) -> None:
    source = write_input(tmp_path / "words.zst", (b'{"text": "%s"}' % text for text in random_words(45)))
    assert peak_of_build(tmp_path / "dataset", source, 512 * MIB) < 512 * MIB


@needs_proc
def test_tiny_documents_keep_to_the_memory(tmp_path: Path) -> None:
    source = write_input(tmp_path / "tiny.zst", (b'{"text": "%c"}' % (97 + n % 26) for n in range(150_000)))
    assert peak_of_build(tmp_path / "dataset", source, 512 * MIB) < 512 * MIB


@needs_proc
def test_a_line_of_100_mb_keeps_to_the_default_memory(tmp_path: Path) -> None:
    source = write_input(tmp_path / "line.zst", [b'{"text": "' + b"some words of a long line " * 4_000_000 + b'"}'])
    assert peak_of_build(tmp_path / "dataset", source, memory.DEFAULT_BYTES) < memory.DEFAULT_BYTES


def test_short_of_memory_runs_are_written_early_and_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = list(random_words(1))
    lines = [b'{"text": "%s"}' % texts[n % 10][n : n + 700] for n in range(5000)]
    inputs = [*DEMO_INPUTS, write_input(tmp_path / "more.zst", lines)]
    run_build(tmp_path / "room", inputs)
    monkeypatch.setattr("beam_jobs.tokenize_stage.is_tight", lambda *_: True)
    monkeypatch.setattr("beam_jobs.tokenize_stage._LEAST_RUN_BYTES", 1)
    monkeypatch.setattr("beam_jobs.merge_stage.rows_at_once", lambda _: 150)
    run_build(tmp_path / "tight", inputs, keep_runs=True)
    assert shard_hashes(tmp_path / "tight") == shard_hashes(tmp_path / "room")
    assert len(list((tmp_path / "tight" / "_build").rglob("*.run"))) > len(inputs) + 2


@pytest.mark.parametrize("dedup", ["none", "exact"])
def test_items_side_by_side_in_threads_of_one_process_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dedup: str
) -> None:
    """As on a Dask worker with several threads, or on Prism."""
    inputs = [*DEMO_INPUTS, write_input(tmp_path / "again.zst", [b'{"text": "%s"}' % t for t in random_words(1)] * 2)]
    run_build(tmp_path / "alone", inputs, dedup=dedup)

    def in_threads(job, items, token_bytes, eod_id, beam_args, workers):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda item: run_item(job, item, token_bytes, eod_id), items))

    monkeypatch.setattr(pipeline, "run_items", in_threads)
    result = run_build(tmp_path / "threads", inputs, dedup=dedup, parts_per_input=3, run_bytes=100_000)
    assert result.times["tokenize"].workers > 1
    assert shard_hashes(tmp_path / "threads") == shard_hashes(tmp_path / "alone")
    assert gc.isenabled()


def test_memory_is_shared_out_and_too_little_is_refused() -> None:
    options = BuildOptions(("a",), "b", "c", worker_memory=2 << 30)
    options.check()
    assert memory.run_bytes(2 << 30) + memory.cache_bytes(2 << 30) + memory.BASE_BYTES < 2 << 30
    assert memory.run_bytes(memory.LEAST_BYTES) > 32 * MIB
    with pytest.raises(OptionError, match=r"--worker-memory 536,870,911 is too small .* 512MiB or more"):
        BuildOptions(("a",), "b", "c", worker_memory=memory.LEAST_BYTES - 1).check()
