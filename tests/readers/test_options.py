"""What the readers take and refuse: one sentence for each option, the same from all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pileshard
from pileshard.errors import OptionError
from tests.readers.made import Made, make_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_dataset(str(tmp_path_factory.mktemp("options")), {("a", "train"): [3000], ("b", "train"): [900]})


def refused(made: Made, words: str, **options: Any) -> None:
    """All readers refuse the options with these words, in one line."""
    pytest.importorskip("tensorflow")
    pytest.importorskip("torch")
    for reader in (pileshard.numpy_dataset, pileshard.dataset, pileshard.torch_dataset):
        with pytest.raises(OptionError, match=words) as caught:
            reader(**{"path": made.url, "seq_len": 16, **options})
        assert "\n" not in str(caught.value)


# Flags


@pytest.mark.parametrize("value", ["false", "", 0, 1, None])
@pytest.mark.parametrize("name", ["drop_remainder", "segment_ids", "checksums"])
def test_flag_that_is_neither_true_nor_false_is_refused(made: Made, name: str, value: Any) -> None:
    refused(made, f"{name} is {value!r}; it must be True or False", **{name: value})


def test_flags_of_one_reader_or_of_the_plan_are_checked_too(made: Made) -> None:
    pytest.importorskip("torch")
    with pytest.raises(OptionError, match="single_rows is 'no'; it must be True or False"):
        pileshard.torch_dataset(path=made.url, seq_len=16, single_rows="no")  # type: ignore[arg-type]
    plan = pileshard.open(made.url).plan(seq_len=16)
    with pytest.raises(OptionError, match="drop_remainder is 'no'"):
        plan.steps(8, drop_remainder="no")  # type: ignore[arg-type]


def test_flags_of_numpy_are_flags(made: Made) -> None:
    plan = pileshard.open(made.url).plan(seq_len=16)
    assert plan.steps(7, drop_remainder=np.bool_(False)) == plan.steps(7, drop_remainder=False)  # type: ignore[arg-type]


# Where to start


def test_start_beyond_the_end_of_the_run_is_refused(made: Made) -> None:
    plan = pileshard.open(made.url).plan(seq_len=16)
    end = plan.samples_per_epoch
    for start in (end + 1, plan.state(end + 1), 10**15):
        refused(made, f"the run has {end:,} positions; start at {end:,} at most, or give more epochs", start=start)
    ended = pileshard.numpy_dataset(path=made.url, seq_len=16, start=plan.state(end))
    assert list(ended) == []
    assert next(pileshard.numpy_dataset(path=made.url, seq_len=16, start=ended.state(), epochs=2))[0].shape == (8, 16)


def test_run_that_skipped_its_last_positions_resumes_with_other_ranges(made: Made) -> None:
    plan = pileshard.open(made.url).plan(seq_len=16)
    end = plan.samples_per_epoch
    options: dict[str, Any] = {"path": made.url, "seq_len": 16, "batch_size": 1}
    rows = pileshard.numpy_dataset(**options, skip=[(end - 20, end + 20)])
    assert len(list(rows)) == end - 20
    over = pileshard.numpy_dataset(**options, skip=[(end - 20, end + 20)], start=end + 20)
    assert list(over) == []
    for state in (rows.state(), over.state()):
        assert list(pileshard.numpy_dataset(**options, start=state)) == []


def test_state_loaded_into_a_torch_dataset_is_held_against_its_end(made: Made) -> None:
    pytest.importorskip("torch")
    rows = pileshard.torch_dataset(path=made.url, seq_len=16)
    end = rows.plan.samples_per_epoch
    rows.load_state_dict(rows.plan.state(end))
    assert list(rows) == []
    with pytest.raises(OptionError, match=f"start is {end + 1:,}, and the run has {end:,} positions"):
        rows.load_state_dict(rows.plan.state(end + 1))


# Where the data lies


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_dir": 3}, "cache_dir is 3; it takes a folder on a local disk"),
        ({"cache_dir": b"x"}, "cache_dir is b'x'"),
        ({"cache_dir": ""}, "cache_dir is ''"),
        ({"cache_bytes": "1GB"}, "cache_bytes is '1GB'; it must be a whole number"),
        ({"cache_bytes": None}, "cache_bytes is None"),
        ({"cache_bytes": True}, "cache_bytes is True"),
        ({"cache_bytes": 0.5}, "cache_bytes is 0.5"),
        ({"cache_bytes": float("inf")}, "cache_bytes is inf"),
        ({"cache_bytes": -1}, "cache_bytes is -1; it must be a whole number of at least 1"),
        ({"path": 3}, "path is 3; it takes a directory or an fsspec URL"),
        ({"path": b"x"}, "path is b'x'"),
        ({"path": ""}, "which dataset"),
    ],
)
def test_places_of_a_wrong_type_are_refused(made: Made, options: dict[str, Any], words: str) -> None:
    refused(made, words, **options)
    if "path" not in options:
        refused(made, words, **{"cache_dir": "/nowhere", **options})


@pytest.mark.parametrize("value", ["key=hunter22", "", 3, [("key", "hunter22")], {1: "hunter22"}])
def test_storage_options_that_are_none_are_refused_and_not_shown(made: Made, value: Any) -> None:
    refused(made, r"storage_options takes a dict of options by name", storage_options=value)
    for function in (pileshard.open, pileshard.verify):
        with pytest.raises(OptionError, match="storage_options takes") as caught:
            function(made.url, storage_options=value)
        assert "hunter22" not in str(caught.value)


def test_limit_of_a_cache_may_be_written_in_powers_of_ten(made: Made, tmp_path: Path) -> None:
    rows = pileshard.numpy_dataset(path=made.url, seq_len=16, cache_dir=tmp_path, cache_bytes=64e9)  # type: ignore[arg-type]
    assert next(rows)[0].shape == (8, 16)
