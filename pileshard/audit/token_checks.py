"""Checks of the ids of a shard: below the vocabulary, and the end-of-document id at ends and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pileshard.audit.framing import Batch, Ints, rows
from pileshard.audit.report import MOST_FAULTS, FaultKind
from pileshard.format.manifest import Manifest

Bools = npt.NDArray[np.bool_]

#: Records of no more tokens are looked at many at a time, those together that need as many of these steps of tokens.
_SHORT = 256
_STEP = 32

#: Pieces joined at a time: many small objects at once cost more in page faults than what they hold.
_JOINED = 512


class TokenChecks:
    """Checks the ids of records.

    Args:
      manifest: of the dataset.
      fault: told of what is wrong: kind, message, offset in the file.
    """

    def __init__(self, manifest: Manifest, fault: Callable[[FaultKind, str, int], None]) -> None:
        self._dtype = manifest.token_dtype
        self._vocab_size = manifest.vocab_size
        self._eod = manifest.eod_id
        # A text may hold the id as a token of its own under this policy.
        self._eod_within = manifest.options.special_tokens == "token"
        self._fault = fault

    def check(self, batch: Batch, begins: Ints, counts: Ints) -> Bools:
        """Checks all ids of a batch.

        Args:
          batch: the records.
          begins: int64 [n], where each one's ids begin in the batch's data.
          counts: int64 [n], how many it has.

        Returns:
          bool [n], which records end in the end-of-document id.
        """
        ends = begins + counts * self._dtype.itemsize
        steps = (counts + (_STEP - 1)) // _STEP
        short = (counts > 0) & (counts <= _SHORT) & (ends >= steps * (_STEP * self._dtype.itemsize))
        numbers = np.flatnonzero(short)
        found = self._look_at_short(batch, ends[numbers], counts[numbers], steps[numbers])
        if found is None:
            return self._look_at_each(batch, begins, ends)
        ended = np.zeros(len(counts), dtype=bool)
        ended[numbers] = found
        if len(numbers) < len(counts):
            ended[~short] = self._look_at_each(batch, begins[~short], ends[~short])
        return ended

    def _look_at_short(self, batch: Batch, ends: Ints, counts: Ints, steps: Ints) -> Bools | None:
        """Which short records end in the end-of-document id; None where an id is wrong, which is not told.

        Ids are looked at in the last bytes of each record, of as many bytes for all that need as many steps; what is
        not its own there does not count.
        """
        width = self._dtype.itemsize
        ended = np.zeros(len(counts), dtype=bool)
        order = np.argsort(steps.astype(np.uint16), kind="stable")  # 16 bits: in linear time
        bounds = np.searchsorted(steps[order], np.arange(1, _SHORT // _STEP + 3)).tolist()
        for columns, (first, last) in enumerate(pairwise(bounds), start=1):
            if first == last:
                continue
            chosen, size = order[first:last], columns * _STEP
            ids = rows(batch.data, ends[chosen] - size * width, size * width).view(self._dtype)
            foreign = np.arange(size) < (size - counts[chosen])[:, None]
            last_is_eod = ids[:, -1] == self._eod
            if not self._eod_within:
                own = np.count_nonzero((ids == self._eod) & ~foreign)
                if int(own) != int(np.count_nonzero(last_is_eod)):
                    return None
            ids[foreign] = 0
            if int(ids.max()) >= self._vocab_size:
                return None
            ended[chosen] = last_is_eod
        return ended

    def _look_at_each(self, batch: Batch, begins: Ints, ends: Ints) -> Bools:
        """Which records end in the end-of-document id; every id that is wrong is told."""
        width = self._dtype.itemsize
        counts = (ends - begins) // width
        ids = np.frombuffer(_joined(batch, begins, begins + counts * width), dtype=self._dtype)
        after = np.cumsum(counts)  # of each record's ids in `ids`

        def where(at: int) -> int:
            number = int(np.searchsorted(after, at, "right"))
            return batch.base + int(begins[number]) + (at - int(after[number] - counts[number])) * width

        if len(ids) and int(ids.max()) >= self._vocab_size:
            for at in np.flatnonzero(ids >= self._vocab_size)[:MOST_FAULTS].tolist():
                message = f"the id {int(ids[at]):,} is not below the vocabulary's {self._vocab_size:,}"
                self._fault(FaultKind.TOKEN_RANGE, message, where(at))
        ended = np.zeros(len(counts), dtype=bool)
        some = counts > 0
        ended[some] = ids[after[some] - 1] == self._eod
        if not self._eod_within:
            is_eod = ids == self._eod
            if int(np.count_nonzero(is_eod)) != int(np.count_nonzero(ended)):
                is_eod[after[some] - 1] = False
                for at in np.flatnonzero(is_eod)[:MOST_FAULTS].tolist():
                    message = "the end-of-document id occurs inside a document"
                    self._fault(FaultKind.END_OF_DOCUMENT, message, where(at))
        return ended


def _joined(batch: Batch, begins: Ints, ends: Ints) -> bytes:
    """The bytes of a batch from each begin to its end, one after another."""
    view = memoryview(batch.data)  # type: ignore[arg-type]
    spans = list(zip(begins.tolist(), ends.tolist(), strict=True))
    parts = []
    for at in range(0, len(spans), _JOINED):
        parts.append(b"".join([view[begin:end] for begin, end in spans[at : at + _JOINED]]))
    return parts[0] if len(parts) == 1 else b"".join(parts)
