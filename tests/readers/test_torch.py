"""PyTorch reads the same order out of any number of workers, and resumes it from any state.

Workers come from a fork server, which is clean of the threads that TensorFlow has in the process of the tests.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.errors import DatasetError, MissingExtraError, OptionError
from tests.readers.made import Made, make_dataset

torch = pytest.importorskip("torch")
DataLoader = torch.utils.data.DataLoader
warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(["torch", "torchdata.stateful_dataloader", "pileshard.readers.torch_batches"])

Pairs = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [4001, 3000], ("b", "train"): [9000, 3, 2000], ("b", "validation"): [700]}
    return make_dataset(str(tmp_path_factory.mktemp("torch")), shards, mean_document={"a": 300, "b": 20})


def loader(dataset: Any, workers: int, kind: Any = DataLoader, **options: Any) -> Any:
    if workers:
        options = {"multiprocessing_context": CLEAN, **options}
    return kind(dataset, **{"batch_size": None, "num_workers": workers, **options})


def pairs(batches: Iterable[Any]) -> Pairs:
    return [(np.asarray(x), np.asarray(y)) for x, y in batches]


def equal(a: Pairs, b: Pairs) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(p, q) for one, other in zip(a, b, strict=True) for p, q in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_the_order_is_numpys_whatever_the_workers(made: Made, workers: int, kind: Any) -> None:
    options: dict[str, Any] = {
        "path": made.url,
        "seq_len": 32,
        "seed": 4,
        "batch_size": 5,
        "rank": 1,
        "world_size": 2,
        "drop_remainder": False,
        "skip": [(30, 41), (200, 230)],
        "slots": 12,
        "epochs": 2,
    }
    expected = pairs(pileshard.numpy_dataset(**options))
    dataset = pileshard.torch_dataset(**options)
    made_loader = loader(dataset, workers, kind)
    assert len(dataset) == len(made_loader) == len(expected) > 50
    found = list(made_loader)
    assert equal(pairs(found), expected)
    assert len(found[-1][0]) < 5
    assert {x.dtype for pair in found for x in pair} == {torch.int64}


@given(
    workers=st.integers(1, 5),
    world=st.sampled_from([1, 2, 3]),
    batch=st.integers(1, 5),
    start=st.integers(0, 500),
    slots=st.sampled_from([1, 12, 96]),
    drop=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40)
def test_workers_divide_the_steps_in_turn(
    made: Made, workers: int, world: int, batch: int, start: int, slots: int, drop: bool, data: st.DataObject
) -> None:
    options: dict[str, Any] = {
        "path": made.url,
        "seq_len": 32,
        "batch_size": batch,
        "start": start,
        "slots": slots,
        "rank": data.draw(st.integers(0, world - 1)),
        "world_size": world,
        "drop_remainder": drop,
        "skip": [(300, 320), (411, 414)],
    }
    expected = pairs(pileshard.numpy_dataset(**options))
    read = pileshard.torch_dataset(**options)._reading()
    for worker in range(workers):
        found = [(b[:, :-1].copy(), b[:, 1:].copy()) for block in read.blocks(worker, workers) for b in block]
        assert equal(found, expected[worker::workers])


def test_workers_share_no_chunk_where_they_divide_the_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [8 * 4000 + 1] * 3})
    monkeypatch.setattr("pileshard.readers.rows.CHUNK_TOKENS", 1)  # nothing is small enough to be kept whole
    monkeypatch.setattr("pileshard.readers.blocks.MOST_BATCHES", 1)
    dataset = pileshard.torch_dataset(path=made.url, seq_len=8, batch_size=4, slots=24, world_size=2, rank=1)
    read, plan = dataset._reading(), dataset.plan
    assert plan.chunk_samples > 4
    windows = plan.order.period // 24
    steps = windows * 12 * plan.chunk_samples // 4
    reads: list[tuple[int, int]] = []
    shard_reads = type(plan.reader()).read

    def counted(self: Any, shard: int, first: int, *to: Any) -> Any:
        reads.append((shard, first))
        return shard_reads(self, shard, first, *to)

    monkeypatch.setattr("pileshard.readers.chunk.ShardReader.read", counted)
    for worker in range(3):
        blocks = read.blocks(worker, 3)
        for _ in range(steps // 3):
            next(blocks)
        blocks.close()  # type: ignore[attr-defined]
    assert len(reads) == len(set(reads)) == windows * 12


# States


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_stateful_loader_resumes_at_every_step(made: Made, workers: int) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 37, "drop_remainder": False}
    expected = pairs(pileshard.numpy_dataset(**options))
    dataset = pileshard.torch_dataset(**options)
    saving = loader(dataset, workers, StatefulDataLoader)
    states = [saving.state_dict()]
    for _ in saving:
        states.append(saving.state_dict())
    assert len(states) == len(expected) + 1 == 9
    for step, state in enumerate(states):
        # The same number of workers, in the loader's own way; to other numbers, by the position.
        kept = pickle.loads(pickle.dumps(state))
        again = loader(pileshard.torch_dataset(**options), workers, StatefulDataLoader)
        again.load_state_dict(kept)
        assert equal(pairs(again), expected[step:])
        position = json.loads(json.dumps(dataset.state_of(kept)))
        assert position == dataset.state(step)
        assert position["position"] == min(37 * step, dataset.plan.samples_per_epoch)
        other = loader(pileshard.torch_dataset(**options, start=position), 2 if step % 4 == 1 else 0)
        assert equal(pairs(other), expected[step:])


@pytest.mark.parametrize("workers", [0, 2])
def test_old_snapshots_and_second_resumes_count_right(made: Made, workers: int) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9, "skip": [(20, 30)], "epochs": None}
    reader = pileshard.numpy_dataset(**options)
    expected = pairs(next(reader) for _ in range(40))
    step = 0
    state: dict[str, Any] = {}
    for taken in (5, 1, 7, 6):
        dataset = pileshard.torch_dataset(**options)
        made_loader = loader(dataset, workers, StatefulDataLoader, snapshot_every_n_steps=3)
        made_loader.load_state_dict(state)
        batches = iter(made_loader)
        assert equal(pairs(next(batches) for _ in range(taken)), expected[step : step + taken])
        step += taken
        state = made_loader.state_dict()
        assert dataset.state_of(state) == dataset.state(step)
        del batches


def test_a_workers_state_is_refused_where_it_would_mean_another_position(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9}
    saving = loader(pileshard.torch_dataset(**options), 1, StatefulDataLoader)
    next(iter(saving))
    state = saving.state_dict()
    changed = loader(pileshard.torch_dataset(**{**options, "batch_size": 7}), 1, StatefulDataLoader)
    changed.load_state_dict(state)
    with pytest.raises(OptionError, match=r"global_batch was 9 and is 7.*pass start=dataset.state_of"):
        next(iter(changed))
    worker = state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    dataset = pileshard.torch_dataset(**options)
    dataset.load_state_dict(worker)
    with pytest.raises(OptionError, match="workers was 1 and is 0"):
        iter(dataset)
    with pytest.raises(OptionError, match="torch_part was"):
        pileshard.torch_dataset(**options, start=worker)
    with pytest.raises(OptionError, match="seed was 0 and is 1"):
        pileshard.torch_dataset(None, 1, **options).load_state_dict(worker)
    with pytest.raises(OptionError, match="not the state of a loader"):
        dataset.state_of({"_snapshot": {}})


def test_a_loaded_state_holds_for_one_iteration(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9}
    dataset = pileshard.torch_dataset(**options)
    whole = pairs(dataset)
    dataset.load_state_dict(dataset.state(4))
    assert dataset.state_dict() == dataset.state(4)
    assert equal(pairs(dataset), whole[4:])
    assert dataset.state_dict() == dataset.state(len(whole))
    assert equal(pairs(dataset), whole)


# Processes


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_persistent_workers_begin_anew_and_leave_no_files_in_the_main_process(made: Made, context: str) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9}
    expected = pairs(pileshard.numpy_dataset(**options))
    persistent = loader(
        pileshard.torch_dataset(**options),
        2,
        multiprocessing_context=multiprocessing.get_context(context),
        persistent_workers=True,
    )
    for _ in range(2):
        assert equal(pairs(persistent), expected)
    shards = [
        os.readlink(fd) for fd in map("/proc/self/fd/{}".format, os.listdir("/proc/self/fd")) if os.path.islink(fd)
    ]
    assert not [name for name in shards if made.url in name]


_FORKED = """
import sys, warnings
import numpy as np
from torch.utils.data import DataLoader
import pileshard
warnings.simplefilter("ignore")
options = {"path": sys.argv[1], "seq_len": 64, "batch_size": 9, "start": 9}
expected = list(pileshard.numpy_dataset(**options))
dataset = pileshard.torch_dataset(**options)
next(iter(dataset))
for workers in (1, 2, 3):
    found = list(DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context="fork"))
    assert len(found) == len(expected)
    for (x, y), (u, v) in zip(found, expected):
        assert np.array_equal(x, u) and np.array_equal(y, v)
