"""A fair sequence of sources: after any n places each source has stood within one of its share, n times its weight.

Source i of weight w_i = c_i / C is to take its j-th place (j = 1, 2, ...) no earlier than place floor((j - 1) / w_i)
and before place ceil(j / w_i). A sequence that keeps to these windows differs from every share by less than one at
every place; it always exists, and giving each place to the open window that ends first finds it (proportionate-progress
scheduling: Baruah, Cohen, Plaxton and Varvel 1996, after Tijdeman's chairman assignment, 1980).

That rule needs the places one after another. To begin anywhere, the sequence is made in blocks. At a block's edge n the
windows that lie across it are either used before (chosen) or after. What is chosen must leave both sides possible: for
windows on a line, that is Hall's condition on intervals, which are two chains of bounds on how many windows may be
chosen (`_chosen`). They are computed from n alone. A block is longer than the longest window, so no window lies across
two edges, and the choice at one never binds the other. Within a block the rule above is run as it stands.

A source with a weight under `RAREST` would need blocks too long for that. Such sources together take every so many-th
place of the heaviest source, and have a fair sequence of their own among them: they are then within two of their share,
and so is their host.
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.order.chunks import I64

#: Weights below this share the places of the heaviest source.
RAREST = 2.0**-16

_LEAST_BLOCK = 1024

Shares = tuple[int, ...]


class Places(NamedTuple):
    """What stands at places of the sequence.

    Attributes:
      source: int64 [n], number of the source.
      turn: int64 [n], how many times that source has stood before.
    """

    source: I64
    turn: I64


class FairSequence:
    """The sequence for given shares.

    Args:
      shares: positive integers c_i, whose sum C is below 2^40; source i gets c_i of every C places.
    """

    def __init__(self, shares: Shares) -> None:
        if not shares or min(shares) < 1 or sum(shares) >= 1 << 40:
            raise ValueError("shares are positive integers with a sum below 2^40")
        self.shares = shares
        total = sum(shares)
        rare = [at for at, share in enumerate(shares) if share < RAREST * total]
        self._rare = np.array(rare, dtype=np.int64)
        self._host = int(np.argmax(shares))
        self._inner = FairSequence(tuple(shares[at] for at in rare)) if rare else None
        self._rare_sum = sum(shares[at] for at in rare)
        self._often = np.array([at for at in range(len(shares)) if at not in set(rare)], dtype=np.int64)
        often = [shares[at] for at in self._often.tolist()]
        often[self._often.tolist().index(self._host)] += self._rare_sum
        self._weights = tuple(often)
        self._block = 1 << (max(_LEAST_BLOCK, -(-total // min(often)) + 2) - 1).bit_length()

    def at(self, numbers: I64) -> Places:
        """What stands at these places.

        Args:
          numbers: int64 [n], from 0.
        """
        source = np.empty(len(numbers), dtype=np.int64)
        turn = np.empty(len(numbers), dtype=np.int64)
        blocks = numbers // self._block
        for block in np.unique(blocks).tolist():
            here = blocks == block
            sources, turns = _fair_block(self._weights, self._block, block)
            within = numbers[here] - block * self._block
            source[here] = self._often[sources[within]]
            turn[here] = turns[within]
        if self._inner is not None:
            self._seat_rare(source, turn)
        return Places(source, turn)

    def _seat_rare(self, source: I64, turn: I64) -> None:
        """Gives every so many-th turn of the host to the rare sources."""
        assert self._inner is not None
        hosted = np.flatnonzero(source == self._host)
        turns = turn[hosted]
        whole = self.shares[self._host] + self._rare_sum
        before = _nearest(turns, self._rare_sum, whole)
        taken = _nearest(turns + 1, self._rare_sum, whole) > before
        turn[hosted] = turns - before
        inner = self._inner.at(before[taken])
        source[hosted[taken]] = self._rare[inner.source]
        turn[hosted[taken]] = inner.turn


def _nearest(numbers: I64, part: int, whole: int) -> I64:
    """numbers * part / whole to the nearest integer, in exact arithmetic."""
    return np.array([(2 * n * part + whole) // (2 * whole) for n in numbers.tolist()], dtype=np.int64)


@lru_cache(maxsize=64)
def _fair_block(shares: Shares, length: int, block: int) -> tuple[npt.NDArray[np.int64], I64]:
    """Sources and their turns in one block: int64 [length] each."""
    total = sum(shares)
    begin, end = block * length, (block + 1) * length
    first, last = _counts(shares, begin), _counts(shares, end)
    turn = list(first)
    ready: list[tuple[int, int]] = []  # (end of the window, source)
    waiting: list[tuple[int, int]] = []  # (begin of the window, source)

    def offer(source: int, now: int) -> None:
        if turn[source] == last[source]:
            return
        opens = turn[source] * total // shares[source]
        if opens <= now:
            heapq.heappush(ready, (min(end, -(-(turn[source] + 1) * total // shares[source])), source))
        else:
            heapq.heappush(waiting, (opens, source))

    for source in range(len(shares)):
        offer(source, begin)
    sources = np.empty(length, dtype=np.int64)
    turns = np.empty(length, dtype=np.int64)
    for place in range(begin, end):
        while waiting and waiting[0][0] <= place:
            offer(heapq.heappop(waiting)[1], place)
        source = heapq.heappop(ready)[1]
        sources[place - begin] = source
        turns[place - begin] = turn[source]
        turn[source] += 1
        offer(source, place + 1)
    return sources, turns


def _counts(shares: Shares, n: int) -> list[int]:
    """How often each source stands before place n, an edge of a block."""
    total = sum(shares)
    counts = [share * n // total for share in shares]
    for source in _chosen(shares, n):
        counts[source] += 1
    return counts


def _chosen(shares: Shares, n: int) -> list[int]:
    """The sources whose window across place n is used before n."""
    total = sum(shares)
    whole = [share * n // total for share in shares]
    across = [i for i, share in enumerate(shares) if share * n % total]
    wanted = n - sum(whole)
    if not wanted:
        return []
    opens = {i: whole[i] * total // shares[i] for i in across}
    closes = {i: -(-(whole[i] + 1) * total // shares[i]) for i in across}
    after = set(across)
    before: set[int] = set()
    room = _room_after(shares, n, max(closes.values()))
    # Windows that end by t and are used after n must find room there; move the earliest begun ones to before n, which
    # burdens the fewest bounds of that side.
    ends = sorted(set(closes.values()))
    for t, following in zip(ends, [*ends[1:], ends[-1] + 1], strict=True):
        ending = sorted((opens[i], i) for i in after if closes[i] <= t)
        excess = len(ending) - int(room[t - n : following - n].min())
        for _, source in ending[: max(0, excess)]:
            after.remove(source)
            before.add(source)
    for _, source in sorted((opens[i], i) for i in after)[: wanted - len(before)]:
        before.add(source)
    return sorted(before)


def _room_after(shares: Shares, n: int, last: int) -> I64:
    """For t = n .. last: how many places in [n, t) are left by the windows that lie wholly there."""
    total = sum(shares)
    span = last - n
    steps = np.arange(span + 1, dtype=np.int64)
    free = steps.copy()
    for share in shares:
        remainder = share * n % total
        # Windows within [n, t): floor(share t / total) - ceil(share n / total), if positive; all from the remainder at
        # n, so that nothing exceeds 64 bits (share < 2^40 and span < 2^22).
        inside = (remainder + share * steps) // total - (1 if remainder else 0)
        free -= np.maximum(inside, 0)
    return free
