"""The public readers: numpy and tf.data agree, resume anywhere, and end where they should."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.errors import DatasetError, MissingExtraError, OptionError
from pileshard.format.paths import MANIFEST
from tests.readers.made import Made, make_dataset

tf = pytest.importorskip("tensorflow")

WORLDS = (1, 2, 3, 4, 6, 8, 12, 96)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [4001, 3000], ("b", "train"): [9000, 3, 2000], ("b", "validation"): [700]}
    return make_dataset(str(tmp_path_factory.mktemp("readers")), shards, mean_document={"a": 300, "b": 20})


def numpy_batches(**options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(pileshard.numpy_dataset(**options))


def tf_batches(**options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in pileshard.dataset(**options)]


READERS = pytest.mark.parametrize("batches", [numpy_batches, tf_batches])
Batches = Callable[..., list[tuple[np.ndarray, np.ndarray]]]


def equal(a: list[tuple[np.ndarray, np.ndarray]], b: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(p, q) for one, other in zip(a, b, strict=True) for p, q in zip(one, other, strict=True)
    )


def brute_order(made: Made, seed: int, seq_len: int, slots: int, begin: int, end: int) -> np.ndarray:
    """Rows of the global order, sliced from the shards' streams: [positions, seq_len + 1]."""
    plan = pileshard.open(made.url).plan(seed, seq_len=seq_len, slots=slots)
    where = plan.rows(np.arange(begin, end))
    streams = [made.streams[number] for number in made.split("train")]
    return np.stack(
        [streams[s][f : f + seq_len + 1] for s, f in zip(where.shard.tolist(), where.first_token.tolist(), strict=True)]
    ).astype(np.int32)


@READERS
@pytest.mark.parametrize("drop", [True, False])
def test_an_epoch_holds_each_sample_once_and_labels_are_one_token_on(made: Made, batches: Batches, drop: bool) -> None:
    plan = pileshard.open(made.url).plan(3, seq_len=10)
    found = batches(seed=3, path=made.url, seq_len=10, batch_size=7, drop_remainder=drop)
    order = brute_order(made, 3, 10, 768, 0, plan.samples_per_epoch)
    assert len(found) == plan.steps(7, drop_remainder=drop)
    assert {x.dtype for pair in found for x in pair} == {np.dtype(np.int32)}
    kept = len(order) if not drop else len(order) // 7 * 7
    assert np.array_equal(np.concatenate([x for x, _ in found]), order[:kept, :-1])
    assert np.array_equal(np.concatenate([y for _, y in found]), order[:kept, 1:])
    streams = [made.streams[number] for number in made.split("train")]
    every = [s[at : at + 11].tobytes() for s in streams for at in range(0, len(s) - 10, 10)]
    assert plan.chunks.cut_samples == 0
    assert sorted(row.astype(np.uint16).tobytes() for row in order) == sorted(every)


@given(
    world=st.sampled_from(WORLDS),
    per_rank=st.integers(1, 4),
    seed=st.integers(0, 5),
    seq_len=st.sampled_from([5, 16, 31]),
    slots=st.sampled_from([12, 96, 768]),
    epochs=st.integers(1, 2),
    drop=st.booleans(),
    data=st.data(),
)
@settings(max_examples=25)
def test_ranks_together_are_the_global_order(
    made: Made,
    world: int,
    per_rank: int,
    seed: int,
    seq_len: int,
    slots: int,
    epochs: int,
    drop: bool,
    data: st.DataObject,
) -> None:
    plan = pileshard.open(made.url).plan(seed, seq_len=seq_len, slots=slots)
    end, batch = epochs * plan.samples_per_epoch, world * per_rank
    start = data.draw(st.integers(max(0, end - 5 * batch - 7), end))
    ranks = [
        numpy_batches(
            rank=rank,
            world_size=world,
            seed=seed,
            path=made.url,
            seq_len=seq_len,
            slots=slots,
            global_batch_size=batch,
            epochs=epochs,
            start=start,
            drop_remainder=drop,
        )
        for rank in range(world)
    ]
    steps = plan.steps(batch, epochs=epochs, start=start, drop_remainder=drop)
    assert {len(found) for found in ranks} == {steps}
    for step in range(steps):
        begin = start + step * batch
        order = brute_order(made, seed, seq_len, slots, begin, min(begin + batch, end))
        for rank, found in enumerate(ranks):
            own = order[(rank - begin) % world :: world]
            assert np.array_equal(found[step][0], own[:, :-1])
            assert np.array_equal(found[step][1], own[:, 1:])


@given(
    world=st.sampled_from(WORLDS),
    per_rank=st.integers(1, 4),
    seq_len=st.sampled_from([16, 31]),
    drop=st.booleans(),
    data=st.data(),
)
@settings(max_examples=15)
def test_tf_and_numpy_agree(
    made: Made, world: int, per_rank: int, seq_len: int, drop: bool, data: st.DataObject
) -> None:
    options = {
        "rank": data.draw(st.integers(0, world - 1)),
        "world_size": world,
        "seed": data.draw(st.integers(0, 2**64 - 1)),
        "path": made.url,
        "seq_len": seq_len,
        "batch_size": per_rank,
        "start": data.draw(st.integers(0, 600)),
        "slots": data.draw(st.sampled_from([7, 96])),
        "epochs": 2,
        "drop_remainder": drop,
    }
    assert equal(tf_batches(**options), numpy_batches(**options))


