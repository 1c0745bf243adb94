"""The tf.data reader behaves as TensorFlow's users expect: under strategies, Keras, options and checkpoints."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pileshard
from tests.readers.made import Made, make_dataset

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [4001, 3000], ("b", "train"): [9000, 3, 2000]}
    return make_dataset(str(tmp_path_factory.mktemp("distribute")), shards, mean_document={"a": 300, "b": 20})


@pytest.fixture(scope="module")
def options(made: Made) -> dict[str, Any]:
    return {"seed": 3, "path": made.url, "seq_len": 16, "slots": 12}


def inputs(batches: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x, _ in batches]


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# Options and transformations


def test_it_is_deterministic_whatever_the_parallelism(options: dict[str, Any]) -> None:
    expected = inputs(pileshard.numpy_dataset(**options, batch_size=4))
    for threads, autotune, deterministic in ((1, True, True), (4, True, True), (3, False, False)):
        chosen = tf.data.Options()
        chosen.threading.private_threadpool_size = threads
        chosen.threading.max_intra_op_parallelism = threads
        chosen.autotune.enabled = autotune
        chosen.experimental_optimization.inject_prefetch = True
        chosen.deterministic = deterministic
        ds = pileshard.dataset(**options, batch_size=4).with_options(chosen)
        assert equal(inputs(ds), expected)
        mapped = ds.map(lambda x, y: (x, y), num_parallel_calls=4, deterministic=True).prefetch(tf.data.AUTOTUNE)
        assert equal(inputs(mapped), expected)


def test_the_usual_transformations_work_on_it(options: dict[str, Any]) -> None:
    expected = inputs(pileshard.numpy_dataset(**options, batch_size=4))
    ds = pileshard.dataset(**options, batch_size=4)
    spec = tf.TensorSpec((4, 16), tf.int32)
    changed: list[tuple[Callable[[Any], Any], list[np.ndarray]]] = [
        (lambda ds: ds.prefetch(3), expected),
        (lambda ds: ds.take(7), expected[:7]),
        (lambda ds: ds.skip(7), expected[7:]),
        (lambda ds: ds.repeat(2), expected * 2),
        (lambda ds: ds.shard(3, 1), expected[1::3]),
        (lambda ds: ds.map(lambda x, y: (x + 1, y)), [x + 1 for x in expected]),
        (lambda ds: ds.cache().repeat(2), expected * 2),
    ]
    for change, wanted in changed:
        other = change(ds)
        assert other.element_spec == (spec, spec)
        assert int(other.cardinality()) == len(wanted)
        assert equal(inputs(other), wanted)
    rows = ds.unbatch()
    assert rows.element_spec == (tf.TensorSpec((16,), tf.int32),) * 2
    sixes = inputs(pileshard.numpy_dataset(**options, batch_size=6))[: len(expected) * 4 // 6]
    assert equal(inputs(rows.batch(6, drop_remainder=True)), sixes)


# Keras


def model() -> Any:
    layers = [tf.keras.layers.Embedding(50257, 2), tf.keras.layers.Dense(8)]
    made = tf.keras.Sequential(layers)
    made.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def test_fit_knows_the_steps_of_an_epoch(options: dict[str, Any]) -> None:
    ds = pileshard.dataset(**options, batch_size=8, world_size=3, rank=1)
    steps: list[tuple[int, int]] = []
    count = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append((batch, 0)))
    history = model().fit(ds.map(lambda x, y: (x, y % 8)), epochs=2, verbose=0, callbacks=[count])
    assert len(history.history["loss"]) == 2
    assert [batch for batch, _ in steps] == [*range(int(ds.cardinality()))] * 2
    forever = pileshard.dataset(**options, batch_size=8, epochs=None)
    model().fit(forever.map(lambda x, y: (x, y % 8)), epochs=1, steps_per_epoch=4, verbose=0)


# Checkpoints


@pytest.mark.parametrize("policy", ["FAIL", "WARN", "IGNORE"])
def test_saving_an_iterator_is_refused_and_never_restarts_silently(
    options: dict[str, Any], tmp_path: Path, policy: str
) -> None:
    chosen = tf.data.Options()
    chosen.experimental_external_state_policy = getattr(tf.data.experimental.ExternalStatePolicy, policy)
    ds = pileshard.dataset(**options, batch_size=4).with_options(chosen)
    for changed in (ds, ds.prefetch(2), ds.map(lambda x, y: (x, y))):
        iterator = iter(changed)
        next(iterator)
        with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.UnimplementedError)):
            tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "iterator"))
    assert not list(tmp_path.glob("iterator*.index"))


def test_a_checkpoint_keeps_the_position_beside_the_model(options: dict[str, Any], tmp_path: Path) -> None:
    plan = pileshard.open(options["path"]).plan(3, seq_len=16, slots=12)
    whole = inputs(pileshard.dataset(**options, batch_size=4))
    position = tf.Variable(0, dtype=tf.int64)
    for _ in pileshard.dataset(**options, batch_size=4).take(9):
        position.assign_add(4)
    path = tf.train.Checkpoint(position=position).save(str(tmp_path / "model"))
    restored = tf.Variable(0, dtype=tf.int64)
    tf.train.Checkpoint(position=restored).restore(path).assert_consumed()
    state = json.loads(json.dumps(plan.state(int(restored))))
    assert equal(inputs(pileshard.dataset(**options, batch_size=4, start=state)), whole[9:])


# Strategies, each in processes of their own: devices cannot be divided once TensorFlow has used them

_MIRRORED = """
import sys
import numpy as np
import tensorflow as tf
import pileshard

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
options = {"seed": 3, "path": sys.argv[1], "seq_len": 16, "slots": 12}
rows = np.concatenate([x for x, _ in pileshard.numpy_dataset(**options, batch_size=8)])