print("same")
"""


def test_forked_workers_open_files_of_their_own(made: Made) -> None:
    run = subprocess.run([sys.executable, "-c", _FORKED, made.url], capture_output=True, text=True, timeout=300)
    assert run.stdout == "same\n", run.stderr


def test_it_pickles_to_its_arguments(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [50] * 200})
    dataset = pileshard.torch_dataset(path=made.url, seq_len=16, rank=0, world_size=2)
    next(iter(dataset))
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    assert equal(pairs(pickle.loads(data)), pairs(dataset))


def test_an_error_in_a_worker_names_the_file(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [5000]})
    os.truncate(tmp_path / made.manifest.shards[0].path, 100)
    dataset = pileshard.torch_dataset(path=made.url, seq_len=16)
    for workers in (0, 1):
        with pytest.raises(DatasetError, match=r"train-00000-of-00001.tfrecord: damaged: ends at byte 100 where"):
            list(loader(dataset, workers))


# Tensors and arguments


def test_tensors_are_the_callers_own(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 16, "batch_size": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = []
        for inputs, labels in pileshard.torch_dataset(**options):
            copy = inputs.clone()
            labels.fill_(-1)
            assert torch.equal(inputs, copy)
            kept.append((inputs, copy))
    assert all(torch.equal(x, copy) for x, copy in kept)
    narrow = next(iter(pileshard.torch_dataset(**options, dtype=torch.int32)))
    assert {x.dtype for x in narrow} == {torch.int32}
    with pytest.raises(OptionError, match=r"dtype is torch.uint8"):
        pileshard.torch_dataset(**options, dtype=torch.uint8)


def test_a_model_trains_on_them(made: Made) -> None:
    embedding = torch.nn.Embedding(50257, 4)
    head = torch.nn.Linear(4, 50257)
    inputs, labels = next(iter(pileshard.torch_dataset(path=made.url, seq_len=16, batch_size=2)))
    loss = torch.nn.functional.cross_entropy(head(embedding(inputs)).flatten(0, 1), labels.flatten())
    loss.backward()
    assert loss.item() > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_single_rows_batch_to_the_same_order(made: Made, workers: int) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9, "drop_remainder": False}
    expected = pairs(pileshard.numpy_dataset(**options))
    dataset = pileshard.torch_dataset(**options, single_rows=True)
    assert len(dataset) == sum(len(x) for x, _ in expected)
    saving = loader(dataset, workers, StatefulDataLoader, batch_size=9)
    found, states = [], []
    for batch in saving:
        found.append(batch)
        states.append(saving.state_dict())
    assert equal(pairs(found), expected)
    assert dataset.state_of(states[4]) == dataset.state(5)
    again = loader(pileshard.torch_dataset(**options, single_rows=True), workers, StatefulDataLoader, batch_size=9)
    again.load_state_dict(states[4])
    assert equal(pairs(again), expected[5:])


def test_single_rows_within_a_step_resume_and_are_no_position(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9}
    dataset = pileshard.torch_dataset(**options, single_rows=True)
    rows = pairs(dataset)
    batches = iter(dataset)
    for _ in range(22):
        next(batches)
    state = dataset.state_dict()
    again = pileshard.torch_dataset(**options, single_rows=True)
    again.load_state_dict(state)
    assert equal(pairs(again), rows[22:])
    with pytest.raises(OptionError, match="middle of a batch"):
        dataset.state_of({"dataset_state": state})
    whole = pileshard.torch_dataset(**options)
    whole.load_state_dict(state)
    with pytest.raises(OptionError, match="single_rows"):
        iter(whole)


@pytest.mark.parametrize("workers", [0, 2])
def test_features_of_packed_rows_are_numpys(made: Made, workers: int) -> None:
    for packing in ({"segment_ids": True}, {"packing": "best_fit"}, {"fim_rate": 0.5, "fim_ids": [7, 8, 9]}):
        options: dict[str, Any] = {"path": made.url, "seq_len": 64, "batch_size": 9, "start": 18, **packing}
        expected = list(pileshard.numpy_dataset(**options))
        found = list(loader(pileshard.torch_dataset(**options), workers))
        assert len(found) == len(expected) > 10
        for torchs, numpys in zip(found, expected, strict=True):
            one, other = ((x if isinstance(x, dict) else dict(enumerate(x))) for x in (torchs, numpys))
            assert one.keys() == other.keys()
            assert all(one[name].dtype == torch.int64 for name in one)
            assert all(np.array_equal(one[name], other[name]) for name in one)
    row = next(iter(pileshard.torch_dataset(path=made.url, seq_len=64, segment_ids=True, single_rows=True)))
    assert {name: tuple(value.shape) for name, value in row.items()} == dict.fromkeys(row, (64,))
    assert len(row) == 5


def test_torchruns_ranks_are_taken(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dataset = pileshard.torch_dataset(path=made.url, seq_len=64)
    assert (dataset.schedule.rank, dataset.schedule.size) == (1, 3)
    expected = pairs(pileshard.numpy_dataset(1, 0, world_size=3, path=made.url, seq_len=64))
    monkeypatch.delenv("RANK")
    assert equal(pairs(pickle.loads(pickle.dumps(dataset))), expected)


def test_what_never_ends_has_no_length(made: Made) -> None:
    dataset = pileshard.torch_dataset(path=made.url, seq_len=64, epochs=None)
    with pytest.raises(TypeError, match="no length"):
        len(dataset)


def test_wrong_arguments_are_refused_at_once(made: Made) -> None:
    with pytest.raises(OptionError, match="batch_size is 0"):
        pileshard.torch_dataset(path=made.url, batch_size=0)
    with pytest.raises(OptionError, match="skip"):
        pileshard.torch_dataset(path=made.url, seq_len=16, skip=[(4, 4)])


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pileshard.readers.torch_batches", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingExtraError, match=r"pileshard.torch_dataset needs the package 'torch'.*pileshard\[torch\]"
    ):
        pileshard.torch_dataset(0, 0, path="/nowhere")
