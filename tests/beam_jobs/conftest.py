"""Engines for the tests: each is started when a test first asks for it, and lives for the whole run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.built import run_build
from tests.servers.engines import RunningEngine, running
from tests.servers.tools import NotInstallableError


@pytest.fixture(scope="session")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunningEngine]]:
    """Gives a running engine by its name."""
    found: dict[str, RunningEngine] = {}
    with contextlib.ExitStack() as stack:

        def get(name: str) -> RunningEngine:
            if name == "dask":
                pytest.importorskip("distributed")
            if name not in found:
                try:
                    found[name] = stack.enter_context(running(name, tmp_path_factory.mktemp(name)))
                except NotInstallableError as error:
                    pytest.skip(str(error))
            return found[name]

        yield get


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's corpus as one process builds it: what all else is compared with."""
    root = tmp_path_factory.mktemp("plain") / "dataset"
    run_build(root)
    return root
