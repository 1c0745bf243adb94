"""A run whose ranks and batch sizes change on the way reads what one undisturbed run reads, each row once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from tests.readers.made import Made, make_dataset

SHARDS = {
    ("a", "train"): [4001, 3000],
    ("b", "train"): [9000, 3, 2000],
    ("c", "train"): [2500],
    ("d", "train"): [700, 700, 700],
}

MIXTURES: list[dict[str, Any]] = [
    {},
    {"weights": {"a": 3, "b": 1.5, "d": 0.25}},
    {"epochs": {"a": 1.5, "c": 3}},
    {"exclude": ["b"]},
    {"epochs": {"d": 2.5}, "exclude": ["a"]},
    {"packing": "best_fit"},
    {"packing": "document", "weights": {"a": 1, "c": 1}},
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    means = {"a": 300.0, "b": 20.0, "c": 1000.0, "d": 50.0}
    return make_dataset(str(tmp_path_factory.mktemp("elastic")), SHARDS, mean_document=means)


def rows_of(batch: Any) -> np.ndarray:
    return batch["input_ids"] if isinstance(batch, dict) else batch[0]


def plan_of(made: Made, options: dict[str, Any]) -> Any:
    names = ("seed", "seq_len", "slots", "weights", "epochs", "exclude", "packing")
    return pileshard.open(made.url).plan(**{name: options[name] for name in names if name in options})


@given(
    mixture=st.sampled_from(MIXTURES),
    seed=st.integers(0, 2**64 - 1),
    seq_len=st.sampled_from([16, 31]),
    slots=st.sampled_from([5, 12, 96]),
    legs=st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 9), st.integers(1, 60)), min_size=2, max_size=6
    ),
    spike=st.none() | st.tuples(st.integers(0, 900), st.integers(1, 200)),
    data=st.data(),
)
@settings(max_examples=60)
def test_ramps_of_ranks_and_batches_read_each_row_once(
    made: Made,
    mixture: dict[str, Any],
    seed: int,
    seq_len: int,
    slots: int,
    legs: list[tuple[int, int, int]],
    spike: tuple[int, int] | None,
    data: st.DataObject,
) -> None:
    options: dict[str, Any] = {"path": made.url, "seed": seed, "seq_len": seq_len, "slots": slots, **mixture}
    plan = plan_of(made, options)
    # From shortly before an epoch's end, so that legs cross it; the epochs of a mixture by source end one alone.
    if "epochs" not in options:
        options["epochs"] = None
        begin = max(0, plan.samples_per_epoch - data.draw(st.integers(0, 300)))
    else:
        begin = data.draw(st.integers(0, max(0, plan.samples_per_epoch - 300)))
    skip = [] if spike is None else [(begin + spike[0], begin + spike[0] + spike[1])]
    options["skip"] = skip
    undisturbed = pileshard.numpy_dataset(**options, start=begin, batch_size=1, rank=0, world_size=1)
    state: dict[str, Any] = plan.state(begin)
    for world, per_rank, most in legs:
        readers = [
            pileshard.numpy_dataset(**options, start=state, rank=rank, world_size=world, batch_size=per_rank)
            for rank in range(world)
        ]
        steps = readers[0].schedule.steps
        assert {reader.schedule.steps for reader in readers} == {steps}
        batch = world * per_rank
        taken = 0
        for step in range(most if steps is None else min(most, steps)):
            positions = [reader.schedule.positions(step) for reader in readers]
            together = np.concatenate([rows_of(next(reader)) for reader in readers])
            order = np.argsort(np.concatenate(positions))
            expected = np.concatenate([rows_of(next(undisturbed)) for _ in range(batch)])
            assert np.array_equal(together[order], expected)
            taken += 1
        states = [json.loads(json.dumps(reader.state())) for reader in readers]
        assert all(other == states[0] for other in states)
        state = states[0]
        if taken < most:
            return


@pytest.mark.parametrize("mixture", [{}, {"weights": {"a": 2, "b": 1, "c": 1}}], ids=["plain", "weights"])
def test_a_run_of_many_changes_over_two_epochs_holds_every_sample_twice(made: Made, mixture: dict[str, Any]) -> None:
    options: dict[str, Any] = {"path": made.url, "seed": 5, "seq_len": 32, "slots": 24, "epochs": 2, **mixture}
    plan = plan_of(made, {**options, "epochs": None})
    end = 2 * plan.samples_per_epoch
    rng = np.random.default_rng(0)
    state: Any = 0
    found: list[int] = []
    while plan.start(state) < end:
        world = int(rng.choice([1, 2, 3, 4, 8]))
        batch = world * int(rng.integers(1, 7))
        readers = [
            pileshard.numpy_dataset(
                **options, start=state, rank=rank, world_size=world, global_batch_size=batch, drop_remainder=False
            )
            for rank in range(world)
        ]
        for step in range(int(rng.integers(1, 25))):
            if step == readers[0].schedule.steps:
                break
            for reader in readers:
                inputs, _ = next(reader)
                where = plan.rows(reader.schedule.positions(step))
                streams = [made.streams[number] for number in made.split("train")]
                assert len(inputs) == len(where.shard)
                for row, shard, first in zip(inputs, where.shard.tolist(), where.first_token.tolist(), strict=True):
                    assert np.array_equal(row, streams[shard][first : first + 32])
                found += reader.schedule.positions(step).tolist()
        state = readers[-1].state()
    assert sorted(found) == list(range(end))


def test_torch_and_tf_take_over_from_one_another(made: Made, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    options: dict[str, Any] = {
        "path": made.url,
        "seed": 1,
        "seq_len": 32,
        "slots": 12,
        "weights": {"a": 1, "b": 2, "d": 1},
        "epochs": None,
    }
    undisturbed = pileshard.numpy_dataset(**options, batch_size=1)
    plan = plan_of(made, {**options, "epochs": None})
    position = 0
    makers = (pileshard.numpy_dataset, pileshard.dataset, pileshard.torch_dataset)
    for leg, (world, per_rank, steps) in enumerate(
        ((2, 4, 9), (3, 3, 30), (1, 7, 11), (4, 2, 40), (2, 1, 6), (1, 16, 20))
    ):
        start = plan.state(position)
        readers = [
            iter(makers[leg % 3](**options, start=start, rank=rank, world_size=world, batch_size=per_rank))
            for rank in range(world)
        ]
        for step in range(steps):
            schedules = [
                plan.schedule(world * per_rank, rank=r, world_size=world, start=start, epochs=None)
                for r in range(world)
            ]
            order = np.argsort(np.concatenate([schedule.positions(step) for schedule in schedules]))
            together = np.concatenate([np.asarray(next(reader)[0]) for reader in readers])[order]
            expected = np.concatenate([next(undisturbed)[0] for _ in range(world * per_rank)])
            assert np.array_equal(together, expected)
        position += steps * world * per_rank
    assert torch.is_tensor(next(readers[0])[0])
