"""What a reader with on_damage="skip" leaves out: positions and places, counted and logged.

A row is left out if it touches a record that is not as it was written (by its checksum, its length and what the index
says of it), an id outside the vocabulary, or bytes that are not there. Every other row is what it always was. Positions
keep their meaning, so every rank makes the same steps without a word to the others, and `start`, `skip` and saved
states are as without damage. In the place of a row that is left out stands

    where documents are told apart      an empty row: end-of-document ids, segment 0 and a loss mask of 0
    in a pair (inputs, labels)          a sound row of the same chunk, which has no mask to be emptied by (`relief`)

Wrong entries of an index cost the records that they are between, and with packing="best_fit" all rows of the chunks
that touch these, since these rows depend on each other. An index that is missing or of another size costs the rows of
its shard. A remote reader looks at no more of an index than it needs, and so may lose fewer or more rows of that shard.

Nothing is taken for damage that was not read twice, the second time from files opened anew and past every cache: so a
shard that was repaired meanwhile is read on, and what a network garbled is fetched again. What cannot be read for
other reasons (a network, a failing disk, a permission, a dataset that is gone) is raised, never left out.

One limit: where ranks read best_fit rows one by one (`rows`), only records of the row itself are compared. A damaged
index may then pack sound documents otherwise than a sound one would.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from pileshard.errors import OptionError
from pileshard.format.damage import DamageError
from pileshard.order.chunks import I64

_log = logging.getLogger("pileshard.readers")

#: What a reader does where it meets damage.
ON_DAMAGE = ("raise", "skip")


class LeftOut:
    """The rows that a reader has left out, and why. It grows while the reader is read.

        >>> left_out = LeftOut()
        >>> left_out.rows, left_out.positions.tolist(), left_out.places
        (0, [], [])

    Attributes:
      places: the damage met, each file and offset once, in the order in which it was met. Each is an error with `url`,
        `offset` and `fault`, whose text names the command that repairs it.
    """

    def __init__(self) -> None:
        self.places: list[DamageError] = []
        self._known: set[tuple[str, int | None]] = set()
        self._positions: set[int] = set()

    def __repr__(self) -> str:
        return f"LeftOut({self.rows:,} rows, {len(self.places):,} places)"

    @property
    def rows(self) -> int:
        """Number of rows of this rank that were left out."""
        return len(self._positions)

    @property
    def positions(self) -> I64:
        """Their positions in the global order, ascending: int64 [rows]."""
        return np.array(sorted(self._positions), dtype=np.int64)

    def met(self, damages: Iterable[DamageError]) -> None:
        """Takes down what was met, and logs a warning for each new place."""
        for damage in damages:
            if (damage.url, damage.offset) not in self._known:
                self._known.add((damage.url, damage.offset))
                self.places.append(damage)
                _log.warning("%s; rows that touch it are left out", damage)

    def add(self, positions: Iterable[int]) -> None:
        """Counts rows that were left out."""
        self._positions.update(positions)


def left_out_for(on_damage: str, checksums: bool) -> LeftOut | None:
    """Where a reader takes down what it leaves out; None where it stops at damage.

    Raises:
      OptionError: there is no such way, or it would not see the damage.
    """
    if on_damage not in ON_DAMAGE:
        raise OptionError(f"on_damage is {on_damage!r}; it takes {' or '.join(map(repr, ON_DAMAGE))}")
    if on_damage == "raise":
        return None
    if not checksums:
        raise OptionError('on_damage="skip" leaves out what checksums tell: it needs checksums=True')
    return LeftOut()
