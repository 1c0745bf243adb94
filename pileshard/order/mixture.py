"""The order of chunks under a mixture: sources in a fair sequence, each source's chunks in an order of its own.

Place n of the order belongs to the source that `FairSequence` puts there. Its turn, counted from the begin of the run,
says which of the source's chunks that is: chunk turn % count of the source's epoch turn // count, in that epoch's
permutation. So a source that is read 1.5 times has every chunk once and half of them twice, and goes on with the other
half where the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pileshard.errors import OptionError
from pileshard.order.chunks import I64
from pileshard.order.fair import FairSequence
from pileshard.order.permutation import derive_key, permute

#: Weights become integers with this sum: a share is off by less than a chunk in 10^11.
_WEIGHTS_SUM = 1 << 38


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
    """Each source is read so many times in an epoch of the mixture; those that are not named, once.

    Raises:
      OptionError: a name that is no source, or a number that is not positive.
    """
    check_names("epochs", epochs, sources)
    shares = tuple(max(1, round(epochs.get(source.name, 1.0) * source.count)) for source in sources)
    return MixtureOrder(seed, tuple(sources), shares, sum(shares))


def by_weights(seed: int, sources: Sequence[SourceChunks], weights: Mapping[str, float]) -> MixtureOrder:
    """Each source takes a share of the places in proportion to its weight; those that are not named take none.

    An epoch of it is as many chunks as the named sources hold together.

    Raises:
      OptionError: a name that is no source, or a number that is not positive.
    """
    check_names("weights", weights, sources)
    taken = tuple(source for source in sources if source.name in weights)
    total = sum(weights[source.name] for source in taken)
    shares = tuple(max(1, round(weights[source.name] / total * _WEIGHTS_SUM)) for source in taken)
    return MixtureOrder(seed, taken, shares, sum(source.count for source in taken))


def check_names(option: str, numbers: Mapping[str, float], sources: Sequence[SourceChunks]) -> None:
    """Raises OptionError for a name that is no source, listing those there are, and for a number not above 0."""
    names = [source.name for source in sources]
    for name, number in numbers.items():
        if name not in names:
            raise OptionError(f"{option}: no source {name!r}; the sources are {', '.join(map(repr, names))}")
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < float("inf"):
            raise OptionError(f"{option}: {name!r} is given {number!r}; it takes a number above 0 (or use exclude=)")
    if not numbers:
        raise OptionError(f"{option} names no source; the sources are {', '.join(map(repr, names))}")
