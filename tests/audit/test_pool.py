"""Who does the items of an audit: this thread, threads, or a process a core, by how much there is to do."""

from __future__ import annotations

import os

import msgspec
import pytest

from pileshard.audit import pool, side_by_side
from pileshard.audit.statistics import collect
from pileshard.audit.tallies import Sample
from pileshard.audit.verify import verify
from pileshard.cli import main
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


class _StartedError(Exception):
    """As many processes were to be started."""


def _start(workers: int, **_: object) -> None:
    raise _StartedError(workers)


def _cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)


@pytest.mark.parametrize(("cores", "wanted"), [(1, 4), (2, 6), (64, 6)])
def test_processes_are_at_most_four_a_core_and_one_a_shard(
    cores: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cores(monkeypatch, cores)
    monkeypatch.setattr(pool, "ProcessPoolExecutor", _start)
    assert len(Manifest.read(HERE).shards) == 6
    with pytest.raises(_StartedError, match=f"^{wanted}$"):
        verify(str(DATASET), workers=10**6)


def test_processes_of_stats_are_at_most_four_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    _cores(monkeypatch, 1)
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", _start)
    with pytest.raises(_StartedError, match=r"^4$"):
        collect(str(DATASET), vocab=True, workers=10**6)


@pytest.mark.parametrize("beam", [[], ["--beam"]])
def test_inputs_are_cut_into_no_more_parts_than_there_may_be_processes(
    beam: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from beam_jobs import audit_pipeline

    def run(name: str, elements: list[bytes], do: object, beam_args: list[str], workers: int) -> None:
        raise _StartedError(workers, len(elements))

    def pooled(task: object, items: list[object], workers: int, on_bytes: object) -> None:
        raise _StartedError(workers, len(items))

    _cores(monkeypatch, 2)
    monkeypatch.setattr(audit_pipeline, "run_elements", run)
    monkeypatch.setattr(pool, "_in_processes", pooled)
    inputs = len(Manifest.read(HERE).inputs)
    assert main(["verify", str(DATASET), "--level", "deep", "--sample", "all", "--workers", "1000000", *beam]) == 1
    assert str((8, 6 + inputs * -(-8 // inputs))) in capsys.readouterr().err


def test_help_says_how_many_processes_there_are_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("verify", "stats"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        assert "at most four a core" in " ".join(capsys.readouterr().out.split())
