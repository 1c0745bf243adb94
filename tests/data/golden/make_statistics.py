"""Makes what `pileshard stats` tells of the golden dataset: statistics.json, card.md and croissant.json beside this.

python tests/data/golden/make_statistics.py
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import msgspec

from pileshard.audit.card import card
from pileshard.audit.croissant import croissant
from pileshard.audit.statistics import collect
from pileshard.audit.statistics_report import Statistics
from pileshard.format.manifest import Manifest
from tests.data.golden.make_golden import DATASET, HERE


def golden_statistics() -> Statistics:
    """The numbers, under a name that is the same on any machine."""
    return msgspec.structs.replace(collect(str(DATASET), vocab=True, workers=1), url="golden/dataset")


def statistics_bytes() -> bytes:
    """The file statistics.json."""
    return golden_statistics().to_json()


def card_bytes() -> bytes:
    """The file card.md."""
    manifest = Manifest.from_bytes((DATASET / "manifest.json").read_bytes(), "manifest.json")
    return card(manifest, golden_statistics()).encode()


def croissant_bytes() -> bytes:
    """The file croissant.json."""
    data = (DATASET / "manifest.json").read_bytes()
    manifest = Manifest.from_bytes(data, "manifest.json")
    size = (DATASET / "tokenizer.json").stat().st_size
    return croissant(manifest, "dataset", hashlib.sha256(data).hexdigest(), len(data), size)


if __name__ == "__main__":
    (HERE / "statistics.json").write_bytes(statistics_bytes())
    (HERE / "card.md").write_bytes(card_bytes())
    (HERE / "croissant.json").write_bytes(croissant_bytes())
