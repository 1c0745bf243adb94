"""Something dies at a random moment of a build: it goes on, or the same command does, and the bytes are the same."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.built import shard_hashes
from tests.cluster.capability import needs_hosts
from tests.cluster.hosts import SHARED, Program
from tests.cluster.lab import Lab

pytestmark = [needs_hosts, pytest.mark.slow]

VICTIMS = ("host", "host cut off", "worker", "worker frozen", "driver", "storage", "scheduler")


def said_one_sentence(build: Program) -> bool:
    printed = build.printed()
    return "Traceback" not in printed and sum(line.startswith("pileshard build:") for line in printed.splitlines()) == 1


@pytest.mark.parametrize("seed", range(14))
def test_whatever_dies_the_bytes_are_the_same(lab: Lab, local: Path, seed: int) -> None:
    rng = random.Random(seed)
    alpha, beta, gamma = lab.hosts
    victim = VICTIMS[seed % len(VICTIMS)]
    host = rng.choice([beta, gamma])
    output = f"random{seed}"
    for other in lab.hosts:
        assert other.mount is not None
        other.mount.set(latency=rng.choice([0.0, 0.002, 0.01]), cache=rng.choice([0.0, 2.0]))
    build = lab.start_build(alpha, output)
    time.sleep(rng.uniform(2, 14))
    if victim == "host":
        host.kill()
    elif victim == "host cut off":
        host.vanish()
    elif victim == "worker":
        lab.dask(host).kill()
    elif victim == "worker frozen":
        lab.dask(host).freeze_children()
    elif victim == "driver":
        build.kill()
    elif victim == "storage":
        lab.export.kill()
        time.sleep(rng.uniform(0, 3))
        lab.export.start()
    elif victim == "scheduler":
        lab.dask(alpha).kill()
    code = build.wait()
    if victim == "worker frozen":
        host.stop_programs("worker")
    if code:
        assert victim == "driver" or said_one_sentence(build), build.printed()
        lab.heal()
        again = lab.start_build(rng.choice(lab.hosts), output)
        assert again.wait() == 0, again.printed()
    assert shard_hashes(lab.disk / output) == shard_hashes(local)
    assert alpha.mount is not None
    alpha.mount.set(cache=0.0)
    assert "sound" in alpha.python("-m", "pileshard", "verify", SHARED / output).stdout


def test_two_drivers_on_two_hosts_end_in_the_same_bytes(lab: Lab, local: Path) -> None:
    alpha, beta, _ = lab.hosts
    builds = [lab.start_build(host, "two") for host in (alpha, beta)]
    codes = [build.wait() for build in builds]
    assert 0 in codes, [build.printed() for build in builds]
    for build, code in zip(builds, codes, strict=True):
        assert code == 0 or said_one_sentence(build), build.printed()
    assert shard_hashes(lab.disk / "two") == shard_hashes(local)
