"""Fill in the middle: documents rearranged so that a model learns to predict a part from both sides of it.

The method is that of Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle"
(https://arxiv.org/abs/2207.14255), on tokens and within a row, as the Megatron-LM of SantaCoder and StarCoder does:

    body of a document in the row    prefix | middle | suffix         two places, uniform among all
    PSM    <prefix> prefix <suffix> suffix <middle> middle
    SPM    <prefix> <suffix> suffix <middle> prefix middle            the paper's second variant

A row keeps its length: the body's last 3 tokens make room for the three ids. The end-of-document id stays where it is.
A body of 3 tokens or fewer stays as it is. Every draw is a hash of (seed, position, number of the document in the row),
so the same row has the same form for every reader and after every resume, and another one in the next epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.errors import OptionError
from pileshard.order.chunks import I64
from pileshard.order.permutation import U64, derive_key, mixed

_SENTINELS = 3
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Fim:
    """How documents are rearranged.

    Attributes:
      rate: share of the documents that are, 0 < rate <= 1.
      spm_rate: share of those that become SPM; the others become PSM.
      ids: token ids that open prefix, middle and suffix.
    """

    rate: float
    spm_rate: float
    ids: tuple[int, int, int]

    @staticmethod
    def of(rate: float, spm_rate: float, ids: Sequence[int] | None, eod_id: int) -> Fim | None:
        """From what the readers take; None where the rate is 0.

        Raises:
          OptionError: a rate is no share, or ids are missing or not three different ids.
        """
        for name, share in (("fim_rate", rate), ("fim_spm_rate", spm_rate)):
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
                raise OptionError(f"{name} is {share!r}; it must be a number from 0 to 1")
        if not rate:
            return None
        found = [] if ids is None or isinstance(ids, str) else list(ids)
        if len(found) != _SENTINELS or not all(isinstance(i, (int, np.integer)) and 0 <= i < 1 << 31 for i in found):
            raise OptionError(f"fim_ids is {ids!r}; fim_rate needs the token ids (prefix, middle, suffix)")
        if len({*found, eod_id}) != _SENTINELS + 1:
            raise OptionError(f"fim_ids is {ids!r}; the three ids and the end-of-document id {eod_id} must differ")
        return Fim(float(rate), float(spm_rate), (int(found[0]), int(found[1]), int(found[2])))

    def state(self) -> dict[str, Any]:
        """What a saved state tells of it."""
        return {"rate": self.rate, "spm_rate": self.spm_rate, "ids": list(self.ids)}

    def apply(
        self, tokens: npt.NDArray[np.int32], seed: int, begins: I64, bodies: I64, positions: I64, numbers: I64
    ) -> None:
        """Rearranges documents in place.

        Args:
          tokens: int32 [tokens], rows end to end.
          seed: of the order.
          begins: int64 [documents], where each document's part begins in `tokens`.
          bodies: its number of tokens, the end-of-document id not counted.
          positions: of its row in the global order.
          numbers: of the document within the row.
        """
        base = _hash(seed, positions, numbers)
        chosen = np.flatnonzero(_below(_draw(base, 0), self.rate) & (bodies > _SENTINELS))
        if not chosen.size:
            return
        base, begin, kept = base[chosen], begins[chosen], bodies[chosen] - _SENTINELS
        one, other = _uniform(_draw(base, 1), kept), _uniform(_draw(base, 2), kept)
        low, high = np.minimum(one, other), np.maximum(one, other)
        spm = _below(_draw(base, 3), self.spm_rate)
        # Six runs a document: <prefix>, its prefix (PSM), <suffix>, its suffix, <middle>, and what it ends with, which
        # in SPM is prefix and middle in one.
        sign, zero = np.ones_like(low), np.zeros_like(low)
        last = np.where(spm, zero, low)
        lengths = np.stack([sign, np.where(spm, zero, low), sign, kept - high, sign, high - last], axis=1)
        sources = begin[:, None] + np.stack([zero, zero, zero, high, zero, last], axis=1)
        targets = begin[:, None] + np.cumsum(lengths, axis=1) - lengths
        runs = lengths.reshape(-1)
        within = np.arange(int(runs.sum())) - np.repeat(np.cumsum(runs) - runs, runs)
        moved = tokens[np.repeat(sources.reshape(-1), runs) + within]
        tokens[np.repeat(targets.reshape(-1), runs) + within] = moved
        prefix, middle, suffix = self.ids
        tokens[targets[:, 0]], tokens[targets[:, 2]], tokens[targets[:, 4]] = prefix, suffix, middle


def _hash(seed: int, positions: I64, numbers: I64) -> U64:
    key = np.uint64(derive_key(seed, 0, "fim"))
    return mixed(mixed(positions.astype(np.uint64) * np.uint64(_STEP) + key) + numbers.astype(np.uint64))


def _draw(base: U64, number: int) -> U64:
    return mixed(base + np.uint64((number + 1) * _STEP & (1 << 64) - 1))


def _below(draws: U64, share: float) -> npt.NDArray[np.bool_]:
    """Whether each draw, as a number in [0, 1), is below a share."""
    return (draws >> np.uint64(11)) < np.uint64(int(share * (1 << 53)))


def _uniform(draws: U64, most: I64) -> I64:
    """A whole number from 0 to most, which is below 2^31, for each draw."""
    return ((draws >> np.uint64(32)) * (most + 1).astype(np.uint64) >> np.uint64(32)).astype(np.int64)
