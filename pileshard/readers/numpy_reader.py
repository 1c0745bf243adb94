"""The order as numpy batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pileshard.corpus import CorpusPlan, open_corpus
from pileshard.order.plan import DEFAULT_SLOTS
from pileshard.order.schedule import Schedule, flag, global_batch
from pileshard.order.topology import resolve
from pileshard.readers.blocks import blocks
from pileshard.readers.cache import CACHE_BYTES, BlockCache, cache_limit
from pileshard.readers.features import I32, PAIR, Features
from pileshard.readers.left_out import LeftOut, left_out_for
from pileshard.readers.rows import RowReader

T = TypeVar("T")

#: What a step takes: (inputs, labels), or a dict of features; int32 [batch, seq_len] each.
Batch = tuple[I32, I32] | dict[str, I32]


@dataclass(frozen=True)
class Reading:
    """What is read, by whom and in which steps: what all readers make of their arguments.

    Attributes:
      plan: the order.
      schedule: the steps.
      segment_ids: whether documents are told apart with packing="concat" too.
      cache: of remote shards on a local disk.
      checksums: whether each record's checksum is compared.
      left_out: takes down what is left out because it is damaged; None: damage is raised.
    """

    plan: CorpusPlan
    schedule: Schedule
    segment_ids: bool = False
    cache: BlockCache | None = None
    checksums: bool = True
    left_out: LeftOut | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays that `arrays` makes."""
        return self._features.names

    def element(self, arrays: Sequence[T]) -> tuple[T, ...] | dict[str, T]:
        """What a step takes, of arrays in the order of `names`: a pair (inputs, labels), or a dict by name."""
        return tuple(arrays) if self.names == PAIR else dict(zip(self.names, arrays, strict=True))

    def arrays(
        self,
        rows: npt.NDArray[Any],
        step: int,
        every: int = 1,
        empty: Callable[..., npt.NDArray[Any]] = np.empty,
        lost: set[int] | None = None,
    ) -> tuple[I32, ...]:
        """What a block of `blocks`, or a batch of it, is for a training step.

        Args:
          rows: [batches, rows, words] or [rows, words].
          step: number of the first batch.
          every: steps from a batch to the next.
          empty: makes the arrays, from shape and dtype.
          lost: what `blocks` was given. Rows found there are counted as left out, and empty where a row can be.

        Returns:
          Arrays in the order of `names`, each int32 of the same shape but [..., seq_len].
        """
        positions = None
        if lost or self._features.needs_positions:
            count = len(rows) if rows.ndim == 3 else 1
            taken = [self.schedule.positions(step + n * every) for n in range(count)]
            positions = np.concatenate(taken).reshape(rows.shape[:-1])
        arrays = self._features.make(rows, positions, empty)
        if lost:
            assert positions is not None
            assert self.left_out is not None
            here = np.isin(positions, list(lost))
            gone = positions[here].tolist()
            self._features.clear(arrays, here)
            self.left_out.add(gone)
            lost.difference_update(gone)
        return arrays

    @cached_property
    def _features(self) -> Features:
        return Features(self.plan, self.segment_ids)

    def blocks(self, first: int = 0, every: int = 1, lost: set[int] | None = None) -> Iterator[npt.NDArray[Any]]:
        """Batches of steps first, first + every, ..., a block at a time: [batches, rows, words] as they are read.

        Rows have seq_len + 1 words, or more if they are packed; `arrays` makes of them what a step takes. Positions of
        rows that are lost to damage are added to `lost`.
        """
        schedule = self.schedule
        reader = self.plan.reader(self.cache, checksums=self.checksums, left_out=self.left_out)
        rows = RowReader(
            self.plan,
            reader,
            rank=schedule.rank,
            world_size=schedule.size,
            start=schedule.start,
            skip=schedule.skip,
            packed=self.plan.packed(reader),
            end=None if schedule.steps is None else schedule.position(schedule.steps),
            every_row=every == 1,
            lost=lost,
            stand_ins=self.names == PAIR,
        )
        return blocks(rows, schedule, reader.dtype, first=first, every=every)