@READERS
def test_restoring_at_every_step_continues_exactly(made: Made, batches: Batches) -> None:
    options: dict[str, Any] = {"seed": 1, "path": made.url, "seq_len": 64, "batch_size": 9, "rank": 1, "world_size": 2}
    reader = pileshard.numpy_dataset(**options, epochs=2)
    whole, states = [], [reader.state()]
    for batch in reader:
        whole.append(batch)
        states.append(json.loads(json.dumps(reader.state())))
    assert len(whole) > 20
    for step, state in enumerate(states):
        assert equal(batches(**options, epochs=2, start=state), whole[step:])
        assert state["position"] == step * 18


@READERS
def test_ranks_and_batches_may_change_midway(made: Made, batches: Batches) -> None:
    order = brute_order(made, 4, 32, 96, 0, 300)
    position = 0
    rows = []
    for world, batch, steps in ((2, 8, 5), (3, 27, 3), (1, 5, 7), (12, 12, 4)):
        found = [
            batches(
                rank=rank,
                world_size=world,
                seed=4,
                path=made.url,
                seq_len=32,
                slots=96,
                global_batch_size=batch,
                start=position,
            )[:steps]
            for rank in range(world)
        ]
        for step in range(steps):
            together = np.empty((batch, 32), dtype=np.int32)
            begin = position + step * batch
            for rank in range(world):
                together[(rank - begin) % world :: world] = found[rank][step][0]
            rows.append(together)
        position += steps * batch
    assert np.array_equal(np.concatenate(rows), order[:position, :-1])


def test_splits_are_apart(made: Made) -> None:
    found = numpy_batches(path=made.url, seq_len=16, batch_size=1, split="validation")
    stream = made.streams[made.split("validation")[0]]
    assert sorted(x[0].tolist() for x, _ in found) == sorted(
        stream[16 * k : 16 * k + 16].tolist() for k in range(699 // 16)
    )


def test_batches_are_the_callers_own(made: Made) -> None:
    reader = pileshard.numpy_dataset(path=made.url, seq_len=16, batch_size=2)
    kept = [next(reader) for _ in range(9)]
    copies = [(x.copy(), y.copy()) for x, y in kept]
    for x, y in reader:
        x[:] = -1
        y[:] = -1
    assert equal(kept, copies)


def test_tf_batches_that_are_kept_stay_as_they_are(made: Made) -> None:
    kept, copies = [], []
    for x, y in pileshard.dataset(path=made.url, seq_len=16, batch_size=2, epochs=3):
        kept.append((x, y))
        copies.append((x.numpy().copy(), y.numpy().copy()))
    assert equal([(x.numpy(), y.numpy()) for x, y in kept], copies)


def test_both_readers_read_uint32_and_other_file_systems(tmp_path: Path) -> None:
    shards = {("a", "train"): [2000, 999]}
    local = make_dataset(str(tmp_path), shards, vocab_size=120_000)
    remote = make_dataset("memory://test-readers", shards, vocab_size=120_000)
    options: dict[str, Any] = {"seq_len": 20, "batch_size": 3, "seed": 2}
    found = numpy_batches(path=local.url, **options)
    assert max(int(x.max()) for x, _ in found) > 65536
    assert equal(found, numpy_batches(path=remote.url, **options))
    assert equal(found, tf_batches(path=remote.url, **options))


# tf.data


def test_the_tf_dataset_knows_its_shapes_and_length(made: Made) -> None:
    ds = pileshard.dataset(0, 1, path=made.url, world_size=2, seq_len=16, batch_size=4)
    assert ds.element_spec == (tf.TensorSpec((4, 16), tf.int32), tf.TensorSpec((4, 16), tf.int32))
    plan = pileshard.open(made.url).plan(1, seq_len=16)
    assert int(ds.cardinality()) == plan.steps(8)
    rest = pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=4, drop_remainder=False)
    assert rest.element_spec[0].shape.as_list() == [None, 16]
    forever = pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=4, epochs=None)
    assert int(forever.cardinality()) == tf.data.INFINITE_CARDINALITY


def test_the_tf_dataset_works_inside_a_function_and_twice(made: Made) -> None:
    ds = pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=4)

    @tf.function
    def total(ds: Any) -> Any:
        found = tf.zeros([], tf.int64)
        for inputs, labels in ds:
            found += tf.reduce_sum(tf.cast(inputs, tf.int64)) - tf.reduce_sum(tf.cast(labels, tf.int64))
        return found

    expected = sum(
        int(x.sum()) - int(y.sum()) for x, y in numpy_batches(seed=1, path=made.url, seq_len=16, batch_size=4)
    )
    assert int(total(ds)) == int(total(ds)) == expected
    assert sum(1 for _ in ds) == sum(1 for _ in ds) == int(ds.cardinality())


