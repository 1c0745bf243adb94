"""The order as a `tf.data` pipeline.

    numpy: a block of batches as int32 arrays -> from_generator (no copy) -> its slices, a batch each (no copy)

Python runs once a block. Measured against other ways (unbatch; one uint16 block that is split and cast inside the
graph, by block or by batch) this one is the fastest both in a loop inside `tf.function` and in an eager one: TensorFlow
takes over arrays that begin at a multiple of 64 bytes, and hands out their slices, without copying.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pileshard.errors import MissingExtraError
from pileshard.order.plan import DEFAULT_SLOTS
from pileshard.readers.blocks import Pool
from pileshard.readers.cache import CACHE_BYTES
from pileshard.readers.left_out import LeftOut
from pileshard.readers.numpy_reader import Reading, reading

if TYPE_CHECKING:
    import tensorflow as tf


def _elements(read: Reading) -> Iterator[Any]:
    """Blocks of what steps take: int32 [batches, rows, seq_len] arrays."""
    pool, step = Pool(), 0
    lost: set[int] = set()
    for block in read.blocks(lost=lost):
        # Not held while the next block is made, so that its memory can be used again.
        yield read.element(read.arrays(block, step, empty=pool.empty, lost=lost))
        step += len(block)


def dataset(
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
) -> tf.data.Dataset:
    """A dataset's batches for one data-parallel rank, as a `tf.data.Dataset`.

        >>> ds = dataset(rank=0, seed=1, path="/data/pile", world_size=8)  # doctest: +SKIP
        >>> model.fit(ds)  # doctest: +SKIP

    Each iteration begins at `start`. After n batches the position is start + n * global_batch_size on every rank (and
    what `skip` left out); `pileshard.open(path).plan(seed, ...).state(position)` is what a checkpoint keeps, and
    `start=` takes it. Its iterators cannot be saved by `tf.train.Checkpoint`, which raises an error: no need, and
    prefetched batches would not be counted right.

    With `tf.distribute`, make it in `strategy.distribute_datasets_from_function`, of `context.input_pipeline_id` and
    `context.num_input_pipelines` as rank and world size. A strategy that is handed a dataset instead takes its batches
    for global ones and divides each among the replicas.

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
        places stand in the dataset's `left_out` (of the dataset that is returned here, not of what is made of it), and
        each place is logged.
      checksums: compare the checksum of each record that is read. Without, a damaged shard may give wrong tokens. It
        takes up to a third of the numpy reader's speed, and more where rows are read one by one (`rows`).

    Returns:
      A dataset of (inputs, labels), each int32 [batch, seq_len], of known cardinality; where documents are told apart,
      of dicts with `input_ids`, `labels`, `segment_ids`, `positions`, `loss_mask`, each int32 [batch, seq_len] (see
      `pileshard.readers.features`). A padded row may hold no label at all: divide by max(1, mask).

    Raises:
      MissingExtraError: TensorFlow is not installed.
      OptionError: an argument is out of range, or contradicts another or the launcher.
      DatasetError: there is no finished dataset, it is damaged, or the saved state is another's.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "tensorflow":
            raise
        raise MissingExtraError("tensorflow", "tensorflow", "pileshard.dataset") from None
    read = reading(
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
    schedule = read.schedule
    spec = tf.TensorSpec((None, schedule.batch if drop_remainder else None, read.plan.seq_len), tf.int32)
    options = tf.data.Options()
    options.deterministic = True
    # There is nothing to tune, and both cost up to 40% on one core.
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    # A strategy of several workers shards what it is given. A rank's part already is one; the whole would be cut by
    # blocks, which are not even, if it were not told to count batches.
    sharding = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = sharding.OFF if schedule.size > 1 else sharding.DATA
    steps = tf.data.INFINITE_CARDINALITY if schedule.steps is None else schedule.steps
    signature = read.element([spec] * len(read.names))
    made = (
        tf.data.Dataset.from_generator(lambda: _elements(read), output_signature=signature)
        .flat_map(lambda *parts: tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0]))
        .apply(tf.data.experimental.assert_cardinality(steps))
        .with_options(options)
    )
    made.left_out = LeftOut() if read.left_out is None else read.left_out
    return made
