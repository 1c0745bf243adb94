"""Damage met by every reader, on every storage: the same rows, counts and warnings; what passes is not damage."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.errors import DatasetError
from pileshard.format.storage import Storage
from tests.readers.damaging import damage
from tests.readers.made import Made, make_dataset

SHARDS = {("a", "train"): [16 * 64 * 5 + 1] * 3}
FORMS: dict[str, dict[str, Any]] = {"pair": {}, "segments": {"segment_ids": True}, "best_fit": {"packing": "best_fit"}}
OPTIONS: dict[str, Any] = {"seed": 1, "world_size": 2, "seq_len": 16, "batch_size": 5, "slots": 4}

forms = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_dataset(str(tmp_path_factory.mktemp("everywhere") / "sound"), SHARDS, mean_document=30)


@pytest.fixture(scope="module")
def damaged(made: Made, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shard of three is missing, and a byte is flipped in another one's middle."""
    target = tmp_path_factory.mktemp("everywhere") / "damaged"
    shutil.copytree(made.url, target)
    (target / made.manifest.shards[2].path).unlink()
    flip(target / made.manifest.shards[0].path)
    return str(target)


def flip(path: Path) -> int:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return len(data) // 2


def batches(url: str, rank: int = 0, **options: Any) -> tuple[list[tuple[np.ndarray, ...]], Any]:
    reader = pileshard.numpy_dataset(rank, path=url, **{**OPTIONS, **options})
    return [arrays(batch) for batch in reader], reader


def arrays(batch: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(part) for part in (batch.values() if isinstance(batch, dict) else batch))


def same(one: list[tuple[np.ndarray, ...]], other: list[tuple[np.ndarray, ...]]) -> bool:
    return len(one) == len(other) and all(
        len(a) == len(b) and all(map(np.array_equal, a, b)) for a, b in zip(one, other, strict=True)
    )


# Readers


@forms
def test_the_tf_reader_leaves_out_the_same(damaged: str, form: str) -> None:
    pytest.importorskip("tensorflow")
    expected, reader = batches(damaged, on_damage="skip", **FORMS[form])
    dataset = pileshard.dataset(0, path=damaged, on_damage="skip", **OPTIONS, **FORMS[form])
    assert dataset.left_out.rows == 0
    for _ in range(2):
        assert same([arrays(batch) for batch in dataset], expected)
        assert dataset.left_out.rows == reader.left_out.rows > 20
        assert dataset.left_out.positions.tolist() == reader.left_out.positions.tolist()
    assert [str(place) for place in dataset.left_out.places] == [str(place) for place in reader.left_out.places]


def test_the_tf_readers_error_keeps_its_words(made: Made, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    target = tmp_path / "copy"
    shutil.copytree(made.url, target)
    shard = made.manifest.shards[0]
    byte = flip(target / shard.path)
    offsets = np.load(target / shard.index_path)[1]
    record = int(offsets[np.searchsorted(offsets, byte, side="right") - 1])
    with pytest.raises(tf.errors.OpError) as caught:
        list(pileshard.dataset(0, path=str(target), **OPTIONS))
    assert f"{target}/{shard.path}: damaged: the bytes of a record are not" in str(caught.value)
    assert f" at byte {record:,}; run `pileshard repair {target}`" in str(caught.value)


@pytest.mark.parametrize(("form", "workers"), [("pair", 0), ("segments", 0), ("best_fit", 0), ("pair", 2)])
def test_the_torch_reader_leaves_out_the_same(damaged: str, form: str, workers: int) -> None:
    torch = pytest.importorskip("torch")
    expected, reader = batches(damaged, on_damage="skip", **FORMS[form])
    dataset = pileshard.torch_dataset(0, path=damaged, on_damage="skip", dtype="int32", **OPTIONS, **FORMS[form])
    context = {"multiprocessing_context": multiprocessing.get_context("forkserver")} if workers else {}
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, **context)
    assert same([arrays(batch) for batch in loader], expected)
    assert dataset.rows_left_out == reader.left_out.rows
    if not workers:
        assert dataset.left_out.positions.tolist() == reader.left_out.positions.tolist()


