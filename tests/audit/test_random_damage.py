"""Thousands of single flipped bits and cuts: each one is found, none ends in a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pileshard.audit.verify import verify
from tests.data.golden.make_golden import DATASET


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("flips") / "dataset"
    shutil.copytree(DATASET, target)
    return target


def _files(root: Path) -> list[Path]:
    """Every file that a hash covers, so often that every byte is equally likely."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.parent.name != "rejected")
    return [path for path in paths for _ in range(1 + path.stat().st_size // 100)]


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


@pytest.mark.parametrize("seed", range(5))
def test_every_flipped_bit_is_found_in_its_file(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = _files(root)
    for _ in range(400):
        path = rng.choice(files)
        before = path.read_bytes()
        at, bit = rng.randrange(len(before)), rng.randrange(8)
        data = bytearray(before)
        data[at] ^= 1 << bit
        path.write_bytes(bytes(data))
        report = verify(str(root))
        path.write_bytes(before)
        assert _name(root, path) in {fault.path for fault in report.faults}, (path, at, bit)
    assert verify(str(root)).sound


@pytest.mark.parametrize("seed", range(3))
def test_every_cut_is_found_in_its_file(root: Path, seed: int) -> None:
    rng = random.Random(100 + seed)
    files = _files(root)
    for _ in range(250):
        path = rng.choice(files)
        before = path.read_bytes()
        begin = rng.randrange(len(before))
        end = len(before) if rng.random() < 0.5 else rng.randint(begin + 1, len(before))  # from the end, or within
        path.write_bytes(before[:begin] + before[end:])
        report = verify(str(root))
        path.write_bytes(before)
        assert _name(root, path) in {fault.path for fault in report.faults}, (path, begin, end)
    assert verify(str(root)).sound


@pytest.mark.parametrize("seed", range(2))
def test_every_overwritten_stretch_is_found_in_its_file(root: Path, seed: int) -> None:
    rng = random.Random(200 + seed)
    files = _files(root)
    for _ in range(150):
        path, other = rng.choice(files), rng.choice(files)
        before = path.read_bytes()
        stretch = rng.choice([bytes(50), b"\xff" * 50, other.read_bytes()[:50], rng.randbytes(50)])
        begin = rng.randrange(len(before))
        data = before[:begin] + stretch + before[begin + len(stretch) :]
        if data == before:
            continue
        path.write_bytes(data)
        report = verify(str(root))
        path.write_bytes(before)
        assert _name(root, path) in {fault.path for fault in report.faults}, (path, begin, stretch)


def test_flips_in_lists_of_rejected_lines_never_end_in_a_traceback(root: Path) -> None:
    (path,) = (root / "rejected").iterdir()
    before = path.read_bytes()
    rng = random.Random(1)
    for _ in range(150):
        data = bytearray(before)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data))
        verify(str(root))
    path.write_bytes(before)
