"""The order as a PyTorch dataset: the public function, which needs no PyTorch before it is called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pileshard.errors import MissingExtraError, OptionError
from pileshard.order.plan import DEFAULT_SLOTS
from pileshard.order.schedule import flag
from pileshard.readers.cache import CACHE_BYTES

if TYPE_CHECKING:
    import torch

    from pileshard.readers.torch_batches import TorchBatches


def torch_dataset(
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
    dtype: torch.dtype | str = "int64",
    single_rows: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int = CACHE_BYTES,
    on_damage: str = "raise",
    checksums: bool = True,
) -> TorchBatches:
    """A dataset's batches for one data-parallel rank, as a `torch.utils.data.IterableDataset`.

        >>> ds = torch_dataset(rank=0, seed=1, path="/data/pile", world_size=8, epochs=3)  # doctest: +SKIP
        >>> loader = DataLoader(ds, batch_size=None, num_workers=0)  # doctest: +SKIP
        >>> for step, (inputs, labels) in enumerate(loader, 1):  # doctest: +SKIP
        ...     state = ds.state(step)  # what a checkpoint keeps: start=state goes on from there

    It makes whole batches, so the loader is given `batch_size=None`. They come in the one order whatever `num_workers`.
    Best is 0: a batch of 8 x 2048 takes the reader some 50 microseconds (measured on one core), a worker some 1,000 to
    hand over, and only without workers are remote shards read far ahead. Workers are for costly work of your own on
    batches; each holds up to a window of the rank's chunks (`pileshard.readers.rows`).

    All epochs are one iteration: each has an order of its own, and a second loop over the loader begins at `start`
    again.

    `ds.state(batches)` and `start=` resume a run exactly, with any number of workers, ranks and rows. torchdata's
    StatefulDataLoader works too, for the same number of workers; `ds.state_of(loader.state_dict())` makes its state one
    that `start=` takes.

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
      slots: chunks read side by side. Part of the order; a multiple of every number of ranks reads best, and of ranks x
        num_workers x batch_size if there are workers.
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
      dtype: of the tensors, int64 (which `torch.nn.functional.cross_entropy` asks for) or int32.
      single_rows: give rows [seq_len] instead of batches, for a framework that makes the loader itself and lets it
        batch. Give the same batch_size here, and the rows come in the same order.
      storage_options: for fsspec.
      cache_dir: a folder on a local disk for blocks of a remote dataset, shared by any number of processes (see
        `pileshard.readers.cache`). A dataset in a directory is read from there.
      cache_bytes: of the cache on disk, at most.
      on_damage: what to do where a shard is not as it was built: a record is not what its checksum says, a file is
        missing or cut off, an index is damaged. "raise": stop, with an error that names the file, the offset and the
        command that repairs it. "skip": leave out exactly the rows that touch it; an empty row or a sound one stands in
        their place, and all ranks keep their steps and positions (see `pileshard.readers.left_out`). Rows and
        places stand in the dataset's `left_out`, the number of rows of all workers in `rows_left_out`, and each place
        is logged.
      checksums: compare the checksum of each record that is read. Without, a damaged shard may give wrong tokens. It
        takes up to a third of the numpy reader's speed, and more where rows are read one by one (`rows`).

    Returns:
      An iterable dataset of (inputs, labels), each [batch, seq_len] and the caller's own; where documents are told
      apart, of dicts with `input_ids`, `labels`, `segment_ids`, `positions`, `loss_mask` (see
      `pileshard.readers.features`).

    Raises:
      MissingExtraError: PyTorch is not installed.
      OptionError: an argument is out of range, or contradicts another or the launcher.
      DatasetError: there is no finished dataset, it is damaged, or the saved state is another's.
    """
    try:
        from pileshard.readers.torch_batches import TorchBatches
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise MissingExtraError("torch", "torch", "pileshard.torch_dataset") from None
    kind = str(dtype).removeprefix("torch.")
    if kind not in ("int32", "int64"):
        raise OptionError(f"dtype is {dtype}; the tokens are given as int64 or int32")
    arguments = {
        "rank": rank,
        "seed": seed,
        "path": path,
        "world_size": world_size,
        "seq_len": seq_len,
        "batch_size": batch_size,
        "global_batch_size": global_batch_size,
        "split": split,
        "start": start,
        "epochs": epochs,
        "weights": weights,
        "exclude": exclude,
        "slots": slots,
        "drop_remainder": drop_remainder,
        "skip": tuple(skip),
        "packing": packing,
        "segment_ids": segment_ids,
        "fim_rate": fim_rate,
        "fim_spm_rate": fim_spm_rate,
        "fim_ids": fim_ids,
        "storage_options": storage_options,
        "cache_dir": cache_dir,
        "cache_bytes": cache_bytes,
        "on_damage": on_damage,
        "checksums": checksums,
    }
    return TorchBatches(arguments, kind, flag("single_rows", single_rows))
