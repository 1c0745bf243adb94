"""A build and a training run on three hosts, whose directory, machines and programs fail: the bytes are the same."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.built import DEMO_INPUTS, TOKENIZER, run_build, shard_hashes
from tests.cluster.capability import needs_hosts
from tests.cluster.hosts import SHARED, Host
from tests.cluster.lab import Lab, laboratory, wait_until
from tests.cluster.mount import Fault
from tests.cluster.rank import BATCH, batches, kept

pytestmark = needs_hosts

RANKS = 2


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset, built in one process on a local disk."""
    root = tmp_path_factory.mktemp("local") / "dataset"
    run_build(root)
    return root


@pytest.fixture(scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with laboratory(tmp_path_factory.mktemp("lab")) as lab:
        (lab.disk / "inputs").mkdir()
        for path in (*DEMO_INPUTS, TOKENIZER):
            shutil.copy(path, lab.disk / "inputs")
        yield lab


@pytest.fixture
def lab(_lab: Lab) -> Lab:
    _lab.heal()
    return _lab


def hold(host: Host, *, operation: str, path: str) -> None:
    """Lets operations on a host's mount hang until its faults are cleared."""
    assert host.mount is not None
    host.mount.faults.plan(Fault(operation, path, "hang", count=10**6, in_a_row=10**6, seconds=3600))


def is_held(host: Host) -> bool:
    assert host.mount is not None
    return bool(host.mount.faults.injected())


def release(*hosts: Host) -> None:
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


def dealt(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Rows of all ranks in the global order: rank r has the positions r, r + RANKS, ..."""
    steps = min(map(len, parts))
    rows = [part[:steps].reshape(-1, *part.shape[2:]) for part in parts]
    return np.stack(rows, axis=1).reshape(-1, *rows[0].shape[1:])


def _files(root: Path, name: str) -> list[Path]:
    return [root / f"{name}.rank{rank}" for rank in range(RANKS)]


@pytest.mark.parametrize("silently", [False, True], ids=["killed", "cut off"])
def test_a_build_goes_on_without_a_host_and_training_reads_what_it_gave(lab: Lab, local: Path, silently: bool) -> None:
    alpha, beta, gamma = lab.hosts
    output = "silent" if silently else "killed"
    hold(gamma, operation="rename", path=f"{output}/_build/runs-*")
    build = lab.start_build(alpha, output)
    wait_until(lambda: is_held(gamma), build)
    found = status(beta, output)
    assert found["state"] == "unfinished"
    assert found["stage"]["name"] == "tokenize"
    assert found["stage"]["done_items"] < found["stage"]["items"] == 2 * len(DEMO_INPUTS)
    if silently:
        gamma.vanish()
    else:
        gamma.kill()
    assert build.wait() == 0, build.printed()
    is_whole(lab, output, local)

    gamma.start()
    lab.attach(gamma)
    assert "sound" in gamma.python("-m", "pileshard", "verify", SHARED / output).stdout
    assert status(gamma, output)["state"] == "complete"

    reader = "numpy" if silently else "tf"
    for host in (beta, gamma):
        assert host.mount is not None
        host.mount.set(latency=0.002, cache=30.0)
    ranks = [
        host.start_python(
            f"rank-{output}", "-m", "tests.cluster.rank", reader, str(rank), str(RANKS), SHARED / output, file
        )
        for rank, (host, file) in enumerate(zip((beta, gamma), _files(SHARED, output), strict=True))
    ]
    for rank in ranks:
        assert rank.wait() == 0, rank.printed()
    parts = [kept(str(file)) for file in _files(lab.disk, output)]
    whole = undisturbed(local)
    read = dealt(parts)
    assert len(whole) - len(read) < RANKS * BATCH
    assert np.array_equal(read, whole[: len(read)])


def test_a_killed_driver_is_followed_by_the_same_command_on_another_host(lab: Lab, local: Path) -> None:
    alpha, beta, gamma = lab.hosts
    for host in (beta, gamma):
        hold(host, operation="rename", path="driver/shards/*")
    build = lab.start_build(alpha, "driver")
    wait_until(lambda: is_held(beta) or is_held(gamma), build)
    build.kill()
    assert status(gamma, "driver")["stage"]["name"] == "merge"
    release(beta, gamma)
    again = lab.start_build(beta, "driver")
    assert again.wait() == 0, again.printed()
    assert f"tokenize: {2 * len(DEMO_INPUTS)} of {2 * len(DEMO_INPUTS)} items were done already" in again.printed()
    is_whole(lab, "driver", local)


def test_a_server_that_is_away_for_seconds_is_waited_for(lab: Lab, local: Path) -> None:
    alpha, beta, _ = lab.hosts
    hold(beta, operation="write", path="server/_build/tmp/*")
    build = lab.start_build(alpha, "server")
    wait_until(lambda: is_held(beta), build)
    lab.export.kill()
    release(beta)
    time.sleep(3)
    lab.export.start()
    assert build.wait() == 0, build.printed()
    is_whole(lab, "server", local)


def test_a_server_that_is_given_up_stops_the_build_at_most(lab: Lab, local: Path) -> None:
    alpha, beta, gamma = lab.hosts
    for host in lab.hosts:
        assert host.mount is not None
        host.mount.set(timeout=0.5)
    hold(beta, operation="write", path="soft/_build/tmp/*")
    build = lab.start_build(alpha, "soft")
    wait_until(lambda: is_held(beta), build)
    lab.export.kill()
    release(beta)
    time.sleep(5)
    lab.export.start()
    if build.wait():
        said = [line for line in build.printed().splitlines() if line.startswith("pileshard build:")]
        assert len(said) == 1, build.printed()
        assert "Traceback" not in build.printed()
        build = lab.start_build(gamma, "soft")
        assert build.wait() == 0, build.printed()
    is_whole(lab, "soft", local)


def test_listings_and_attributes_may_lag(lab: Lab, local: Path) -> None:
    alpha, _, gamma = lab.hosts
    for host in lab.hosts:
        assert host.mount is not None
        host.mount.set(latency=0.002, cache=3.0)
    build = lab.start_build(alpha, "lag")
    assert build.wait() == 0, build.printed()
    is_whole(lab, "lag", local)
    assert "sound" in gamma.python("-m", "pileshard", "verify", SHARED / "lag").stdout


def test_ranks_go_on_from_a_position_after_a_host_died(lab: Lab, local: Path) -> None:
    alpha, beta, gamma = lab.hosts
    shutil.copytree(local, lab.disk / "trained")
    assert gamma.mount is not None
    gamma.mount.faults.plan(Fault("write", "before.rank1", "hang", skip=5, count=10**6, seconds=3600))

    def start(host: Host, rank: int, name: str, position: int) -> Any:
        file = _files(SHARED, name)[rank]
        options = ["numpy", str(rank), str(RANKS), SHARED / "trained", file, str(position)]
        return host.start_python(f"rank-{name}", "-m", "tests.cluster.rank", *options)

    first = [start(beta, 0, "before", 0), start(gamma, 1, "before", 0)]
    wait_until(lambda: is_held(gamma), first[1])
    gamma.kill()
    assert first[0].wait() == 0, first[0].printed()
    before = dealt([kept(str(file)) for file in _files(lab.disk, "before")])
    assert len(before) == 5 * RANKS * BATCH
    second = [start(alpha, 0, "after", len(before)), start(beta, 1, "after", len(before))]
    for rank in second:
        assert rank.wait() == 0, rank.printed()
    after = dealt([kept(str(file)) for file in _files(lab.disk, "after")])
    whole = undisturbed(local)
    read = np.concatenate([before, after])
    assert len(whole) - len(read) < RANKS * BATCH
    assert np.array_equal(read, whole[: len(read)])
