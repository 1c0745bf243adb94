"""The simulation of clusters: its laws, and its counts held against a real build."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.merge_stage import slab_bytes
from pileshard.format.storage import Storage
from tests.benchmarks import cluster_simulation
from tests.benchmarks.cluster_corpora import TEN_T, THE_PILE, Corpus, auto_parts, shard_bytes_in_all
from tests.benchmarks.cluster_model import Rates, schedule, simulate
from tests.benchmarks.cluster_simulation import rates_of_build, table
from tests.built import run_build


@given(seconds=st.lists(st.floats(0.01, 1000), max_size=60), workers=st.integers(1, 20))
def test_a_schedule_is_within_the_bounds_of_list_scheduling(seconds: list[float], workers: int) -> None:
    """Graham 1966: no list schedule is longer than the mean load and the longest item together."""
    took = schedule(sorted(seconds, reverse=True), workers)
    least = max(max(seconds, default=0), sum(seconds) / workers)
    assert least - 1e-6 <= took <= sum(seconds) / workers + max(seconds, default=0) + 1e-6
    assert schedule(seconds, 1) == pytest.approx(sum(seconds))


@pytest.mark.parametrize("corpus", [THE_PILE, TEN_T], ids=["pile", "10T"])
def test_more_workers_take_less_time_and_no_less_work(corpus: Corpus) -> None:
    results = [simulate(corpus, workers, 4) for workers in (1, 16, 200, 1000)]
    assert [r.seconds for r in results] == sorted((r.seconds for r in results), reverse=True)
    for result in results:
        assert 0 < result.at_work <= 1
        assert sum(stage.work for stage in result.stages) <= result.seconds * result.workers
        written = sum(stage.written_bytes for stage in result.stages)
        assert written >= 2 * shard_bytes_in_all(corpus)
        assert result.space == pytest.approx(written, rel=0.02)
    assert results[1].stages == simulate(corpus, 16, 4).stages


def test_a_gathered_corpus_reads_a_hundredth_of_the_slices() -> None:
    gathered, plain = simulate(TEN_T, 1000, 1), simulate(replace(TEN_T, most_runs=10**9), 1000, 1)
    assert plain.slices == plain.runs > 100_000
    assert gathered.slices < 500
    assert [stage.name for stage in gathered.stages] == ["tokenize", "plan", "gather", "merge"]
    reads = [sum(stage.reads for stage in result.stages) for result in (gathered, plain)]
    assert reads[0] < reads[1] / 100


def test_parts_of_inputs_with_frames_shorten_the_longest_item() -> None:
    whole, through, entered = (
        simulate(THE_PILE, 200, 1),
        simulate(THE_PILE, 200, auto_parts(THE_PILE, 200)),
        simulate(THE_PILE, 200, auto_parts(THE_PILE, 200, frames=True), frames=True),
    )
    longest = [max(stage.longest for stage in result.stages) for result in (whole, through, entered)]
    assert longest[0] > longest[1] > longest[2]
    assert entered.at_work > whole.at_work


def test_requests_of_a_merge_are_those_of_a_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read_range = Storage.read_range

    def counted(self: Storage, path: str, *args: Any, **options: Any) -> bytes:
        reads.append(path)
        return read_range(self, path, *args, **options)

    monkeypatch.setattr(Storage, "read_range", counted)
    # A file system that is not this machine's: there, each read is a request.
    output = f"memory://{tmp_path.name}-simulated"
    run_build(output, source_key="no_such_key", shard_bytes=10**9, run_bytes=1 << 16, keep_runs=True)
    storage = Storage(output)
    runs = [path for path in storage.files("_build") if path.endswith(".run")]
    assert len(runs) >= 3
    [slabs] = {-(-storage.size(path) // slab_bytes(1 << 16)) for path in runs}
    # The plan reads the tables of each item once; the merge of a run the table, the rows, and tokens for each slab.
    assert sum(path.endswith(".run") for path in reads) == len(runs) + len(runs) * (2 + slabs)


def test_rates_are_read_from_the_receipts_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_build(tmp_path / "dataset", keep_runs=True)
    rates = rates_of_build(str(tmp_path / "dataset"))
    assert rates.keys() == {"tokenize", "merge"}
    assert all(rate > 0 for rate in rates.values())
    (tmp_path / "rates.json").write_text(json.dumps({"tokenize": 123e6}))
    arguments = ["cluster_simulation", "--rates", str(tmp_path / "rates.json"), "--workers", "200"]
    monkeypatch.setattr("sys.argv", arguments)
    cluster_simulation.main()
    shown = capsys.readouterr().out
    assert "123 MB of text" in shown
    assert table([simulate(THE_PILE, 200, 1, Rates(tokenize=123e6))]).splitlines()[-1] in shown
