"""Tens of thousands of flipped bits and cuts: each one is found in its file, and none is imagined."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pileshard.audit.verify import verify
from tests.audit import random_damage
from tests.audit.random_damage import FILES, Damage
from tests.data.golden.make_golden import DATASET


def test_twenty_thousand_flips_and_cuts_are_found_in_their_files_and_none_is_imagined() -> None:
    files = random_damage.small_dataset()
    todo = random_damage.damages(files)
    assert len(todo) >= 20_000
    outcome = random_damage.run(files, todo)
    assert outcome.wrong[:5] == []
    assert outcome.alarms == 0
    assert outcome.sound >= 200
    assert outcome.tried.total() == len(todo)
    for file in FILES:
        assert outcome.tried[file, "flip"] >= 1000
        assert outcome.tried[file, "cut off"] + outcome.tried[file, "cut out"] >= 350
    assert outcome.tried["shard", "record cut"] >= 20


def test_the_same_seed_gives_the_same_damage() -> None:
    files = random_damage.small_dataset()
    assert files == random_damage.small_dataset()
    assert random_damage.damages(files) == random_damage.damages(files) != random_damage.damages(files, seed=1)


def test_an_audit_that_misses_or_dies_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    files = random_damage.small_dataset()
    [shard] = [path for path in files if path.endswith(".tfrecord")]
    todo = [Damage("shard", shard, "flip", 70)]
    sound = verify(str(DATASET))
    monkeypatch.setattr(random_damage, "verify", lambda _: sound)
    assert len(random_damage._do(files, todo).wrong) == 1

    def die(_: str) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(random_damage, "verify", lambda root: die(root) if root != "sound" else sound)
    assert "a bug" in random_damage._complaint("damaged", todo[0])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("flips") / "dataset"
    shutil.copytree(DATASET, target)
    return target


@pytest.mark.parametrize("how", ["flip", "cut", "overwrite"])
def test_damage_among_many_shards_is_found_in_its_file(root: Path, how: str) -> None:
    rng = random.Random(how)
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    paths = [path for path in paths for _ in range(1 + path.stat().st_size // 100)]  # each byte is equally likely
    for _ in range(150):
        path, other = rng.choice(paths), rng.choice(paths)
        before = path.read_bytes()
        begin = rng.randrange(len(before))
        if how == "flip":
            data = bytearray(before)
            data[begin] ^= 1 << rng.randrange(8)
        elif how == "cut":
            data = bytearray(before[:begin] + before[rng.randint(begin + 1, len(before)) :])
        else:
            stretch = rng.choice([bytes(50), b"\xff" * 50, other.read_bytes()[:50], rng.randbytes(50)])
            data = bytearray(before[:begin] + stretch + before[begin + len(stretch) :])
        if data == before:
            continue
        path.write_bytes(data)
        report = verify(str(root))
        path.write_bytes(before)
        assert path.relative_to(root).as_posix() in {fault.path for fault in report.faults}, (path, begin)
    assert verify(str(root)).sound
