"""What a mixture takes and refuses, each refusal one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pileshard.errors import OptionError
from pileshard.order.mixture import Mixture
from pileshard.order.plan import Plan

TOKENS = {"ArXiv": 100_000, "Github": 50_000, "HackerNews": 5}


def plan(weights: Any = None, epochs: Any = None, exclude: Any = ()) -> Plan:
    mixture = Mixture.of(weights, epochs, exclude, TOKENS)
    return Plan("id", np.array(list(TOKENS.values())), seq_len=10, shard_sources=list(TOKENS), mixture=mixture)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": ["ArXiv"]}, "numbers by source"),
        ({"weights": 1.5}, "numbers by source"),
        ({"weights": {"ArXiv": 1e308}}, "below 1e\\+15"),
        ({"weights": {"ArXiv": True}}, "a number above 0"),
        ({"weights": {"HackerNews": 1.0}}, "'HackerNews' holds no chunk"),
        ({"epochs": {"HackerNews": 3.0}}, "'HackerNews' holds no chunk"),
        ({"epochs": {"ArXiv": 1e14}}, "chunks in all"),
        ({"epochs": [1]}, "numbers by source"),
        ({"exclude": 3}, "a list of sources"),
        ({"exclude": [["a"]]}, "a list of sources"),
        ({"exclude": None}, "a list of sources"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plan(**options)


def test_presets_leave_out_what_holds_no_chunk() -> None:
    for options in ({"weights": "pile"}, {"epochs": "pile"}):
        shards = plan(**options).rows(range(2000)).shard
        assert set(shards.tolist()) == {0, 1}


def test_numbers_of_numpy_are_numbers() -> None:
    rows = plan(weights={"ArXiv": np.int64(2), "Github": np.float32(1)}).rows(range(500))
    assert np.array_equal(rows.shard, plan(weights={"ArXiv": 4, "Github": 2.0}).rows(range(500)).shard)
