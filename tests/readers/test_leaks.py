"""Readers leave nothing behind: no thread, no open file, no memory, however often they are dropped or run through.

Each check runs in a process of its own, whose counts nothing else disturbs.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.readers.made import Made, make_dataset

_COUNTS = """
import gc, os, sys, threading
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import pileshard

reader, url = sys.argv[1:3]
options = {"path": url, "seq_len": 64, "batch_size": 8, "slots": 12}
make = {
    "numpy": pileshard.numpy_dataset, "tf": pileshard.dataset, "torch": pileshard.torch_dataset,
    "packed": lambda **options: pileshard.numpy_dataset(**options, packing="best_fit"),
}[reader]


def status(name):
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(name + ":")).split()[1])


def counts():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count(), status("Threads")


def maps():
    with open("/proc/self/maps") as file:
        return sum(url in line for line in file)
"""

_DROPPED = (
    _COUNTS
    + """
# TensorFlow itself keeps some 13 KB of every dataset that is made, so its iterators are of one.
dataset = make(**options, epochs=None) if reader == "tf" else None


def drop(times):
    for number in range(times):
        batches = iter(dataset or make(**options, epochs=None, start=number))
        for _ in range(number % 3):
            next(batches)


times = int(sys.argv[3])
drop(times // 4)
before, memory = counts(), status("VmRSS")
held = iter(make(**options, epochs=None))
next(held)
assert counts()[0] > before[0], "the counts see no open shard"
del held
drop(times)
print(counts() == before, maps(), status("VmRSS") - memory, counts(), before)
"""
)

_EPOCHS = (
    _COUNTS
    + """
def run(dataset, steps):
    for _, batch in zip(range(steps), dataset):
        del batch


batches = iter(make(**options, epochs=None))
warm, long = (int(n) for n in sys.argv[3:])
run(batches, warm)
before, memory, peak = counts(), status("VmRSS"), status("VmHWM")
run(batches, long)
print(counts() == before, 0, max(status("VmRSS") - memory, status("VmHWM") - peak), counts(), before)
"""
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [40_001] * 8, ("b", "train"): [90_000, 3, 200_000]}
    return make_dataset(str(tmp_path_factory.mktemp("leaks")), shards, mean_document={"a": 300, "b": 20})


def grown(script: str, reader: str, made: Made, *arguments: int) -> int:
    """Runs a check; returns by how many KB memory has grown."""
    if reader in ("tf", "torch"):
        pytest.importorskip({"tf": "tensorflow"}.get(reader, reader))
    command = [sys.executable, "-c", script, reader, made.url, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    same, maps, memory, *_ = run.stdout.split()
    assert (same, maps) == ("True", "0"), run.stdout
    return int(memory)


@pytest.mark.parametrize(
    ("reader", "times"),
    [
        ("numpy", 1000),
        ("packed", 1000),
        ("torch", 1000),
        ("tf", 200),
        pytest.param("tf", 1000, marks=pytest.mark.slow),
    ],
)
def test_iterators_that_are_dropped_leave_nothing(made: Made, reader: str, times: int) -> None:
    assert grown(_DROPPED, reader, made, times) < 8000


@pytest.mark.parametrize("reader", ["numpy", "packed", "tf", "torch"])
def test_memory_is_flat_over_many_epochs(made: Made, reader: str) -> None:
    # 1,200 batches are an epoch.
    assert grown(_EPOCHS, reader, made, 3000, 30_000) < 8000