def test_keras_fits_on_it(made: Made) -> None:
    ds = pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=4, epochs=1).take(5)
    model = tf.keras.Sequential([tf.keras.layers.Embedding(50257, 2), tf.keras.layers.Dense(8)])
    model.compile("sgd", tf.keras.losses.MeanSquaredError())
    history = model.fit(ds.map(lambda x, y: (x, tf.one_hot(y % 8, 8))), epochs=2, verbose=0)
    assert len(history.history["loss"]) == 2


def test_iterators_dropped_early_leave_no_open_files(made: Made) -> None:
    for epochs in (None, 1):
        iterator = iter(pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=1, epochs=epochs, slots=1))
        next(iterator)
        del iterator
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    held = []
    for _ in range(5):
        held.append(iter(pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=1, epochs=None)))
        next(held[-1])
        held.append(pileshard.numpy_dataset(0, 1, path=made.url, seq_len=16, batch_size=1, epochs=None))
        next(held[-1])
    assert len(os.listdir("/proc/self/fd")) > before
    held.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_damaged_shard_stops_the_tf_reader_with_its_name(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [5000]})
    path = tmp_path / made.manifest.shards[0].path
    os.truncate(path, 100)
    with pytest.raises(Exception, match=r"train-00000-of-00001.tfrecord: damaged: ends at byte 100 where"):
        tf_batches(path=made.url, seq_len=16)
    with pytest.raises(DatasetError, match=r"train-00000-of-00001.tfrecord: damaged: ends at byte 100 where"):
        numpy_batches(path=made.url, seq_len=16)


@pytest.mark.parametrize("checksums", [True, False])
def test_an_id_outside_the_vocabulary_never_leaves_a_reader(tmp_path: Path, checksums: bool) -> None:
    made = make_dataset(str(tmp_path), {("A", "train"): [5000]})
    manifest = msgspec.structs.replace(made.manifest, vocab_size=50_000)
    (tmp_path / MANIFEST).write_bytes(manifest.to_bytes())
    outside = np.flatnonzero(made.streams[0][:4993] >= 50_000)
    assert 0 < len(outside) < 100
    options: dict[str, Any] = {"path": made.url, "world_size": 1, "seq_len": 16, "checksums": checksums}
    with pytest.raises(
        DatasetError, match=r"the id 50,\d\d\d is outside the vocabulary of 50,000 at byte .*; run `pile"
    ):
        list(pileshard.numpy_dataset(**options))
    if checksums:
        rows = pileshard.numpy_dataset(**options, batch_size=1, on_damage="skip")
        assert max(int(max(x.max(), y.max())) for x, y in rows) < 50_000
        plan = rows.plan.rows(np.arange(rows.plan.samples_per_epoch))
        first = plan.first_token[:, None]
        lost = ((first <= outside) & (outside <= first + 16)).any(axis=1)
        assert rows.left_out.positions.tolist() == np.flatnonzero(lost).tolist()
        assert len(rows.left_out.places) == len(outside)


def test_without_tensorflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
    with pytest.raises(MissingExtraError, match=r"pileshard.dataset needs the package 'tensorflow'.*pileshard\[tensor"):
        pileshard.dataset(0, 0, path="/nowhere")


# Arguments


def test_path_and_ranks_come_from_the_environment(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILESHARD_DATA", made.url)
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    told = [x for x, _ in pileshard.numpy_dataset(None, 5, seq_len=16)]
    given_ = [x for x, _ in pileshard.numpy_dataset(1, 5, seq_len=16, path=made.url, world_size=2, batch_size=8)]
    assert len(told) == len(given_)
    assert all(np.array_equal(a, b) for a, b in zip(told, given_, strict=True))


def test_a_state_of_another_dataset_or_option_is_refused(made: Made, tmp_path: Path) -> None:
    other = make_dataset(str(tmp_path), {("a", "train"): [5000]}, seed=9)
    state = pileshard.numpy_dataset(path=made.url, seq_len=16).state()
    with pytest.raises(DatasetError, match="saved for the dataset"):
        pileshard.numpy_dataset(path=other.url, seq_len=16, start=state)
    with pytest.raises(OptionError, match="seed was 0 and is 1"):
        pileshard.dataset(None, 1, path=made.url, seq_len=16, start=state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seq_len": 0}, "seq_len is 0"),
        ({"seq_len": 10**6}, "no shard holds a sample"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"global_batch_size": 5, "rank": 0, "world_size": 2}, "does not divide among 2 ranks"),
        ({"rank": 2, "world_size": 2}, "rank 2"),
        ({"split": "test"}, "no split 'test'; it has 'train', 'validation'"),
        ({"start": -1}, "start is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"on_damage": "ignore"}, "on_damage is 'ignore'; it takes 'raise' or 'skip'"),
        ({"on_damage": "skip", "checksums": False}, "it needs checksums=True"),
    ],
)
def test_wrong_arguments_are_refused_at_once(made: Made, options: dict, words: str) -> None:
    for function in (pileshard.dataset, pileshard.numpy_dataset):
        with pytest.raises(OptionError, match=words):
            function(**{"path": made.url, "seq_len": 16, **options})
