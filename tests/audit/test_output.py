"""Where reports go: a file whole or not at all, told early if it cannot be; and an output that nobody reads."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import pileshard
from pileshard.cli import main
from pileshard.commands import options
from pileshard.commands.options import write_report
from tests.data.golden.make_golden import HERE

DATASET = HERE / "dataset"


@pytest.mark.parametrize("command", ["verify", "repair", "stats"])
def test_target_that_cannot_be_written_is_refused_before_anything_is_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for target in (tmp_path / "no" / "file", tmp_path, ""):
        assert main([command, str(tmp_path / "none"), "--json", str(target)]) == 2
        told = capsys.readouterr()
        assert "--json" in told.err
        assert told.err.count("\n") == 1
        assert not told.out


def test_report_that_fails_to_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"old")

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(options.os, "replace", full)
        with pytest.raises(OSError, match=r"report\.json"):
            write_report(str(target), b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.json"]
    write_report(str(target), b"new")
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["report.json"]


def test_report_goes_through_links_and_into_pipes(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    write_report(str(link), b"new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    write_report("/dev/null", b"new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_has_seen_enough_ends_the_command_quietly(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pileshard", "inspect", str(DATASET), "--find"]
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=300)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_full_disk_behind_the_output_is_told_in_one_sentence() -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "pileshard", "inspect", str(DATASET), "--find"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, timeout=300)
    assert (ended.returncode, ended.stderr) == (1, b"pileshard inspect: No space left on device\n")


def test_command_that_repairs_can_be_pasted_whatever_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a dataset; of (mine)"
    shutil.copytree(DATASET, root)
    shard = next(root.glob("shards/*/train-*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    assert main(["verify", str(root)]) == 1
    assert f"`pileshard repair '{root}'`" in capsys.readouterr().out
    with pytest.raises(pileshard.DamageError, match=r"run `pileshard repair '.*; of \(mine\)'`"):
        list(pileshard.numpy_dataset(path=root, seq_len=1, batch_size=1))


@pytest.mark.parametrize("command", ["verify", "repair", "stats", "inspect", "clean"])
def test_empty_url_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, ""])
    assert "the URL is empty" in capsys.readouterr().err


@pytest.mark.parametrize("root", ["none", "empty", "other", "file", "file/below", "memory://none"])
def test_root_without_a_dataset_is_not_to_be_repaired(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    (tmp_path / "file").touch()
    url = root if "://" in root else str(tmp_path / root)
    assert main(["verify", url]) == 1
    told = capsys.readouterr().out
    assert "give the root of a dataset" in told
    assert "repair" not in told
    nothing = root not in ("other", "file", "file/below")
    assert (f"[manifest] there is nothing at {url} (give" in told) == nothing
    assert ("not found (no dataset there)" in told) == (not nothing)


def test_manifest_that_storage_does_not_give_is_not_to_be_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").mkdir()
    assert main(["verify", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "see to it that it can be read" in told
    assert "repair" not in told
