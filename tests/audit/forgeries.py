"""The register of forgeries: each changes a dataset whose hashes, CRCs, sizes and sums it makes fit again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pileshard.audit.report import FaultKind
from tests.audit.checking import Expected
from tests.audit.forge import Forgery, Record

Case = Callable[[Forgery], Expected]
CASES: dict[str, tuple[str, Case, frozenset[FaultKind]]] = {}


def case(dataset: str = "golden", traces: tuple[FaultKind, ...] = ()) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        CASES[function.__name__] = (dataset, function, frozenset(traces))
        return function

    return register


def largest_shard(d: Forgery) -> tuple[dict[str, Any], list[Record]]:
    shard = d.largest()
    return shard, d.records(shard)


def long_document(d: Forgery) -> tuple[dict[str, Any], list[Record], int]:
    """The shard, its records, and which of them is part 0 of the document of three parts."""
    shard, records = largest_shard(d)
    third = next(at for at, record in enumerate(records) if record.part == 2)
    return shard, records, third - 2
