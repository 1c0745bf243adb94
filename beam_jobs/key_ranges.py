"""Which documents lie in some ranges of keys: a repair tokenizes no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from beam_jobs.job import KeyRange
from pileshard.format.identity import U64


def places_within(
    spans: Sequence[KeyRange], sources: list[str], held_out: np.ndarray[Any, Any], keys: U64, any_source: bool
) -> list[int]:
    """Places of the documents that lie in one of the ranges, ascending.

    Args:
      spans: the ranges.
      sources: of the documents.
      held_out: which of them are held out: bool [n].
      keys: theirs.
      any_source: whether a document counts in whatever source: with deduplication its text may have come before there.
    """
    by_group: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for span in spans:
        group = ("" if any_source else span.source, span.split == "validation")
        by_group.setdefault(group, []).append((span.key_first, span.key_last))
    places: dict[tuple[str, bool], list[int]] = {}
    for at, (source, held) in enumerate(zip(sources, held_out.tolist(), strict=True)):
        group = ("" if any_source else source, held)
        if group in by_group:
            places.setdefault(group, []).append(at)
    kept: list[int] = []
    for group, mine in places.items():
        bounds = np.array(_united(by_group[group]), dtype=np.uint64)
        number = np.searchsorted(bounds[:, 0], keys[mine], "right") - 1
        within = (number >= 0) & (keys[mine] <= bounds[number, 1])
        kept += np.array(mine)[within].tolist()
    return sorted(kept)


def _united(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of keys in order, those that overlap made one."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if united and first <= united[-1][1]:
            united[-1] = (united[-1][0], max(last, united[-1][1]))
        else:
            united.append((first, last))
    return united