def reading(
    rank: int | None,
    seed: int,
    *,
    path: str | os.PathLike[str] | None,
    world_size: int | None,
    seq_len: int,
    batch_size: int | None,
    global_batch_size: int | None,
    split: str,
    start: int | Mapping[str, Any],
    epochs: Mapping[str, float] | str | int | None,
    weights: Mapping[str, float] | str | None,
    exclude: Sequence[str],
    slots: int,
    drop_remainder: bool,
    skip: Iterable[Sequence[int]],
    packing: str = "concat",
    segment_ids: bool = False,
    fim_rate: float = 0.0,
    fim_spm_rate: float = 0.5,
    fim_ids: Sequence[int] | None = None,
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    on_damage: str = "raise",
    checksums: bool = True,
) -> Reading:
    """Checks a reader's arguments and opens the dataset; see `numpy_dataset` for what they mean."""
    told_apart, compared = flag("segment_ids", segment_ids), flag("checksums", checksums)
    left_out = left_out_for(on_damage, compared)
    limit = cache_limit(cache_bytes)
    cache = None if cache_dir is None else BlockCache(cache_dir, limit)
    ranks = resolve(rank, world_size)
    batch = global_batch(batch_size, global_batch_size, ranks.size)
    plan = open_corpus(path, storage_options).plan(
        seed,
        seq_len=seq_len,
        split=split,
        slots=slots,
        weights=weights,
        epochs=epochs,
        exclude=exclude,
        packing=packing,
        fim_rate=fim_rate,
        fim_spm_rate=fim_spm_rate,
        fim_ids=fim_ids,
    )
    schedule = plan.schedule(
        batch,
        rank=ranks.rank,
        world_size=ranks.size,
        start=start,
        epochs=1 if isinstance(epochs, Mapping | str) else epochs,
        drop_remainder=drop_remainder,
        skip=skip,
    )
    return Reading(plan, schedule, told_apart, cache, compared, left_out)


