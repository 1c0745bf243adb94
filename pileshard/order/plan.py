"""The global order of samples: which sample stands at position p, as a function of p and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.errors import DatasetError, OptionError
from pileshard.order.chunks import I64, ChunkTable
from pileshard.order.epochs import ChunkOrder
from pileshard.order.fim import Fim
from pileshard.order.mixture import PLAIN, Mixture, chunk_order, is_order_of
from pileshard.order.packing import cut_for, describe_chunks
from pileshard.order.schedule import Schedule, flag, whole
from pileshard.order.skip import Skip

#: Version of the order itself: another number means that the same options give other samples.
ORDER_FORMAT = 1

DEFAULT_SLOTS = 768


class Rows(NamedTuple):
    """Where samples lie: int64 arrays of one shape.

    `first_token` is the row's first token with packing="concat". With "best_fit" it is the first token of the chunk's
    span, in which the row's pieces begin; with "document", the document's number in the shard.
    """

    shard: I64
    first_token: I64
    chunk: I64
    sample: I64  # number within the chunk


class Window(NamedTuple):
    """Chunks that are read side by side.

    Position start + k * width + s is sample k of the chunk that stands at place chunk + s of the order of chunks.
    """

    start: int
    width: int
    chunk: int


@dataclass(frozen=True, eq=False)
class Plan:
    """The order of a dataset's samples under given options.

    It holds no state: everything is computed from the position. Memory is a few bytes a shard.

    Attributes:
      dataset_id: names the dataset's content.
      shard_tokens: int64 [shards], tokens of each shard of the split, in the manifest's order.
      seed: decides the permutations, 0 to 2^64 - 1.
      seq_len: tokens that a sample predicts; a row holds one more.
      slots: chunks read side by side in a window.
      split: name of the split.
      shard_sources: the source of each shard, where a mixture is asked for.
      mixture: which sources take part, and how much of each.
      packing: how documents become rows: `concat`, `best_fit` or `document` (see `pileshard.order.packing`).
      shard_documents: int64 [shards], documents of each shard; needed for `document` alone.
      fim: how documents are rearranged to be filled in the middle, None: not at all.
      chunks: how the shards are cut.
      order: in which order chunks come.
    """

    dataset_id: str
    shard_tokens: I64
    seed: int = 0
    seq_len: int = 2048
    slots: int = DEFAULT_SLOTS
    split: str = "train"
    shard_sources: Sequence[str] = ()
    mixture: Mixture = PLAIN
    packing: str = "concat"
    shard_documents: I64 | None = None
    fim: Fim | None = None
    chunks: ChunkTable = field(init=False)
    order: ChunkOrder = field(init=False)

    def __post_init__(self) -> None:
        """Checks the options and cuts the chunks."""
        put = object.__setattr__
        put(self, "seed", whole("seed", self.seed, 0, bits=64))
        put(self, "seq_len", whole("seq_len", self.seq_len, 1, bits=24))
        put(self, "slots", whole("slots", self.slots, 1))
        put(self, "shard_tokens", np.asarray(self.shard_tokens, dtype=np.int64))
        if not self.shard_tokens.size:
            raise OptionError(f"the dataset has no shards in the split {self.split!r}")
        put(self, "chunks", cut_for(self.packing, self.shard_tokens, self.shard_documents, self.seq_len))
        put(self, "order", chunk_order(self.seed, self.chunks, self.shard_sources, self.mixture))

    # Sizes

    @property
    def samples_per_epoch(self) -> int:
        """Samples in an epoch: positions e * samples_per_epoch and on are epoch e."""
        return self.order.period * self.chunks.chunk_samples

    @property
    def chunk_samples(self) -> int:
        """Samples in a chunk (K)."""
        return self.chunks.chunk_samples

    @property
    def cut_tokens(self) -> int | None:
        """Tokens of the split that are in no sample; None where only the documents' lengths tell (`document`)."""
        return self.chunks.cut_tokens

    def schedule(
        self,
        global_batch: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        start: int | Mapping[str, Any] = 0,
        epochs: int | None = 1,
        drop_remainder: bool = True,
        skip: Iterable[Sequence[int]] = (),
    ) -> Schedule:
        """The steps of a run as one rank sees them.

        Args:
          global_batch: rows of a step over all ranks.
          rank: data-parallel rank.
          world_size: number of data-parallel ranks.
          start: position or saved state to begin at.
          epochs: ends at the end of epoch epochs - 1, counted from position 0; None: never.
          drop_remainder: whether a last partial global batch is left out.
          skip: ranges (first, last) of positions to leave out, without last.

        Raises:
          OptionError: a number is out of range, or the batch does not divide among the ranks.
        """
        size = whole("world_size", world_size, 1)
        if whole("rank", rank, 0) >= size:
            raise OptionError(f"rank {rank} is not one of 0 to {size - 1}")
        if whole("global_batch_size", global_batch, 1) % size:
            raise OptionError(
                f"global_batch_size {global_batch} does not divide among {size} ranks; take a multiple of {size}"
            )
        end = None if epochs is None else whole("epochs", epochs, 1) * self.samples_per_epoch
        first = self.start(start)
        return Schedule(
            first, end, int(global_batch), int(rank), size, flag("drop_remainder", drop_remainder), Skip.of(skip)
        )

    def steps(
        self,
        global_batch: int,
        *,
        epochs: int = 1,
        start: int = 0,
        drop_remainder: bool = True,
        skip: Iterable[Sequence[int]] = (),
    ) -> int:
        """Steps from a start to the end of the last epoch."""
        steps = self.schedule(global_batch, start=start, epochs=epochs, drop_remainder=drop_remainder, skip=skip).steps
        assert steps is not None
        return steps

    # The order

    def window(self, position: int) -> Window:
        """The window that a position falls into."""
        samples = self.chunk_samples
        epoch, place = divmod(position, self.samples_per_epoch)
        number = place // (self.slots * samples)
        chunk = number * self.slots
        width = min(self.slots, self.order.period - chunk)
        start = epoch * self.samples_per_epoch + chunk * samples
        return Window(start, width, epoch * self.order.period + chunk)

    def rows(self, positions: npt.ArrayLike) -> Rows:
        """Where the samples at these positions lie.

        Args:
          positions: integers of at least 0, of any shape.

        Returns:
          Shard number, first token, chunk and sample in the chunk: int64 arrays of that shape. With packing="concat"
          the row is the seq_len + 1 tokens from first_token on; else `PackedRows` makes it from chunk and sample.
        """
        at = np.asarray(positions, dtype=np.int64)
        if at.size and int(at.min()) < 0:
            raise OptionError(f"position {int(at.min())} is below 0")
        samples, period = self.chunk_samples, self.order.period
        epoch, place = np.divmod(at, samples * period)
        number, within = np.divmod(place, self.slots * samples)
        first = number * self.slots
        sample, slot = np.divmod(within, np.minimum(self.slots, period - first))
        # Neighbouring positions share chunks, whose places are the costly part: each is looked up once.
        numbers, back = np.unique(epoch * period + first + slot, return_inverse=True)
        chunk = self.order.chunks_at(numbers)[back].reshape(at.shape)
        shard, token = self.chunks.locate(chunk)
        return Rows(shard, token + sample * self.chunks.sample_stride, chunk, sample)

    # States

    def state(self, position: int) -> dict[str, Any]:
        """What a checkpoint keeps: the position, the dataset and every option that the order depends on.

        Args:
          position: of the next sample to be read.

        Returns:
          A dict of JSON values; `start=` takes it.
        """
        return {"position": whole("position", position, 0), **self._identity()}

    def _identity(self) -> dict[str, Any]:
        return {
            "order_format": ORDER_FORMAT,
            "dataset_id": self.dataset_id,
            "split": self.split,
            "seed": self.seed,
            "seq_len": self.seq_len,
            "slots": self.slots,
            "packing": self.packing,
            "weights": self.mixture.weights,
            "epochs": self.mixture.epochs,
            "exclude": list(self.mixture.exclude),
            **({"fim": self.fim.state()} if self.fim is not None else {}),
        }

    def check_state(self, state: Mapping[str, Any]) -> int:
        """The position of a saved state, if it belongs to this dataset and these options.

        Raises:
          DatasetError: it was saved for another dataset.
          OptionError: it was saved under other options, or is no state.
        """
        own = self._identity()
        missing = [name for name in (*own, "position") if name not in state and name != "fim"]
        if missing:
            raise OptionError(f"not a saved state of a plan: it has no {', '.join(missing)}")
        if state["dataset_id"] != own["dataset_id"]:
            raise DatasetError(
                f"the state was saved for the dataset {state['dataset_id']}, and this one is {own['dataset_id']}: its "
                f"position means nothing here"
            )
        own.setdefault("fim", None)
        differing = [
            f"{name} was {state.get(name)!r} and is {value!r}"
            for name, value in own.items()
            if state.get(name) != value and not (name == "weights" and self._weighs_the_same(state[name]))
        ]
        differing += [
            f"{name} was {state[name]!r} and is unknown here" for name in state if name not in (*own, "position")
        ]
        if differing:
            raise OptionError(
                f"the state was saved under other options, so its order is another: {'; '.join(differing)}"
            )
        return whole("position", state["position"], 0)

    def _weighs_the_same(self, weights: Any) -> bool:
        """Whether saved weights are this plan's in another unit, so that the order is the same."""
        own = self.mixture.weights
        return (
            isinstance(weights, Mapping)
            and own is not None
            and weights.keys() == own.keys()
            and is_order_of(self.order, weights)
        )

    def start(self, start: int | Mapping[str, Any]) -> int:
        """A position from what `start=` takes: a position or a saved state."""
        return self.check_state(start) if isinstance(start, Mapping) else whole("start", start, 0)

    def describe(self) -> str:
        """The order in a few lines for a person: sizes, and what is cut off or not filled."""
        chunks = self.chunks
        return "\n".join(
            (
                f"dataset {self.dataset_id}, split {self.split}, seed {self.seed}, seq_len {self.seq_len:,}",
                f"{chunks.tokens:,} tokens in {self.shard_tokens.size:,} shards",
                f"{self.samples_per_epoch:,} samples an epoch, in {chunks.count:,} chunks of {self.chunk_samples} x "
                f"{self.seq_len:,} tokens, {-(-self.order.period // self.slots):,} windows of {self.slots} chunks",
                describe_chunks(self.packing, chunks),
            )
        )
