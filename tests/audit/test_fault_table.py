"""The table of faults: every fault that is injected is of a kind, and the numbers are those of the rows."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.audit import fault_table, random_damage
from tests.audit.fault_groups import KINDS, group_of
from tests.audit.fault_table import DAMAGE, DEEP, FORGERIES, Row, by_file, by_kind


def test_every_fault_is_of_a_kind_and_every_kind_has_one() -> None:
    names = {
        "damage": DAMAGE,
        "forged": [n for n, (source, *_) in FORGERIES.items() if source == "golden"],
        "deep": DEEP,
    }
    for kind, titles in KINDS.items():
        assert {group_of(kind, name) for name in names[kind]} == set(titles)
    with pytest.raises(LookupError, match="no kind of fault is given for 'nothing'"):
        group_of("damage", "nothing")


def test_faults_are_counted_by_kind() -> None:
    rows = [
        Row("damage", "missing_shard", "missing_file", "repaired", True, True),
        Row("damage", "missing_index", "MISSED", "OTHER BYTES", False, False),
        Row("forged", "index_key_0", "index", "refused", True, True),
        Row("deep", "input_gone", "input", "nothing to repair", True, True),
    ]
    counted = {row[0]: row[1:] for row in by_kind(rows)}
    assert counted["shard, index or folder missing"] == [2, 1, 1, 0, 0]
    assert counted["index that does not describe its shard"] == [1, 1, 0, 1, 0]
    assert counted["**all**"] == [4, 3, 1, 1, 1]


def test_random_damage_is_counted_by_file() -> None:
    missed = random_damage.Damage("index", "x", "flip", 0)
    tried = Counter({("index", "flip"): 5, ("index", "cut off"): 2, ("shard", "record cut"): 1, ("shard", "flip"): 9})
    counted = {row[0]: row[1:] for row in by_file(random_damage.Outcome(tried, [(missed, "missed")]))}
    assert counted["index"] == [5, 2, 6]
    assert counted["shard"] == [9, 1, 10]
    assert counted["**all**"] == [14, 3, 16]
    assert fault_table._markdown(["a", "b"], [["x", 1234]]) == "| a | b |\n| --- | ---: |\n| x | 1,234 |"
