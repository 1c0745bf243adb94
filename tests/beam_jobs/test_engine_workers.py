"""How many items an engine does at once, as far as its options or its scheduler tell."""

from __future__ import annotations

import os

import pytest

from beam_jobs.engine_workers import engine_workers

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("workers", "beam_args", "found"),
    [
        (None, [], (CORES, True)),
        (3, [], (3, True)),
        (200, ["--runner=FlinkRunner", "--parallelism=8"], (200, True)),
        (None, ["--runner=FlinkRunner", "--parallelism=8"], (8, True)),
        (None, ["--runner=DataflowRunner", "--max_num_workers=50", "--num_workers=4"], (50, True)),
        (None, ["--direct_num_workers=4"], (4, True)),
        (None, ["--runner=PortableRunner", "--job_endpoint=localhost:1"], (CORES, False)),
    ],
    ids=str,
)
def test_workers_are_told_by_options(workers: int | None, beam_args: list[str], found: tuple[int, bool]) -> None:
    assert engine_workers(workers, beam_args) == found


def test_a_dask_scheduler_tells_the_threads_of_its_workers() -> None:
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 3, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster:
        address = f"--dask_client_address={cluster.scheduler_address}"
        assert engine_workers(None, ["--runner=DaskRunner", address]) == (3, True)
