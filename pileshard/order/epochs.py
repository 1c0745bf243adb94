"""The order of chunks: every chunk once an epoch, each epoch in a permutation of its own.

`ChunkOrder` is what `Plan` asks of an order, so that another (a mixture of sources) can take this one's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pileshard.order.chunks import I64
from pileshard.order.permutation import derive_key, permute


class ChunkOrder(Protocol):
    """An endless sequence of chunks, computed at any place of it."""

    @property
    def period(self) -> int:
        """Chunks in an epoch; windows begin anew with each."""

    def chunks_at(self, numbers: I64) -> I64:
        """The chunks that stand at these places of the sequence: int64 of the same shape."""


@dataclass(frozen=True)
class ShuffledEpochs:
    """Chunks 0 to count - 1, each once an epoch.

    Attributes:
      seed: decides the permutations.
      count: number of chunks.
    """

    seed: int
    count: int

    @property
    def period(self) -> int:
        """Chunks in an epoch."""
        return self.count

    def chunks_at(self, numbers: I64) -> I64:
        """The chunks at these places: number n is the (n % count)-th chunk of epoch n // count."""
        epochs, places = np.divmod(numbers, self.count)
        low, high = (int(epochs.min()), int(epochs.max())) if epochs.size else (0, 0)
        if low == high:
            return permute(places, self.count, derive_key(self.seed, low, "chunks"))
        found = np.empty_like(places)
        for epoch in range(low, high + 1):
            here = epochs == epoch
            if here.any():
                found[here] = permute(places[here], self.count, derive_key(self.seed, epoch, "chunks"))
        return found
