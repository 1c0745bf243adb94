"""Two drivers on one output, at once or one after the other slept: one dataset, of the right bytes, or a sentence."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pileshard.audit.verify import verify
from pileshard.cli import main
from pileshard.errors import BuildError
from tests.built import DEMO_INPUTS, TOKENIZER, run_build, shard_hashes

#: As a driver that sees no other, for a listing that lags or a sleep that was taken for death.
_BLIND = (
    "import sys, beam_jobs.lease as lease\n"
    "lease.Lease._await_others = lease.Lease._give_way = lambda self: None\n"
    "from pileshard.cli import entry\n"
    "sys.argv[1:1] = ['build']\n"
    "entry()\n"
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("demo") / "dataset"
    run_build(root)
    return shard_hashes(root)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same corpus in another order."""
    root = tmp_path_factory.mktemp("other") / "dataset"
    run_build(root, seed=1)
    return shard_hashes(root)


def start(output: Path, *more: str, blind: bool = False) -> subprocess.Popen[str]:
    head = ["-c", _BLIND] if blind else ["-m", "beam_jobs.build"]
    options = ["--output", str(output), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64KB", "--max-rejected", "1"]
    options += ["--run-bytes", "100000", "--parts-per-input", "2", *more]
    return subprocess.Popen(
        [sys.executable, *head, *options, "--input", *DEMO_INPUTS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what the command said at its end; never a traceback."""
    _, printed = process.communicate(timeout=300)
    assert "Traceback" not in printed, printed
    said = [line for line in printed.splitlines() if line.startswith("pileshard build:")]
    assert len(said) == (0 if process.returncode == 0 else 1), printed
    return process.returncode, said[0] if said else ""


def again(output: Path) -> None:
    """The same command once more."""
    run_build(output, run_bytes=100_000, parts_per_input=2)


def check(output: Path, wanted: dict[str, str]) -> None:
    assert shard_hashes(output) == wanted
    assert verify(str(output)).sound
    assert os.listdir(output / "_build") == ["job.json"]


def _two_at_once(output: Path, wanted: dict[str, str], seed: int) -> None:
    rng = random.Random(seed)
    blind = bool(seed % 2)
    workers = ["1" if rng.random() < 0.8 else "2" for _ in range(2)]
    first = start(output, "--workers", workers[0], blind=blind)
    time.sleep(rng.random() * 1.5)
    second = start(output, "--workers", workers[1], blind=blind)
    ends = [ended(first), ended(second)]
    for code, said in ends:
        assert code == 0 or "works on this output" in said or blind, ends
    if any(code == 0 for code, _ in ends):
        assert not (output / "_build" / "drivers").exists()
    # One that ran into files which the other one removed says so, and is continued like any that stopped.
    again(output)
    check(output, wanted)


@pytest.mark.parametrize("seed", range(3))
def test_two_drivers_at_once_make_one_dataset(demo: dict[str, str], tmp_path: Path, seed: int) -> None:
    _two_at_once(tmp_path / "dataset", demo, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 48))
def test_two_drivers_at_once_make_one_dataset_at_many_moments(demo: dict[str, str], tmp_path: Path, seed: int) -> None:
    _two_at_once(tmp_path / "dataset", demo, seed)


@pytest.mark.parametrize(("seed", "blind"), [(0, False), (1, True)])
def test_two_drivers_with_different_options_never_mix(
    demo: dict[str, str], other: dict[str, str], tmp_path: Path, seed: int, blind: bool
) -> None:
    output = tmp_path / "dataset"
    rng = random.Random(seed)
    first = start(output, "--workers", "1", blind=blind)
    time.sleep(rng.random() * 0.3)
    second = start(output, "--workers", "1", "--seed", "1", blind=blind)
    ends = [ended(first), ended(second)]
    assert sorted(code for code, _ in ends) == [0, 1], ends
    refused = max(ends)[1]
    assert "holds a build of something else: --seed was" in refused or "works on this output" in refused
    check(output, demo if ends[0][0] == 0 else other)


def _sleeper(output: Path, wanted: dict[str, str], seed: int) -> None:
    """A driver is stopped at a random moment, another one finishes, and then the first one wakes."""
    rng = random.Random(seed)
    workers = 1 if seed < 2 else rng.choice([1, 2])
    first = start(output, "--workers", str(workers))
    enough = rng.randint(2, 38)
    while first.poll() is None and sum(len(names) for _, _, names in os.walk(output)) < enough:
        time.sleep(0.005)
    sleeping = []
    with contextlib.suppress(psutil.Error):
        processes = psutil.Process(first.pid)
        sleeping = [processes, *processes.children(recursive=True)]
    for process in sleeping:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    try:
        if sleeping and first.poll() is None:
            with pytest.raises(BuildError, match=f"process {first.pid} works on this output"):
                again(output)
        assert ended(start(output, "--workers", "1", blind=True))[0] == 0
        assert shard_hashes(output) == wanted
    finally:
        for process in sleeping:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
    ended(first)
    assert shard_hashes(output) == wanted
    assert verify(str(output)).sound
    assert main(["clean", str(output)]) == 0
    check(output, wanted)


@pytest.mark.parametrize("seed", range(2))
def test_driver_that_slept_while_another_finished_does_no_harm(demo: dict[str, str], tmp_path: Path, seed: int) -> None:
    _sleeper(tmp_path / "dataset", demo, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 30))
def test_driver_that_slept_does_no_harm_at_many_moments(demo: dict[str, str], tmp_path: Path, seed: int) -> None:
    _sleeper(tmp_path / "dataset", demo, seed)
