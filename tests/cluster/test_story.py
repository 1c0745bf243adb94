"""A build and a training run on three hosts, whose directory, machines and programs fail: the bytes are the same."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.built import DEMO_INPUTS, shard_hashes
from tests.cluster.capability import needs_hosts
from tests.cluster.hosts import SHARED, Host, Program
from tests.cluster.lab import Lab, wait_until
from tests.cluster.mount import Fault
from tests.cluster.rank import BATCH, batches, kept

pytestmark = needs_hosts

RANKS = 2


def hold(hosts: list[Host], *, operation: str, path: str) -> None:
    """Lets operations on hosts' mounts hang until they are released."""
    for host in hosts:
        assert host.mount is not None
        host.mount.faults.plan(Fault(operation, path, "hang", count=10**6, in_a_row=10**6, seconds=3600))


def held(hosts: list[Host]) -> list[Host]:
    """Those of the hosts where an operation hangs."""
    return [host for host in hosts if host.mount is not None and host.mount.faults.injected()]


def release(hosts: list[Host]) -> None:
    for host in hosts:
        if host.mount is not None:
            host.mount.faults.clear()


def status(host: Host, output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.python("-m", "pileshard", "status", "--json", SHARED / output).stdout)
    return found


def is_whole(lab: Lab, output: str, local: Path) -> None:
    """The bytes on the first host's disk are those of the local build, and nothing is left beside them."""
    assert shard_hashes(lab.disk / output) == shard_hashes(local)
    assert os.listdir(lab.disk / output / "_build") == ["job.json"]


def undisturbed(local: Path) -> np.ndarray[Any, Any]:
    """All rows in their order, by one rank from a local disk: int32 [rows, 2, SEQ_LEN]."""
    return np.concatenate(list(batches("numpy", 0, 1, str(local), 0)))


def start_rank(host: Host, reader: str, rank: int, dataset: str, name: str, position: int) -> Program:
    """Starts a training rank of a run of this name."""
    options = [reader, str(rank), str(RANKS), SHARED / dataset, SHARED / f"{name}.rank{rank}", str(position)]
    return host.start_python(f"rank-{name}", "-m", "tests.cluster.rank", *options)


def dealt(lab: Lab, name: str) -> np.ndarray[Any, Any]:
    """Rows of all ranks of a run in the global order: rank r has the positions r, r + RANKS, ..."""
    parts = [kept(str(lab.disk / f"{name}.rank{rank}")) for rank in range(RANKS)]
    steps = min(map(len, parts))
    rows = [part[:steps].reshape(-1, *part.shape[2:]) for part in parts]
    return np.stack(rows, axis=1).reshape(-1, *rows[0].shape[1:])


def test_a_build_goes_on_without_a_host_and_training_reads_what_it_gave(lab: Lab, local: Path) -> None:
    alpha, *workers = lab.hosts
    hold(workers, operation="rename", path="killed/_build/runs-*")
    build = lab.start_build(alpha, "killed")
    wait_until(lambda: held(workers), build)
    victim = held(workers)[0]
    (other,) = set(workers) - {victim}
    found = status(other, "killed")
    assert found["state"] != "complete"
    assert found["stage"]["name"] == "tokenize"
    assert found["stage"]["done_items"] < found["stage"]["items"] == 2 * len(DEMO_INPUTS)
    victim.kill()
    release(workers)
    assert build.wait() == 0, build.printed()
    is_whole(lab, "killed", local)

    victim.start()
    lab.attach(victim)
    assert "sound" in victim.python("-m", "pileshard", "verify", SHARED / "killed").stdout
    assert status(victim, "killed")["state"] == "complete"

    for host in workers:
        assert host.mount is not None
        host.mount.set(latency=0.002, cache=30.0)
    ranks = [
        start_rank(host, reader, rank, "killed", "first", 0)
        for rank, (host, reader) in enumerate(zip(workers, ("tf", "numpy"), strict=True))
    ]
    for rank in ranks:
        assert rank.wait() == 0, rank.printed()
    whole = undisturbed(local)
    read = dealt(lab, "first")
    assert len(whole) - len(read) < RANKS * BATCH
    assert np.array_equal(read, whole[: len(read)])


