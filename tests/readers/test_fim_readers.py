"""Filling in the middle through the readers: on every packing, for every reader, after every resume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.corpus import open_corpus
from pileshard.errors import OptionError
from tests.readers.made import Made, make_dataset

PREFIX, MIDDLE, SUFFIX = IDS = (70_000, 70_001, 70_002)  # beyond what the dataset's uint16 holds


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [4001, 3000], ("b", "train"): [9000]}
    return make_dataset(str(tmp_path_factory.mktemp("fim")), shards, mean_document={"a": 40, "b": 15})


def rows_of(**options: Any) -> dict[str, np.ndarray]:
    """All rows of a run: what the batches hold, and `row`, the whole row of seq_len + 1 tokens."""
    batches = list(pileshard.numpy_dataset(drop_remainder=False, segment_ids=True, **options))
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    found["row"] = np.concatenate([found["input_ids"], found["labels"][:, -1:]], axis=1)
    return found


@pytest.mark.parametrize("packing", ["concat", "best_fit", "document"])
def test_rows_keep_their_documents_and_places(made: Made, packing: str) -> None:
    options: dict[str, Any] = {"path": made.url, "seed": 2, "seq_len": 61, "packing": packing, "batch_size": 9}
    plain = rows_of(**options)
    moved = rows_of(fim_rate=0.7, fim_ids=IDS, **options)
    for name in ("segment_ids", "positions", "loss_mask"):
        assert np.array_equal(plain[name], moved[name])
    counts = np.zeros(2, dtype=int)
    for before, after, segment in zip(plain["row"], moved["row"], plain["segment_ids"], strict=True):
        # Whose the last place is, the features do not tell: leave out the row's last document.
        for number in range(1, segment.max()):
            places = np.flatnonzero(segment == number)
            own, now = before[places].tolist(), after[places].tolist()
            if own[-1] == 0:
                assert now[-1] == 0
                own, now = own[:-1], now[:-1]
            counts[0] += len(own) > 3
            if now == own:
                continue
            counts[1] += 1
            assert now[0] == PREFIX
            suffix, middle = now.index(SUFFIX), now.index(MIDDLE)
            assert now[1:suffix] + now[middle + 1 :] + now[suffix + 1 : middle] == own[:-3]
    if packing != "document":
        assert counts[1] / counts[0] == pytest.approx(0.7, abs=0.08)
    assert (moved["row"] == PREFIX).any()


@given(
    packing=st.sampled_from(["concat", "best_fit", "document"]),
    segment_ids=st.booleans(),
    world=st.sampled_from([1, 2, 3, 8]),
    data=st.data(),
)
@settings(max_examples=20)
def test_a_row_has_one_form_for_every_rank_batch_and_resume(
    made: Made, packing: str, segment_ids: bool, world: int, data: st.DataObject
) -> None:
    options: dict[str, Any] = {"path": made.url, "seed": 5, "seq_len": 31, "packing": packing, "epochs": 2}
    options |= {"fim_rate": 0.5, "fim_ids": IDS, "segment_ids": segment_ids}
    plan = open_corpus(made.url).plan(5, seq_len=31, packing=packing, fim_rate=0.5, fim_ids=IDS)
    every = list(pileshard.numpy_dataset(batch_size=50, drop_remainder=False, **options))
    name = "input_ids" if isinstance(every[0], dict) else 0
    order = np.concatenate([batch[name] for batch in every])
    start = data.draw(st.integers(0, 2 * plan.samples_per_epoch - 1))
    rank = data.draw(st.integers(0, world - 1))
    skip = [(start + 5, start + 12)]
    batch = data.draw(st.integers(1, 7))
    reader = pileshard.numpy_dataset(
        rank, world_size=world, batch_size=batch, start=plan.state(start), skip=skip, **options
    )
    for step, found in zip(range(6), reader, strict=False):
        assert np.array_equal(found[name], order[reader.schedule.positions(step)])
    half = plan.samples_per_epoch
    assert not np.array_equal(order[:half], order[half : 2 * half])


@pytest.mark.parametrize("segment_ids", [True, False])
def test_tf_and_numpy_agree(made: Made, segment_ids: bool) -> None:
    pytest.importorskip("tensorflow")
    options: dict[str, Any] = {"path": made.url, "seq_len": 31, "batch_size": 7, "segment_ids": segment_ids}
    options |= {"fim_rate": 0.9, "fim_spm_rate": 0.3, "fim_ids": IDS}
    by_numpy, by_tf = (
        pileshard.numpy_dataset(1, 4, world_size=2, **options),
        pileshard.dataset(1, 4, world_size=2, **options),
    )
    for one, other in zip(by_numpy, by_tf, strict=True):
        for name in one if segment_ids else (0, 1):
            assert np.array_equal(one[name], other[name].numpy())


def test_a_state_of_other_forms_is_refused(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 16}
    plain = pileshard.numpy_dataset(**options).state()
    moved = pileshard.numpy_dataset(fim_rate=0.5, fim_ids=IDS, **options).state()
    pileshard.numpy_dataset(fim_rate=0.5, fim_ids=IDS, start=moved, **options)
    with pytest.raises(OptionError, match=r"fim was None and is {'rate': 0.5"):
        pileshard.numpy_dataset(fim_rate=0.5, fim_ids=IDS, start=plain, **options)
    with pytest.raises(OptionError, match=r"fim was {'rate': 0.5.* and is None"):
        pileshard.numpy_dataset(start=moved, **options)
    with pytest.raises(OptionError, match=r"fim was .*'rate': 0.5.* and is .*'rate': 0.25"):
        pileshard.numpy_dataset(fim_rate=0.25, fim_ids=IDS, start=moved, **options)
