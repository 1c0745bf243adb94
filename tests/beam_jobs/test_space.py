"""The space that a build needs is told at its start, before a disk is full in the middle of the night."""

from __future__ import annotations

import collections
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import beam_jobs.space as space_module
from pileshard.errors import BuildError
from tests.built import DEMO_INPUTS, run_build

_Usage = collections.namedtuple("_Usage", "total used free")


def _free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(space_module.shutil, "disk_usage", lambda path: _Usage(10**15, 0, size))


def _needed(folder: Path) -> int:
    """What a build of the demo takes: runs and shards together."""
    run_build(folder / "sized", keep_runs=True)
    files = [path for top in ("shards", "_build") for path in (folder / "sized" / top).rglob("*") if path.is_file()]
    needed = sum(path.stat().st_size for path in files if path.suffix in (".run", ".tfrecord"))
    shutil.rmtree(folder / "sized")
    return needed


def test_disk_that_is_surely_too_small_stops_the_build_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = _needed(tmp_path)
    _free(monkeypatch, needed // 3)
    output = tmp_path / "dataset"
    with pytest.raises(BuildError) as caught:
        run_build(output)
    said = str(caught.value)
    assert "\n" not in said
    assert str(tmp_path) in said
    assert "the build needs about" in said
    assert "are free there" in said
    assert "--temp-url" in said
    assert "--no-space-check" in said
    assert not (output / "shards").exists()
    assert run_build(output, space_check=False).manifest.documents


def test_disk_that_may_be_too_small_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needed = _needed(tmp_path)
    _free(monkeypatch, int(needed * 0.9))
    with caplog.at_level(logging.INFO, "pileshard"):
        run_build(tmp_path / "dataset")
    assert [record for record in caplog.records if "may not fit" in record.getMessage()]


def test_what_is_there_already_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import beam_jobs.build as driver

    needed = _needed(tmp_path)

    def stop(*_: Any) -> None:
        raise BuildError("stopped between the stages")

    monkeypatch.setattr(driver, "plan_groups", stop)
    with pytest.raises(BuildError, match="stopped"):
        run_build(tmp_path / "dataset")
    monkeypatch.undo()
    _free(monkeypatch, int(needed * 0.4))  # too little for all, enough for the shards alone
    assert run_build(tmp_path / "dataset").manifest.documents


def test_runs_and_shards_on_two_disks_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = _needed(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(space_module, "_device", lambda path: 1 if path.endswith("/runs") else 2)
    spaces = []
    monkeypatch.setattr(space_module, "space_needed", lambda *given: spaces.extend(real(*given)) or [])
    real = _real_space_needed
    monkeypatch.setattr(space_module, "_MOST", 10**12)
    run_build(tmp_path / "dataset", temp_url=str(tmp_path / "runs"))
    assert {space.what for space in spaces} == {"runs", "shards"}
    assert sum(space.needed for space in spaces) == pytest.approx(needed, rel=0.5)


_real_space_needed = space_module.space_needed


def test_nothing_is_sampled_where_there_is_room_or_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("an input was read")

    monkeypatch.setattr(space_module, "_sample", never)
    _free(monkeypatch, 10**15)
    run_build(tmp_path / "dataset")
    _free(monkeypatch, 0)
    run_build("memory://space/dataset", DEMO_INPUTS[:1])


def test_damaged_input_that_is_to_be_left_out_stops_no_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.jsonl.zst"
    bad.write_bytes(Path(DEMO_INPUTS[0]).read_bytes()[:-100])
    _free(monkeypatch, 50_000_000)
    monkeypatch.setattr(space_module, "_MOST", 10**12)  # else nothing is estimated
    manifest = run_build(tmp_path / "dataset", [*DEMO_INPUTS, str(bad)], on_bad_input="skip").manifest
    assert [entry.url for entry in manifest.inputs if entry.skipped] == [str(bad)]