def test_a_build_goes_on_without_a_host_that_is_cut_off(lab: Lab, local: Path) -> None:
    alpha, *workers = lab.hosts
    hold(workers, operation="rename", path="silent/_build/runs-*")
    build = lab.start_build(alpha, "silent")
    wait_until(lambda: held(workers), build)
    held(workers)[0].vanish()
    release(workers)
    assert build.wait() == 0, build.printed()
    is_whole(lab, "silent", local)


@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["same host", "another host"])
def test_a_killed_driver_is_followed_by_the_same_command(lab: Lab, local: Path, place: int) -> None:
    alpha, *workers = lab.hosts
    output = f"driver{place}"
    hold(workers, operation="rename", path=f"{output}/shards/*")
    build = lab.start_build(alpha, output)
    wait_until(lambda: held(workers), build)
    build.kill()
    assert status(workers[0], output)["stage"]["name"] == "merge"
    release(workers)
    again = lab.start_build(lab.hosts[place], output)
    assert again.wait() == 0, again.printed()
    assert f"tokenize: {2 * len(DEMO_INPUTS)} of {2 * len(DEMO_INPUTS)} items were done already" in again.printed()
    assert shard_hashes(lab.disk / output) == shard_hashes(local)  # an item of the dead driver may end late


@pytest.mark.parametrize("timeout", [None, 0.5], ids=["waited for", "given up"])
def test_a_server_that_is_away_for_seconds_does_no_harm(lab: Lab, local: Path, timeout: float | None) -> None:
    alpha, *workers = lab.hosts
    output = "soft" if timeout else "hard"
    for host in lab.hosts:
        assert host.mount is not None
        host.mount.set(timeout=timeout)
    hold(workers, operation="write", path=f"{output}/_build/tmp/*")
    build = lab.start_build(alpha, output)
    wait_until(lambda: held(workers), build)
    lab.export.kill()
    release(workers)
    time.sleep(3)
    lab.export.start()
    if build.wait():
        assert timeout, build.printed()
        said = [line for line in build.printed().splitlines() if line.startswith("pileshard build:")]
        assert len(said) == 1, build.printed()
        assert "Traceback" not in build.printed()
        again = lab.start_build(alpha, output)
        assert again.wait() == 0, again.printed()
    assert shard_hashes(lab.disk / output) == shard_hashes(local)
    assert "sound" in workers[0].python("-m", "pileshard", "verify", SHARED / output).stdout


def test_listings_and_attributes_may_lag(lab: Lab, local: Path) -> None:
    alpha, _, gamma = lab.hosts
    for host in lab.hosts:
        assert host.mount is not None
        host.mount.set(latency=0.002, cache=3.0)
    build = lab.start_build(alpha, "lag")
    assert build.wait() == 0, build.printed()
    is_whole(lab, "lag", local)
    assert gamma.mount is not None
    gamma.mount.set(cache=0.0)
    assert "sound" in gamma.python("-m", "pileshard", "verify", SHARED / "lag").stdout


def test_ranks_go_on_from_a_position_after_a_host_died(lab: Lab, local: Path) -> None:
    alpha, beta, gamma = lab.hosts
    shutil.copytree(local, lab.disk / "trained")
    assert gamma.mount is not None
    gamma.mount.faults.plan(Fault("write", "before.rank1", "hang", skip=5, count=10**6, seconds=3600))

    first = [start_rank(host, "numpy", rank, "trained", "before", 0) for rank, host in enumerate((beta, gamma))]
    wait_until(lambda: held([gamma]), first[1])
    gamma.kill()
    assert first[0].wait() == 0, first[0].printed()
    before = dealt(lab, "before")
    assert len(before) == 5 * RANKS * BATCH
    hosts = enumerate((alpha, beta))
    second = [start_rank(host, "numpy", rank, "trained", "after", len(before)) for rank, host in hosts]
    for rank in second:
        assert rank.wait() == 0, rank.printed()
    whole = undisturbed(local)
    read = np.concatenate([before, dealt(lab, "after")])
    assert len(whole) - len(read) < RANKS * BATCH
    assert np.array_equal(read, whole[: len(read)])
