"""Who does the items of an audit: this thread, threads, or a process a core, by how much there is to do."""

from __future__ import annotations

import os

import msgspec
import pytest

from pileshard.audit import pool
from pileshard.audit.tallies import Sample
from pileshard.audit.verify import verify
from pileshard.format.manifest import Manifest
from pileshard.format.storage import Storage
from tests.data.golden.make_golden import DATASET

SAMPLE = Sample.of(1000, 10**9, 0)
HERE = Storage(str(DATASET))


def _of_size(shards: int, inputs: int, text: int = 10**9) -> Manifest:
    """The golden manifest, as if its files had so many bytes."""
    golden = Manifest.read(HERE)
    return msgspec.structs.replace(
        golden,
        shards=[msgspec.structs.replace(golden.shards[0], size=shards)],
        inputs=[msgspec.structs.replace(golden.inputs[0], size=inputs)],
        text_bytes=text,
    )


@pytest.mark.parametrize("level", ["quick", "full", "deep"])
def test_a_small_dataset_is_worth_neither_threads_nor_processes(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("not for so little")

    monkeypatch.setattr(pool, "ThreadPoolExecutor", refuse)
    monkeypatch.setattr(pool, "ProcessPoolExecutor", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    report = verify(str(DATASET), level=level, workers="auto")  # type: ignore[arg-type]
    assert [fault for fault in report.faults if fault.kind.value != "input"] == []


def test_a_large_one_is_worth_a_process_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    large, small = _of_size(10**11, 10**6), _of_size(10**6, 10**6)
    assert pool.useful_workers(HERE, large, "full", SAMPLE) == 8
    assert pool.useful_workers(HERE, large, "quick", SAMPLE) is None
    assert pool.useful_workers(HERE, small, "full", SAMPLE) is None
    assert pool.useful_workers(HERE, small, "deep", SAMPLE) is None
    assert pool.useful_workers(HERE, _of_size(10**6, 10**10), "deep", SAMPLE) == 8
    assert pool.useful_workers(HERE, small, "deep", Sample.of(None, 10**6, 0)) == 8  # every document once more
    remote = Storage("memory://somewhere")
    assert pool.useful_workers(remote, large, "full", SAMPLE) is None  # threads wait as well
    assert pool.useful_workers(remote, large, "deep", SAMPLE) == 8
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert pool.useful_workers(HERE, large, "full", SAMPLE) is None
