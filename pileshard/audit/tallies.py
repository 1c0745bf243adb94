"""What readings of an input count (level deep), which documents they compare, and what their sums must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pileshard.audit.report import Fault, FaultKind
from pileshard.format.identity import U64, hex64, mix64, mix64_int
from pileshard.format.manifest import Manifest

_MASK = (1 << 64) - 1


class Tally(msgspec.Struct, kw_only=True):
    """What a reading of an input, or of a part of it, counted.

    Attributes:
      input_bytes: stored bytes read.
      sha256: of them.
      lines: in the input, or the part.
      accepted: of them.
      blank: of them.
      rejected: of them, by reason.
      text_bytes: of the accepted.
      identity_sum: of the accepted.
      compared: documents whose tokens were compared.
      kept: of those, the ones that the shards hold as themselves and not as an equal text before them.
      faults: found.
      readable: whether the input was read to its end.
    """

    input_bytes: int = 0
    sha256: str = ""
    lines: int = 0
    accepted: int = 0
    blank: int = 0
    rejected: dict[str, int] = {}
    text_bytes: int = 0
    identity_sum: int = 0
    compared: int = 0
    kept: int = 0
    faults: list[Fault] = []
    readable: bool = True


class Sample(msgspec.Struct, frozen=True):
    """Which documents are tokenized again: those of which a hash of the identity is below a limit.

    The choice depends on the identities and the seed alone, so that it is the same however the work is spread, and
    nothing is held in memory for it.
    """

    limit: int
    seed: int

    @staticmethod
    def of(count: int | None, accepted: int, seed: int) -> Sample:
        """About `count` of so many documents; all where it is None."""
        everything = count is None or count >= accepted
        return Sample(_MASK if everything or count is None else (count << 64) // max(1, accepted), seed)

    @property
    def everything(self) -> bool:
        """Whether no document is left out."""
        return self.limit == _MASK

    @property
    def share(self) -> float:
        """About which part of the documents is chosen, 0 to 1."""
        return self.limit / _MASK

    def choose(self, identities: U64) -> npt.NDArray[np.int64]:
        """Positions of the chosen ones."""
        if self.everything:
            return np.arange(len(identities))
        return np.flatnonzero(mix64(identities ^ np.uint64(mix64_int(self.seed))) < np.uint64(self.limit))


def check_tallies(manifest: Manifest, number: int, tallies: list[Tally], sample: Sample) -> Iterator[Fault]:
    """Yields the faults of one input, from the readings of all its parts, the account of its lines among them."""
    entry = manifest.inputs[number]
    if not all(tally.readable for tally in tallies):
        # What was compared with another input says nothing about the dataset.
        faults = [fault for tally in tallies for fault in tally.faults]
        yield from [fault for fault in faults if fault.kind is FaultKind.INPUT][:1]
        return
    for tally in tallies:
        yield from tally.faults
    rejected: Counter[str] = Counter()
    for tally in tallies:
        rejected.update(tally.rejected)
    found: dict[str, Any] = {
        name: sum(getattr(tally, name) for tally in tallies) for name in ("lines", "accepted", "blank", "text_bytes")
    }
    found["rejected"] = dict(sorted(rejected.items()))
    found["identity_sum"] = hex64(sum(tally.identity_sum for tally in tallies))
    compared = sum(tally.compared for tally in tallies)
    if sample.everything and compared == found["accepted"] and not any(tally.faults for tally in tallies):
        found["duplicates"] = compared - sum(tally.kept for tally in tallies)
    for name, value in found.items():
        wanted = cast(Any, getattr(entry, name))
        if value != wanted:
            message = f"{entry.url}: {name} is {value}, the manifest says {wanted}"
            yield Fault(kind=FaultKind.ACCOUNT, path="manifest.json", message=message, input=entry.url)
