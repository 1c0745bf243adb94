"""A repair, a build and another repair on one dataset: one of them works, the others are refused and touch nothing."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

import beam_jobs.lease as lease_module
from beam_jobs.lease import DRIVERS, Driver, Lease, drivers, path_of, this_driver
from beam_jobs.repair import RepairOptions, repair
from pileshard.audit.verify import Audit, verify
from pileshard.cli import main
from pileshard.errors import BuildError
from pileshard.format.storage import Storage
from tests.built import DEMO_INPUTS, run_build
from tests.servers.ranges import RangeHandler

#: A repair that says when it is about to make files again, and waits for a word.
_WAITS = (
    "import sys\nfrom beam_jobs.repair import _Repair\nreal = _Repair._files\n"
    "def wait(*arguments):\n    print('working', flush=True)\n    sys.stdin.read(1)\n    real(*arguments)\n"
    "_Repair._files = wait\nfrom pileshard.cli import entry\nentry()\n"
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "dataset"
    run_build(root, DEMO_INPUTS[:1])
    return root


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """A copy with a shard that is damaged."""
    root = tmp_path / "dataset"
    shutil.copytree(sound, root)
    shard = next(iter(sorted((root / "shards").rglob("*.tfrecord"))))
    shard.write_bytes(shard.read_bytes()[:-5])
    return root


def files(root: Path) -> dict[str, bytes]:
    """Every file but what says who works."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file() and "drivers" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def mend(root: Path) -> bool:
    return repair(RepairOptions(url=str(root), workers=1)).sound


def waiting_repair(root: Path) -> subprocess.Popen[str]:
    """A process that repairs, when it has come to its work."""
    command = [sys.executable, "-c", _WAITS, "repair", str(root), "--workers", "1"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


@pytest.mark.parametrize("command", ["build", "repair"])
def test_repair_is_refused_while_another_command_works(
    damaged: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(damaged)
    with Lease(Storage(str(damaged)), command):
        assert main(["repair", str(damaged), "--workers", "1"]) == 1
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1)
        assert f"`pileshard {command}` on " in told.err
        assert f"process {os.getpid()} works on this output; wait until it has ended" in told.err
        assert files(damaged) == before
    assert mend(damaged)
    assert verify(str(damaged)).sound
    assert not (damaged / DRIVERS).exists()


def test_other_commands_are_refused_while_a_repair_works(
    damaged: Path, sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = waiting_repair(damaged)
    try:
        works = rf"`pileshard repair` on .*, process {process.pid} works on this output"
        before = files(damaged)
        with pytest.raises(BuildError, match=works):
            mend(damaged)
        (damaged / "manifest.json").rename(damaged / "away")  # or else a build has nothing to do
        with pytest.raises(BuildError, match=works):
            run_build(damaged, DEMO_INPUTS[:1])
        (damaged / "away").rename(damaged / "manifest.json")
        assert main(["clean", str(damaged)]) == 1
        assert "`pileshard repair` on " in capsys.readouterr().err
        assert files(damaged) == before
        out, _ = process.communicate("\n", timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "1 of 1 files repaired" in out
    assert files(damaged) == files(sound)
    assert not (damaged / DRIVERS).exists()


@pytest.mark.parametrize("then", [mend, lambda root: run_build(root, DEMO_INPUTS[:1])], ids=["repair", "build"])
def test_repair_that_was_killed_is_no_hindrance(damaged: Path, sound: Path, then: Callable[[Path], Any]) -> None:
    process = waiting_repair(damaged)
    process.kill()
    process.wait()
    assert [driver.command for driver in drivers(Storage(str(damaged)))] == ["repair"]
    if then is not mend:
        (damaged / "manifest.json").unlink()
        shutil.rmtree(damaged / "shards")
    assert then(damaged)
    assert drivers(Storage(str(damaged))) == []
    shards = {path: data for path, data in files(sound).items() if path.startswith("shards/")}
    assert {path: data for path, data in files(damaged).items() if path.startswith("shards/")} == shards


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_EVERY_LOCAL", 0.1)
    monkeypatch.setattr(lease_module, "_SILENT_LOCAL", 1.0)


def _leave(root: Path) -> Driver:
    """The file of a repair on another host, as it lies there when that one was killed."""
    driver = msgspec.structs.replace(this_driver("repair"), host="elsewhere", running=True)
    Storage(str(root)).write_bytes(path_of(driver), msgspec.json.encode(driver).ljust(512, b"\0"))
    return driver


@pytest.mark.usefixtures("_quick")
def test_repair_that_was_killed_on_another_host_is_waited_for_once(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (damaged / "manifest.json").unlink()
    _leave(damaged)
    _leave(damaged / "_build" / "rebuild")  # it was building again what the manifest is to say
    with caplog.at_level(logging.WARNING, logger="pileshard.build"):
        assert mend(damaged)
    waits = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert len(waits) == 1
    assert "`pileshard repair` on elsewhere" in waits[0]
    assert verify(str(damaged)).sound


@pytest.mark.usefixtures("_quick")
def test_repair_whose_place_was_taken_stops_and_touches_nothing(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases: list[Lease] = []
    enter, run = Lease.__enter__, Audit.run

    def entered(lease: Lease) -> Lease:
        leases.append(lease)
        return enter(lease)

    def slept(audit: Audit, engine: Any = None) -> Any:
        report = run(audit, engine)
        audit.storage.remove_tree(DRIVERS)
        deadline = time.monotonic() + 60
        while not leases[0].lost and time.monotonic() < deadline:
            time.sleep(0.02)
        return report

    monkeypatch.setattr(Lease, "__enter__", entered)
    monkeypatch.setattr(Audit, "run", slept)
    (damaged / "_build" / "repair").mkdir()
    (damaged / "_build" / "repair" / "work of another").touch()
    before = files(damaged)
    with pytest.raises(BuildError, match="another one took its place"):
        mend(damaged)
    assert files(damaged) == before


def test_nothing_is_left_where_there_is_nothing_to_repair(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "none"
    assert not mend(root)
    assert not root.exists()
    root.mkdir()
    assert not mend(root)
    assert os.listdir(root) == []
    shutil.copytree(sound, tmp_path / "copy", ignore=shutil.ignore_patterns("_build"))
    assert mend(tmp_path / "copy")
    assert not (tmp_path / "copy" / "_build").exists()


def test_repair_of_what_takes_no_files_is_refused_in_a_sentence(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, ranges=True, directory=str(sound)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        assert main(["repair", f"http://127.0.0.1:{server.server_port}"]) == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    told = capsys.readouterr().err
    assert "this storage takes no files, so nothing can be made again there" in told
    assert told.count("\n") == 1
