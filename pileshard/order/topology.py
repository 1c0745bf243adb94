"""Who reads what: the data-parallel rank and size of this process.

They come from the arguments or from the environment that a launcher sets. Ranks of one model-parallel group share a
data-parallel rank and so read the same rows.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pileshard.errors import OptionError

# Launchers of processes, innermost first. They nest only by handing their numbers through, so where two speak they
# must agree; an allocation around them (Slurm, SageMaker's hosts) may count something else and is asked last.
_LAUNCHERS = (
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI", "PMI_RANK", "PMI_SIZE"),
    ("torchrun", "RANK", "WORLD_SIZE"),
)
_SLURM_NO_STEP = 0xFFFFFFF0  # step ids above it are Slurm's own: the batch script, an external step

_HELP = "pass rank= and world_size= (the data-parallel ones)"


@dataclass(frozen=True)
class Ranks:
    """One process among `size` that read side by side.

    Attributes:
      rank: 0 to size - 1.
      size: number of data-parallel ranks.
      origin: where the two came from, for messages.
    """

    rank: int
    size: int
    origin: str


def from_environment(environ: Mapping[str, str] | None = None) -> Ranks | None:
    """Rank and size as the launcher tells them, or None where no launcher speaks.

    Horovod, Open MPI, PMI (MPICH, Intel MPI) and torchrun are asked first and must agree; then Slurm, within a step
    that srun started; then SageMaker's list of hosts (one process a host).

    Raises:
      OptionError: launchers contradict each other, or a variable is not usable.
    """
    env = os.environ if environ is None else environ
    found: list[Ranks] = []
    for launcher, rank_name, size_name in _LAUNCHERS:
        if rank_name in env and size_name in env:
            found.append(_ranks(env, rank_name, size_name, f"{launcher} ({rank_name}, {size_name})"))
    if found:
        first = found[0]
        for other in found[1:]:
            if (other.rank, other.size) != (first.rank, first.size):
                raise OptionError(
                    f"{first.origin} says rank {first.rank} of {first.size} but {other.origin} says rank {other.rank} "
                    f"of {other.size}; {_HELP}"
                )
        return first
    step = env.get("SLURM_STEP_ID", "")
    if step.isdigit() and int(step) < _SLURM_NO_STEP and "SLURM_PROCID" in env:
        size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        if size_name in env:
            return _ranks(env, "SLURM_PROCID", size_name, f"Slurm (SLURM_PROCID, {size_name})")
    if "SM_HOSTS" in env and "SM_CURRENT_HOST" in env:
        return _sagemaker(env)
    return None


def _size_alone(rank: int, env: Mapping[str, str]) -> Ranks | None:
    """What a launcher's size says of a rank that was given, where the launcher names no rank itself."""
    for launcher, rank_name, size_name in _LAUNCHERS:
        if size_name in env and rank_name not in env:
            return _ranks({**env, rank_name: str(rank)}, rank_name, size_name, f"{launcher} ({size_name})")
    return None


def _ranks(env: Mapping[str, str], rank_name: str, size_name: str, origin: str) -> Ranks:
    try:
        rank, size = int(env[rank_name]), int(env[size_name])
    except ValueError:
        raise OptionError(f"{rank_name}={env[rank_name]!r}, {size_name}={env[size_name]!r}: not numbers") from None
    return _checked(rank, size, origin)


def _sagemaker(env: Mapping[str, str]) -> Ranks:
    current = env["SM_CURRENT_HOST"]
    try:
        hosts = sorted(json.loads(env["SM_HOSTS"]))
        return Ranks(hosts.index(current), len(hosts), "SageMaker (SM_HOSTS, SM_CURRENT_HOST)")
    except (ValueError, TypeError):
        raise OptionError(f"SM_HOSTS={env['SM_HOSTS']!r} does not name SM_CURRENT_HOST={current!r}; {_HELP}") from None


def _checked(rank: int, size: int, origin: str) -> Ranks:
    try:
        rank, size = operator.index(rank), operator.index(size)
    except TypeError:
        raise OptionError(
            f"rank is {rank!r} and the world size {size!r} ({origin}); they must be whole numbers"
        ) from None
    if size < 1:
        raise OptionError(f"the world size is {size} ({origin}); it must be at least 1")
    if not 0 <= rank < size:
        raise OptionError(f"rank {rank} is not one of 0 to {size - 1} ({origin})")
    return Ranks(rank, size, origin)


def resolve(rank: int | None, world_size: int | None, environ: Mapping[str, str] | None = None) -> Ranks:
    """Data-parallel rank and size from arguments, completed by the launcher's environment; else 0 of 1.

    Both given: they count, whatever the launcher says (under model parallelism they differ from its numbers). One
    given: the other comes from the launcher, which must agree with the one given.

    Raises:
      OptionError: they are out of range, or contradict the environment.
    """
    if rank is not None and world_size is not None:
        return _checked(rank, world_size, "arguments")
    told = from_environment(environ)
    if told is None and rank is not None:
        told = _size_alone(rank, os.environ if environ is None else environ)
    if told is None:
        if world_size is not None and world_size > 1:
            raise OptionError(
                f"world_size is {world_size}, but which rank this is was neither given nor told by a launcher; {_HELP}"
            )
        return _checked(rank or 0, 1 if world_size is None else world_size, "no launcher found, so 1 process")
    if world_size is not None and world_size != told.size:
        raise OptionError(f"world_size is {world_size}, but {told.origin} says {told.size}; {_HELP}")
    if rank is not None and rank != told.rank:
        raise OptionError(f"rank is {rank}, but {told.origin} says {told.rank} of {told.size}; {_HELP}")
    return told


@dataclass(frozen=True)
class Topology:
    """How the ranks of a job divide into model-parallel groups.

    Attributes:
      world: all processes.
      tensor: tensor-parallel size.
      pipeline: pipeline-parallel size.
      layout: how ranks are numbered, the fastest index first: `cluster` (tensor, pipeline, data: groups are
        neighbours), `megatron` (tensor, data, pipeline) or `spread` (data, tensor, pipeline).

    Example: Topology(8, tensor=2).dp(5) is rank 2 of 4.
    """

    world: int
    tensor: int = 1
    pipeline: int = 1
    layout: Literal["cluster", "megatron", "spread"] = "cluster"

    def __post_init__(self) -> None:
        """Refuses sizes that do not divide the world."""
        group = self.tensor * self.pipeline
        if min(self.world, self.tensor, self.pipeline) < 1 or self.world % group:
            raise OptionError(
                f"a world of {self.world} does not divide into groups of tensor {self.tensor} x "
                f"pipeline {self.pipeline}"
            )
        if self.layout not in ("cluster", "megatron", "spread"):
            raise OptionError(f"layout {self.layout!r} is not one of cluster, megatron, spread")

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""
        return self.world // (self.tensor * self.pipeline)

    def dp_rank(self, rank: int) -> int:
        """Data-parallel rank of a process; the same for all of its model-parallel group."""
        if not 0 <= rank < self.world:
            raise OptionError(f"rank {rank} is not one of 0 to {self.world - 1}")
        if self.layout == "cluster":
            return rank // (self.tensor * self.pipeline)
        if self.layout == "megatron":
            return rank // self.tensor % self.dp_size
        return rank % self.dp_size

    def dp(self, rank: int) -> tuple[int, int]:
        """(dp_rank, dp_size) of a process: what `pileshard.dataset` takes as rank and world_size."""
        return self.dp_rank(rank), self.dp_size
