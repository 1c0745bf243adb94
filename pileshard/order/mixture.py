"""The order of chunks under a mixture: sources in a fair sequence, each source's chunks in an order of its own.

Place n of the order belongs to the source that `FairSequence` puts there. Its turn, counted from the begin of the run,
says which of the source's chunks that is: chunk turn % count of the source's epoch turn // count, in that epoch's
permutation. So a source that is read 1.5 times has every chunk once and half of them twice, and goes on with the other
half where the run goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import SupportsIndex

import numpy as np

from pileshard.errors import OptionError
from pileshard.order.chunks import I64, ChunkTable
from pileshard.order.epochs import ChunkOrder, ShuffledEpochs
from pileshard.order.fair import FairSequence
from pileshard.order.permutation import derive_key, permute
from pileshard.order.presets import PILE_EPOCHS

#: Weights become integers with this sum: a share is off by less than a chunk in 10^11.
_WEIGHTS_SUM = 1 << 38

#: No weight and no number of epochs is as large.
_LARGEST = 1e15


@dataclass(frozen=True)
class SourceChunks:
    """A source's chunks in a split: `count` of them from number `first` on."""

    name: str
    first: int
    count: int


@dataclass(frozen=True, eq=False)
class MixtureOrder:
    """A mixture of sources.

    Attributes:
      seed: decides each source's permutations.
      sources: with their chunks; each holds at least one.
      shares: how many of every sum(shares) places each source takes.
      period: chunks in an epoch of the mixture.
    """

    seed: int
    sources: tuple[SourceChunks, ...]
    shares: tuple[int, ...]
    period: int
    _sequence: FairSequence = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Prepares the sequence."""
        object.__setattr__(self, "_sequence", FairSequence(self.shares))

    def chunks_at(self, numbers: I64) -> I64:
        """The chunks at these places of the order: int64 of the same shape."""
        flat = np.asarray(numbers, dtype=np.int64).reshape(-1)
        places = self._sequence.at(flat)
        found = np.empty(flat.shape, dtype=np.int64)
        for number in np.unique(places.source).tolist():
            source = self.sources[number]
            here = places.source == number
            epochs, within = np.divmod(places.turn[here], source.count)
            chunks = np.empty(within.shape, dtype=np.int64)
            for epoch in np.unique(epochs).tolist():
                mine = epochs == epoch
                key = derive_key(self.seed, epoch, f"chunks of {source.name}")
                chunks[mine] = permute(within[mine], source.count, key)
            found[here] = source.first + chunks
        return found.reshape(np.shape(numbers))


def by_epochs(seed: int, sources: Sequence[SourceChunks], epochs: Mapping[str, float]) -> MixtureOrder:
    """Each source is read so many times in an epoch of the mixture; those that are not named, once."""
    shares = tuple(max(1, round(epochs.get(source.name, 1.0) * source.count)) for source in sources)
    if sum(shares) >= 1 << 40:
        raise OptionError(
            f"epochs asks for {sum(shares):,} chunks in all; give smaller numbers, or weights and a plain epochs"
        )
    return MixtureOrder(seed, tuple(sources), shares, sum(shares))


def by_weights(seed: int, sources: Sequence[SourceChunks], weights: Mapping[str, float]) -> MixtureOrder:
    """Each source takes a share of the places in proportion to its weight; those that are not named take none.

    An epoch of it is as many chunks as the named sources hold together.
    """
    taken = tuple(source for source in sources if source.name in weights)
    total = sum(weights[source.name] for source in taken)
    shares = tuple(max(1, round(weights[source.name] / total * _WEIGHTS_SUM)) for source in taken)
    return MixtureOrder(seed, taken, shares, sum(source.count for source in taken))


def is_order_of(order: ChunkOrder, weights: object) -> bool:
    """Whether an order is that of weights by source, in whatever unit: {"a": 4, "b": 2} weighs as {"a": 2, "b": 1}.

    The shares are compared, which decide the order: weights that differ in one give another order somewhere.
    """
    if not isinstance(order, MixtureOrder) or not isinstance(weights, Mapping):
        return False
    if not all(_is_amount(weights.get(source.name)) for source in order.sources):
        return False
    numbers = {source.name: float(weights[source.name]) for source in order.sources}
    return by_weights(order.seed, order.sources, numbers).shares == order.shares


def _is_amount(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and 0 < float(number) < _LARGEST


def check_names(option: str, numbers: Mapping[str, float], names: Collection[str]) -> None:
    """Raises OptionError for a name that is no source, listing those there are, and for a number not above 0."""
    for name, number in numbers.items():
        if name not in names:
            raise OptionError(f"{option}: no source {name!r}; the sources are {', '.join(map(repr, names))}")
        if not _is_amount(number):
            raise OptionError(
                f"{option}: {name!r} is given {number!r}; it takes a number above 0 and below {_LARGEST:g} (or use "
                "exclude=)"
            )
    if not numbers:
        raise OptionError(f"{option} names no source; the sources are {', '.join(map(repr, names))}")


@dataclass(frozen=True)
class Mixture:
    """Which sources take part, and how much of each.

    Attributes:
      weights: share of the places of each source, in any unit; those not named take none.
      epochs: how often each source is read in an epoch of the mixture; those not named, once.
      exclude: sources that take no part.
      preset: whether the numbers are those of a preset; sources that hold no chunk are then left out.
    """

    weights: Mapping[str, float] | None = None
    epochs: Mapping[str, float] | None = None
    exclude: tuple[str, ...] = ()
    preset: bool = False

    @staticmethod
    def of(
        weights: Mapping[str, float] | str | None,
        epochs: Mapping[str, float] | str | int | None,
        exclude: Sequence[str],
        tokens: Mapping[str, int],
    ) -> Mixture:
        """A mixture from what the readers take.

        Args:
          weights: numbers by source, or the name of a preset, whose epochs then count times the sources' tokens.
          epochs: numbers by source, or the name of a preset; a plain number of epochs or None is no mixture.
          exclude: names of sources.
          tokens: of each source of the split.

        Raises:
          OptionError: both are given, a name is no source, or a preset does not know a source.
        """
        if (
            not isinstance(exclude, Collection)
            or isinstance(exclude, str)
            or not all(isinstance(n, str) for n in exclude)
        ):
            raise OptionError(f"exclude is {exclude!r}; it takes a list of sources, such as ['Books3']")
        for option, value, more in (("weights", weights, ()), ("epochs", epochs, (SupportsIndex,))):
            if value is not None and not isinstance(value, (Mapping, str, *more)):
                raise OptionError(
                    f"{option} is {value!r}; it takes numbers by source, such as {{'ArXiv': 2}}, or \"pile\""
                )
        named = isinstance(weights, str) or isinstance(epochs, str)
        for name in exclude:
            if name not in tokens:
                raise OptionError(f"exclude: no source {name!r}; the sources are {', '.join(map(repr, tokens))}")
        left = {name: count for name, count in tokens.items() if name not in set(exclude)}
        if not left:
            raise OptionError("exclude leaves no source to read")
        if isinstance(weights, str):
            preset = _preset("weights", weights, left)
            weights = {name: preset[name] * count for name, count in left.items()}
        if isinstance(epochs, str):
            epochs = _preset("epochs", epochs, left)
        by_source = dict(epochs) if isinstance(epochs, Mapping) else None
        if weights is not None and by_source is not None:
            raise OptionError("weights and epochs by source contradict each other; give one of the two")
        for option, numbers in (("weights", weights), ("epochs", by_source)):
            both = sorted(set(exclude) & set(numbers or ()))
            if both:
                raise OptionError(f"{option} and exclude both name {both[0]!r}; name it in one of the two")
            if numbers is not None:
                check_names(option, numbers, left)
        numbers_of = [
            {name: float(number) for name, number in numbers.items()} if numbers is not None else None
            for numbers in (weights, by_source)
        ]
        return Mixture(numbers_of[0], numbers_of[1], tuple(sorted(set(exclude))), named)


#: Every source as it is: chunks are shuffled over all of them.
PLAIN = Mixture()


def _preset(option: str, name: str, sources: Mapping[str, int]) -> dict[str, float]:
    if name != "pile":
        raise OptionError(f'{option} is {name!r}; the only preset is "pile"')
    unknown = [source for source in sources if source not in PILE_EPOCHS]
    if unknown:
        raise OptionError(
            f'{option}="pile": {unknown[0]!r} is no component of the Pile; leave it out with exclude=, or give the '
            "numbers by source"
        )
    return {source: PILE_EPOCHS[source] for source in sources}


def chunk_order(seed: int, chunks: ChunkTable, shard_sources: Sequence[str], mixture: Mixture) -> ChunkOrder:
    """The order of a split's chunks.

    Args:
      seed: decides it.
      chunks: of all shards.
      shard_sources: the source of each shard; equal ones stand together.
      mixture: which take part.

    Raises:
      OptionError: a source that is asked for by name holds no chunk, or none is left.
    """
    if mixture == PLAIN:
        return ShuffledEpochs(seed, chunks.count)
    spans: list[SourceChunks] = []
    for shard, name in enumerate(shard_sources):
        first, count = int(chunks.first[shard]), int(chunks.first[shard + 1] - chunks.first[shard])
        if spans and spans[-1].name == name:
            spans[-1] = SourceChunks(name, spans[-1].first, spans[-1].count + count)
        else:
            spans.append(SourceChunks(name, first, count))
    sources = [span for span in spans if span.count and span.name not in mixture.exclude]
    held = {span.name for span in sources}
    if not sources:
        raise OptionError(f"no source that takes part holds a chunk at seq_len {chunks.seq_len:,}")
    for option, numbers in (("weights", mixture.weights), ("epochs", mixture.epochs)):
        empty = [name for name in numbers or () if name not in held]
        if empty and not mixture.preset:
            raise OptionError(
                f"{option}: {', '.join(map(repr, empty))} hold{'s' if len(empty) == 1 else ''} no chunk of "
                f"{chunks.chunk_samples} samples of seq_len {chunks.seq_len:,}; leave it out, or take a smaller seq_len"
            )
    if mixture.weights is not None:
        return by_weights(seed, sources, {name: n for name, n in mixture.weights.items() if name in held})
    if mixture.epochs is not None:
        return by_epochs(seed, sources, {name: n for name, n in mixture.epochs.items() if name in held})
    return Selected(ShuffledEpochs(seed, sum(span.count for span in sources)), tuple(sources))


@dataclass(frozen=True, eq=False)
class Selected:
    """An order of the chunks of some sources alone.

    Attributes:
      order: over their chunks as if they were numbered from 0.
      sources: the sources.
    """

    order: ShuffledEpochs
    sources: tuple[SourceChunks, ...]

    @property
    def period(self) -> int:
        """Chunks in an epoch."""
        return self.order.period

    def chunks_at(self, numbers: I64) -> I64:
        """The chunks at these places of the order: int64 of the same shape."""
        ends = np.cumsum([source.count for source in self.sources])
        inner = self.order.chunks_at(numbers)
        number = np.searchsorted(ends, inner, side="right")
        shift = np.array([source.first for source in self.sources]) - np.concatenate([[0], ends[:-1]])
        return inner + shift[number]