def make(context):
    rank, size = context.input_pipeline_id, context.num_input_pipelines
    return pileshard.dataset(rank, world_size=size, batch_size=context.get_per_replica_batch_size(8), **options)


def taken(distributed):
    steps = [strategy.experimental_local_results(x) for x, _ in distributed]
    assert {part.shape for step in steps for part in step} == {(4, 16)}
    return np.concatenate([part for step in steps for part in step])


assert np.array_equal(taken(strategy.distribute_datasets_from_function(make)), rows)
ds = pileshard.dataset(**options, batch_size=8)
assert np.array_equal(taken(strategy.experimental_distribute_dataset(ds)), rows)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Embedding(50257, 2), tf.keras.layers.Dense(8)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
batches = []
count = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))
model.fit(ds.map(lambda x, y: (x, y % 8)), epochs=2, verbose=0, callbacks=[count])
assert batches == [*range(int(ds.cardinality()))] * 2, batches
print("well")
"""


def test_a_mirrored_strategy_takes_each_row_once(made: Made) -> None:
    run = subprocess.run([sys.executable, "-c", _MIRRORED, made.url], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip().endswith("well"), run.stderr


_MULTI_WORKER = """
import json, os, sys
rank, url, out, workers = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
import numpy as np
import tensorflow as tf
import pileshard

strategy = tf.distribute.MultiWorkerMirroredStrategy()
options = {"seed": 3, "path": url, "seq_len": 16, "slots": 12}


def make(context):
    rank, size = context.input_pipeline_id, context.num_input_pipelines
    return pileshard.dataset(rank, world_size=size, batch_size=context.get_per_replica_batch_size(8), **options)


def taken(distributed):
    return np.stack([strategy.experimental_local_results(x)[0] for x, _ in distributed])


np.savez(
    out + str(rank),
    function=taken(strategy.distribute_datasets_from_function(make)),
    ranked=taken(strategy.experimental_distribute_dataset(
        pileshard.dataset(rank, world_size=2, batch_size=4, **options))),
    whole=taken(strategy.experimental_distribute_dataset(pileshard.dataset(0, world_size=1, batch_size=8, **options))),
)
"""


def test_a_strategy_of_several_workers_takes_each_row_once(made: Made, tmp_path: Path) -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    command = [sys.executable, "-c", _MULTI_WORKER]
    runs = [
        subprocess.Popen(
            [*command, str(rank), made.url, str(tmp_path / "r"), *workers], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [run.communicate(timeout=300)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], errors
    found = [np.load(tmp_path / f"r{rank}.npz") for rank in range(2)]
    options = {"seed": 3, "path": made.url, "seq_len": 16, "slots": 12}
    for rank in range(2):
        own = np.stack(inputs(pileshard.numpy_dataset(rank, world_size=2, batch_size=4, **options)))
        assert np.array_equal(found[rank]["function"], own)
    # Handed over instead, batches are taken for global ones and divided, and still no row is lost or doubled.
    rows = np.concatenate(inputs(pileshard.numpy_dataset(batch_size=8, **options)))
    for name in ("ranked", "whole"):
        assert found[0][name].shape == found[1][name].shape
        together = np.concatenate([part[name].reshape(-1, 16) for part in found])
        assert sorted(map(bytes, together)) == sorted(map(bytes, rows))
