"""One lab of three hosts for all tests of this folder: each test finds it whole, whatever the one before did to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.built import DEMO_INPUTS, TOKENIZER, run_build
from tests.cluster.lab import Lab, laboratory


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset, built in one process on a local disk."""
    root = tmp_path_factory.mktemp("local") / "dataset"
    run_build(root)
    return root


@pytest.fixture(scope="session")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with laboratory(tmp_path_factory.mktemp("lab")) as lab:
        (lab.disk / "inputs").mkdir()
        for path in (*DEMO_INPUTS, TOKENIZER):
            shutil.copy(path, lab.disk / "inputs")
        yield lab


@pytest.fixture
def lab(_lab: Lab) -> Lab:
    _lab.heal()
    return _lab
