"""The rank comes from whichever launcher started the process, and contradictions are refused."""

from __future__ import annotations

import pytest

from pileshard.errors import OptionError
from pileshard.order.topology import Topology, from_environment, resolve

LAUNCHERS = {
    "Horovod": {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
    "PMI": {"PMI_RANK": "3", "PMI_SIZE": "8"},
    "torchrun": {"RANK": "3", "WORLD_SIZE": "8"},
    "Slurm": {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "8"},
    "SageMaker": {
        "SM_CURRENT_HOST": "algo-4",
        "SM_HOSTS": '["algo-1","algo-2","algo-3","algo-4","algo-5","algo-6","algo-7","algo-8"]',
    },
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher_is_understood(launcher: str) -> None:
    ranks = resolve(None, None, LAUNCHERS[launcher])
    assert (ranks.rank, ranks.size) == (3, 8)
    assert launcher in ranks.origin


def test_without_a_launcher_there_is_one_process() -> None:
    assert from_environment({}) is None
    ranks = resolve(None, None, {})
    assert (ranks.rank, ranks.size) == (0, 1)
    assert resolve(0, None, {}).size == 1


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}])
def test_a_batch_script_of_slurm_is_no_step(step: dict[str, str]) -> None:
    assert from_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", **step}) is None


def test_a_step_counts_its_own_tasks() -> None:
    env = {**LAUNCHERS["Slurm"], "SLURM_STEP_NUM_TASKS": "4"}
    assert resolve(None, None, env).size == 4


def test_a_launcher_within_an_allocation_counts_before_it() -> None:
    env = {**LAUNCHERS["Horovod"], "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert resolve(None, None, env).rank == 3


def test_nested_launchers_that_agree_are_fine_and_others_are_refused() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
    assert resolve(None, None, {**LAUNCHERS["Horovod"], **mpi}).rank == 3
    with pytest.raises(OptionError, match=r"Horovod.*rank 3 of 8.*Open MPI.*rank 2 of 8"):
        resolve(None, None, {**LAUNCHERS["Horovod"], **mpi, "OMPI_COMM_WORLD_RANK": "2"})


def test_arguments_count_when_both_are_given() -> None:
    ranks = resolve(1, 2, LAUNCHERS["Horovod"])
    assert (ranks.rank, ranks.size) == (1, 2)


@pytest.mark.parametrize(
    ("rank", "size", "env", "words"),
    [
        (2, None, LAUNCHERS["Horovod"], "rank is 2, but Horovod"),
        (None, 4, LAUNCHERS["Horovod"], "world_size is 4, but Horovod"),
        (None, 4, {}, "which rank"),
        (1, None, {}, "rank 1 is not one of 0 to 0"),
        (4, 4, {}, "rank 4 is not one of 0 to 3"),
        (-1, 4, {}, "rank -1"),
        (0, 0, {}, "at least 1"),
        (None, None, {"RANK": "x", "WORLD_SIZE": "2"}, "not numbers"),
        (None, None, {"RANK": "2", "WORLD_SIZE": "2"}, "torchrun"),
        (None, None, {"SM_HOSTS": "[", "SM_CURRENT_HOST": "a"}, "SM_HOSTS"),
        (None, None, {"SM_HOSTS": '["b"]', "SM_CURRENT_HOST": "a"}, "SM_HOSTS"),
    ],
)
def test_contradictions_are_refused(rank: int | None, size: int | None, env: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        resolve(rank, size, env)


def test_a_rank_alone_is_completed_by_a_size_alone() -> None:
    assert resolve(2, None, {"HOROVOD_SIZE": "4"}).size == 4
    assert from_environment({"WORLD_SIZE": "4"}) is None


@pytest.mark.parametrize("layout", ["cluster", "megatron", "spread"])
def test_groups_share_a_rank_and_ranks_are_even(layout: str) -> None:
    topology = Topology(24, tensor=2, pipeline=3, layout=layout)  # type: ignore[arg-type]
    ranks = [topology.dp(rank) for rank in range(24)]
    assert {size for _, size in ranks} == {4}
    assert sorted(rank for rank, _ in ranks) == sorted(list(range(4)) * 6)


def test_layouts_number_as_documented() -> None:
    assert [Topology(8, 2).dp_rank(r) for r in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [Topology(8, 2, 2, "megatron").dp_rank(r) for r in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [Topology(8, 1, 2, "spread").dp_rank(r) for r in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("sizes", [(8, 3, 1), (8, 0, 1), (0, 1, 1), (8, 4, 4)])
def test_sizes_that_do_not_divide_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(OptionError, match="does not divide"):
        Topology(*sizes)


def test_ranks_and_layouts_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match="rank 8"):
        Topology(8).dp_rank(8)
    with pytest.raises(OptionError, match="layout"):
        Topology(8, layout="x")  # type: ignore[arg-type]