def test_a_torch_workers_error_keeps_its_words(damaged: str, made: Made) -> None:
    utils = pytest.importorskip("torch._utils")
    try:
        batches(damaged)
    except DatasetError as error:
        raised, wrapped = error, utils.ExceptionWrapper(where="in DataLoader worker process 0")
    copy = pickle.loads(pickle.dumps(raised))
    assert (str(copy), copy.url, copy.offset) == (str(raised), raised.url, raised.offset)
    with pytest.raises(pileshard.DamageError) as caught:
        wrapped.reraise()
    assert str(raised) in str(caught.value)
    assert any(f"{damaged}/{entry.path}" in str(raised) for entry in made.manifest.shards)


def test_counts_are_of_batches_that_were_taken(damaged: str) -> None:
    reader = pileshard.numpy_dataset(0, path=damaged, on_damage="skip", **OPTIONS)
    for step in range(40):
        next(reader)
        assert (reader.left_out.positions < OPTIONS["batch_size"] * 2 * (step + 1)).all()
    ahead = reader.left_out.rows
    whole = batches(damaged, on_damage="skip")[1].left_out
    assert ahead == int((whole.positions < OPTIONS["batch_size"] * 2 * 40).sum()) > 0


def test_each_place_is_warned_of_once(damaged: str, made: Made, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pileshard.readers"):
        _, reader = batches(damaged, on_damage="skip", epochs=2)
    places = [
        f"{damaged}/{made.manifest.shards[2].path}: is missing",
        f"{damaged}/{made.manifest.shards[0].path}: damag",
    ]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(places) == len(reader.left_out.places)
    for line, place in zip(sorted(said), sorted(places), strict=True):
        assert line.startswith(place)
        assert line.endswith(f"; run `pileshard repair {damaged}`; rows that touch it are left out")


# Repair, and what is no damage


@forms
def test_what_is_repaired_meanwhile_is_read(
    made: Made, damaged: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pileshard.readers.rows.CHUNK_TOKENS", 1)  # a small split would be read once
    target = tmp_path / "copy"
    shutil.copytree(damaged, target)
    expected, _ = batches(made.url, epochs=3, **FORMS[form])
    reader = pileshard.numpy_dataset(0, path=str(target), on_damage="skip", **{**OPTIONS, **FORMS[form], "epochs": 3})
    epoch = reader.plan.samples_per_epoch
    found = []
    while reader.position < 2 * epoch:
        if reader.position >= epoch and not (target / made.manifest.shards[2].path).exists():
            for entry in made.manifest.shards:
                shutil.copy(Path(made.url) / entry.path, target / "new")
                os.replace(target / "new", target / entry.path)
        found.append(arrays(next(reader)))
    found += map(arrays, reader)
    assert reader.left_out.rows > 20
    assert len(found) == len(expected)
    lost = set(reader.left_out.positions.tolist())
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        kept = [n for n, position in enumerate(reader.schedule.positions(step).tolist()) if position not in lost]
        assert all(np.array_equal(a[kept], b[kept]) for a, b in zip(one, other, strict=True))
    assert max(lost) < 2 * epoch  # blocks that were made ahead of the repair lack it


def test_a_dataset_that_is_gone_is_not_damage(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pileshard.readers.rows.CHUNK_TOKENS", 1)
    target = tmp_path / "copy"
    shutil.copytree(made.url, target)
    reader = pileshard.numpy_dataset(0, path=str(target), on_damage="skip", **OPTIONS)
    shutil.rmtree(target)
    with pytest.raises(DatasetError, match="the dataset is not there any more"):
        next(reader)
    assert reader.left_out.rows == 0


def test_a_file_that_cannot_be_read_is_not_damage(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("pileshard.readers.open_shards.os.preadv", broken)
    monkeypatch.setattr("pileshard.format.retry.time.sleep", lambda seconds: None, raising=False)
    reader = pileshard.numpy_dataset(0, path=made.url, on_damage="skip", **OPTIONS)
    with pytest.raises(DatasetError, match=r"tfrecord: cannot be read after \d attempts; .*Input/output error"):
        next(reader)


# Remote storage


def upload(url: str, name: str) -> str:
    storage, target = Storage(f"memory://damage-{name}"), Storage(url)
    storage.remove_tree("")
    for path in target.files():
        storage.write_bytes(path, target.read_bytes(path))
    return storage.url


@pytest.mark.parametrize("cached", [False, True])
@given(data=st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_remote_readers_leave_out_the_same(
    made: Made, tmp_path_factory: pytest.TempPathFactory, cached: bool, data: st.DataObject
) -> None:
    target = tmp_path_factory.mktemp("copy")
    kinds = data.draw(st.lists(st.sampled_from(["flip", "flip", "cut", "missing", "index"]), min_size=1, max_size=3))
    hurt = damage(made, target, lambda below: data.draw(st.integers(0, below - 1)), kinds)
    form = data.draw(st.sampled_from(list(FORMS)))
    options: dict[str, Any] = {**FORMS[form], "on_damage": "skip", "world_size": data.draw(st.sampled_from([1, 2, 4]))}
    if cached:
        options["cache_dir"] = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr("pileshard.readers.rows.CHUNK_TOKENS", 1)
        if all(lost.all() for lost in hurt.tokens.values()):
            return
        url = upload(hurt.url, "same")
        sound, _ = batches(made.url, **{**FORMS[form], "world_size": options["world_size"]})
        for _ in range(2):
            here, local = batches(hurt.url, **options)
            there, remote = batches(url, **options)
            assert len(there) == len(here)
            if not hurt.index_at_fault:
                assert remote.left_out.positions.tolist() == local.left_out.positions.tolist()
                assert same(there, here)
            lost = set(remote.left_out.positions.tolist())
            assert lost >= set(local.left_out.positions.tolist()) or form != "pair"
            for step, (one, other) in enumerate(zip(there, sound, strict=True)):
                kept = [n for n, p in enumerate(remote.schedule.positions(step).tolist()) if p not in lost]
                assert all(np.array_equal(a[kept], b[kept]) for a, b in zip(one, other, strict=True))


def test_sound_rows_of_a_shard_that_is_cut_off_are_read_through_a_cache(made: Made, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    shutil.copytree(made.url, target)
    os.truncate(target / made.manifest.shards[1].path, 228)  # within the first block that a cache keeps
    here, local = batches(str(target), on_damage="skip")
    there, remote = batches(upload(str(target), "cut"), on_damage="skip", cache_dir=tmp_path / "cache")
    assert remote.left_out.positions.tolist() == local.left_out.positions.tolist()
    assert same(there, here)


@forms
def test_a_cache_of_damaged_blocks_heals_with_the_dataset(made: Made, damaged: str, tmp_path: Path, form: str) -> None:
    options: dict[str, Any] = {**FORMS[form], "on_damage": "skip", "cache_dir": tmp_path}
    assert batches(upload(damaged, "heals"), **options)[1].left_out.rows > 20
    found, reader = batches(upload(made.url, "heals"), **options)
    assert reader.left_out.rows == 0
    assert same(found, batches(made.url, **FORMS[form])[0])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("what", ["tfrecord", "index.npy"])
def test_bytes_that_arrive_wrong_are_fetched_again(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, what: str
) -> None:
    url, whole = upload(made.url, "wrong"), Storage.read_range
    seen: set[tuple[str, int, int]] = set()

    def unreliable(self: Storage, path: str, start: int, end: int, **options: Any) -> bytes:
        data = bytearray(whole(self, path, start, end, **options))
        if path.endswith(what) and (path, start, end) not in seen:  # each range at most once
            seen.add((path, start, end))
            data[len(data) // 2] ^= 1
        return bytes(data)

    monkeypatch.setattr(Storage, "read_range", unreliable)
    for on_damage in ("skip", "raise"):
        seen.clear()
        options = {"cache_dir": tmp_path / on_damage} if cached else {}
        found, reader = batches(url, on_damage=on_damage, **options)
        assert seen
        assert reader.left_out.rows == 0
        assert same(found, batches(made.url)[0])