class NumpyBatches(Iterator[Any]):
    """Batches of arrays, each int32 [batch, seq_len] and the caller's own. Can be run through once.

    A batch is (inputs, labels), or the dict of `pileshard.readers.features` where documents are told apart.

    Attributes:
      plan: the order.
      schedule: the steps.
      step: number of batches taken.
      left_out: with on_damage="skip", the rows among those taken that were left out, and why.
    """

    def __init__(self, reading: Reading) -> None:
        self.plan = reading.plan
        self.schedule = reading.schedule
        self.step = 0
        self.left_out = LeftOut() if reading.left_out is None else reading.left_out
        self._reading = reading
        self._lost: set[int] = set()
        self._blocks = reading.blocks(lost=self._lost)
        self._block: npt.NDArray[Any] | None = None
        self._at = 0

    def __iter__(self) -> NumpyBatches:
        return self

    def __next__(self) -> Batch:
        if self._block is None or self._at == len(self._block):
            self._block, self._at = None, 0
            self._block = next(self._blocks)
        batch = self._block[self._at]
        self._at += 1
        self.step += 1
        arrays = self._reading.arrays(batch, self.step - 1, lost=self._lost)
        return self._reading.element(arrays)  # type: ignore[return-value]

    @property
    def position(self) -> int:
        """Position of the next batch, the same on every rank: start here to go on."""
        return self.schedule.position(self.step)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps after the batches taken so far; `start=` takes it."""
        return self.plan.state(self.position)

    def close(self) -> None:
        """Ends the reading and closes its files; dropping the last reference does so too."""
        self._blocks.close()  # type: ignore[attr-defined]
        self._block = None


def numpy_dataset(
    rank: int | None = None,
    seed: int = 0,
    *,
    path: str | os.PathLike[str] | None = None,
    world_size: int | None = None,
    seq_len: int = 2048,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    split: str = "train",
    start: int | Mapping[str, Any] = 0,
    epochs: Mapping[str, float] | str | int | None = 1,
    weights: Mapping[str, float] | str | None = None,
    exclude: Sequence[str] = (),
    slots: int = DEFAULT_SLOTS,
    drop_remainder: bool = True,
    skip: Iterable[Sequence[int]] = (),
    packing: str = "concat",
    segment_ids: bool = False,
    fim_rate: float = 0.0,
    fim_spm_rate: float = 0.5,
    fim_ids: Sequence[int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    on_damage: str = "raise",
    checksums: bool = True,
) -> NumpyBatches:
    """Batches of a dataset for one data-parallel rank, as numpy arrays.

        >>> for inputs, labels in numpy_dataset(rank=0, seed=1, path="/data/pile", world_size=8):  # doctest: +SKIP
        ...     ...

    With JAX, each process reads for its own devices and the arrays become parts of global ones:

        >>> sharding = NamedSharding(mesh, PartitionSpec("data"))  # doctest: +SKIP
        >>> rows = numpy_dataset(jax.process_index(), 1, world_size=jax.process_count(), ...)  # doctest: +SKIP
        >>> for batch in rows:  # doctest: +SKIP
        ...     inputs, labels = (jax.make_array_from_process_local_data(sharding, part) for part in batch)

    Args:
      rank: data-parallel rank; None: as the launcher's environment tells, else 0.
      seed: decides the order.
      path: the dataset, a directory or fsspec URL; None: what PILESHARD_DATA names.
      world_size: number of data-parallel ranks; None: as the launcher's environment tells, else 1.
      seq_len: tokens of a row of inputs and of labels; labels are the inputs one token on.
      batch_size: rows of a batch on this rank; 8 if neither size is given.
      global_batch_size: rows of a step over all ranks, instead of batch_size; a multiple of world_size.
      split: `train` or `validation`.
      start: position of the first batch in the global order, or a saved state; the same on every rank. At most the
        number of positions of the run, where nothing is left to read.
      epochs: where to stop, counted from position 0; None: never. By source ({"ArXiv": 1.5}, or "pile" for the Pile's
        own numbers): how often each is read, those not named once, before the end.
      weights: share of each source by name, in any unit, or "pile"; sources not named are left out. An epoch is then as
        many samples as the named sources hold.
      exclude: names of sources to leave out.
      slots: chunks read side by side. Part of the order; a multiple of every number of ranks reads best.
      drop_remainder: leave out a last global batch that is not full. If False, every sample is read; all ranks make
        the same number of steps, and the last batch may hold fewer rows on one rank than on another, or none.
      skip: ranges of positions to leave out, [(first, last), ...] without last: the batches around a loss spike, say.
        The run goes on with the positions after them, in full batches. No part of a saved state: a run may resume with
        other ranges.
      packing: how documents become rows. "concat": end to end, cut every seq_len tokens. "best_fit": packed whole where
        they fit, rows padded. "document": the first seq_len + 1 tokens of one document a row, padded.
      segment_ids: give a dict of features that tells documents apart, as the other packings always do.
      fim_rate: share of the documents that are rearranged to be filled in the middle (see `pileshard.order.fim`).
      fim_spm_rate: share of those that become suffix, prefix, middle; the others prefix, suffix, middle.
      fim_ids: token ids that open prefix, middle and suffix.
      storage_options: for fsspec.
      cache_dir: a folder on a local disk for blocks of a remote dataset, shared by any number of processes (see
        `pileshard.readers.cache`). A dataset in a directory is read from there.
      cache_bytes: of the cache on disk, at most.
      on_damage: what to do where a shard is not as it was built: a record is not what its checksum says, a file is
        missing or cut off, an index is damaged. "raise": stop, with an error that names the file, the offset and the
        command that repairs it. "skip": leave out exactly the rows that touch it; an empty row or a sound one stands in
        their place, and all ranks keep their steps and positions (see `pileshard.readers.left_out`). Rows and
        places stand in the iterator's `left_out`, and each place is logged.
      checksums: compare the checksum of each record that is read. Without, a damaged shard may give wrong tokens. It
        takes up to a third of the numpy reader's speed, and more where rows are read one by one (`rows`).

    Returns:
      An iterator of (inputs, labels), each int32 [batch, seq_len], with `position` and `state()`; where documents are
      told apart, of dicts with `input_ids`, `labels`, `segment_ids`, `positions`, `loss_mask`, each int32 [batch,
      seq_len] (see `pileshard.readers.features`). A padded row may hold no label at all: divide by max(1, mask).

    Raises:
      OptionError: an argument is out of range, or contradicts another or the launcher.
      DatasetError: there is no finished dataset, it is damaged, or the saved state is another's.
    """
    return NumpyBatches(
        reading(
            rank,
            seed,
            path=path,
            world_size=world_size,
            seq_len=seq_len,
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            split=split,
            start=start,
            epochs=epochs,
            weights=weights,
            exclude=exclude,
            slots=slots,
            drop_remainder=drop_remainder,
            skip=skip,
            packing=packing,
            segment_ids=segment_ids,
            fim_rate=fim_rate,
            fim_spm_rate=fim_spm_rate,
            fim_ids=fim_ids,
            storage_options=storage_options,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
            on_damage=on_damage,
            checksums=checksums,
        )
    )
