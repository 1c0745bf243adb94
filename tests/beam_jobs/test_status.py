"""`pileshard status`: told from the files of an output, at any time of a build, from any machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import beam_jobs.build as driver
from beam_jobs.job import JOB, SEEN, STAGE
from beam_jobs.lease import DRIVERS, Driver, path_of, this_driver
from beam_jobs.progress import Beat, Heartbeat, Stage, StageItem, beat_seconds, read_beats
from beam_jobs.status import Status, status, status_lines
from pileshard.cli import main
from pileshard.errors import BuildError
from pileshard.format import schema
from pileshard.format.storage import Storage
from tests.built import DEMO_INPUTS, TOKENIZER, run_build


def stop(*_: Any) -> None:
    raise BuildError("stopped between the stages")


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """A build that stopped after its tokenize stage."""
    with monkeypatch.context() as patch:
        patch.setattr(driver, "plan_groups", stop)
        with pytest.raises(BuildError):
            run_build(tmp_path / "dataset")
    return Storage(str(tmp_path / "dataset"))


def begin(storage: Storage, items: list[str], size: int = 100, age: float = 0.0) -> None:
    """A stage as a driver leaves it, written some seconds ago."""
    began = time.time() - age
    stage = Stage(name="merge", began=began, items=[StageItem(name, f"_build/receipts/{name}", size) for name in items])
    storage.write_bytes(STAGE, msgspec.json.encode(stage))
    storage.remove(SEEN)
    os.utime(storage.path(STAGE), (began, began))


def beat(storage: Storage, item: str, age: float, **more: Any) -> None:
    """A heartbeat that was written some seconds ago."""
    given: dict[str, Any] = {
        "done_bytes": 50.0,
        "documents": 5,
        "tokens": 70,
        "host": "node7",
        "pid": 4,
        "seconds": 20.0,
    }
    told = Beat(item=item, time=time.time() - age, **{**given, **more})
    path = f"_build/progress/{item}-{told.host}-{told.pid}.json"
    storage.write_bytes(path, msgspec.json.encode(told))
    written = time.time() - age
    os.utime(storage.path(path), (written, written))


def drive(storage: Storage, **more: Any) -> Driver:
    """A driver that runs: this process, or one on another host."""
    told = msgspec.structs.replace(this_driver("build"), running=True, **more)
    storage.write_bytes(path_of(told), msgspec.json.encode(told))
    return told


def test_nothing_unfinished_and_complete(
    tmp_path: Path, unfinished: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path / "nothing")]) == 1
    assert "holds no build" in capsys.readouterr().err
    assert main(["status", unfinished.url]) == 0
    shown = capsys.readouterr().out
    assert "tokenize: 100%, 3 of 3 items" in shown
    assert "the same `pileshard build` command continues it" in shown
    run_build(unfinished.url)
    for watch in (["--watch", unfinished.url], [unfinished.url, "--watch"], ["--watch", "2", unfinished.url]):
        assert main(["status", *watch]) == 0
        assert capsys.readouterr().out.startswith("complete: ")
    for wrong in (["--watch"], ["--watch", "0", unfinished.url]):
        assert main(["status", *wrong]) == 2
        capsys.readouterr()
    assert main(["status", unfinished.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, schema.schema("status"))
    assert found["seconds"].keys() >= {"tokenize", "merge"}
    assert not Storage(unfinished.url).exists(SEEN)


def test_a_heartbeat_appears_while_an_item_is_in_work_and_goes_with_it(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with Heartbeat(storage, "tokenize-00000") as heartbeat:
        heartbeat.beat(10, 2, 30)
        deadline = time.monotonic() + 60
        while not read_beats(storage) and time.monotonic() < deadline:
            time.sleep(0.05)
        [found] = read_beats(storage)
        assert (found.item, found.done_bytes, found.documents, found.tokens) == ("tokenize-00000", 10, 2, 30)
        assert found.pid == os.getpid()
    assert not storage.files("_build/progress")


@pytest.mark.parametrize(("at_once", "most"), [(1, 1.0), (16, 16.0), (1000, 100.0), (4096, 100.0), (5900, 100.0)])
def test_however_many_workers_write_about_a_hundred_heartbeats_a_second(at_once: int, most: float) -> None:
    storage = Storage("/nowhere")
    every = Heartbeat(storage, "item", beat_seconds(at_once)).every
    assert 1 <= every <= 60
    assert at_once / every <= most + 1e-9


def test_an_item_in_work_says_how_far_it_is_where_and_for_how_long(unfinished: Storage) -> None:
    begin(unfinished, ["merge-0", "merge-1"])
    drive(unfinished)
    beat(unfinished, "merge-1", 2, retries=3)
    found = status(unfinished)
    assert found.state == "running"
    assert found.stage
    [item] = found.stage.working
    assert (item.item, item.host, item.share, item.seconds, item.retries) == ("merge-1", "node7", 0.5, 20.0, 3)
    assert item.seconds_left == 20.0
    assert not item.silent
    shown = "\n".join(status_lines(found))
    assert f"`pileshard build` works on it on {socket.gethostname()}, process {os.getpid()}" in shown
    assert "merge-1 (50% in 20 s, on node7)" in shown
    jsonschema.validate(msgspec.to_builtins(found), schema.schema("status"))


def test_a_worker_that_died_is_told_from_those_that_live(unfinished: Storage) -> None:
    begin(unfinished, ["merge-0", "merge-1", "merge-2"])
    drive(unfinished)
    beat(unfinished, "merge-0", 90)
    beat(unfinished, "merge-1", 1)
    beat(unfinished, "merge-2", 90, every=60.0)
    found = status(unfinished)
    assert found.state == "running"
    assert found.stage
    silent = {item.item: item.silent for item in found.stage.working}
    assert silent == {"merge-0": True, "merge-1": False, "merge-2": False}
    shown = "\n".join(status_lines(found))
    assert "1 without a sign: merge-0 (50% in 20 s, on node7, no sign of it for " in shown


@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
def test_clocks_that_differ_make_nobody_dead_or_alive(
    unfinished: Storage, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """The machine that looks is two hours before or behind: it waits for a sign, and sees one, or none."""
    begin(unfinished, ["merge-0", "merge-1"])
    told = drive(unfinished, host="head")
    beat(unfinished, "merge-0", 200)
    beat(unfinished, "merge-1", 1)
    wall, sleep = time.time, time.sleep
    lives = True

    def work(seconds: float) -> None:
        if lives:
            later = msgspec.structs.replace(told, beats=told.beats + 1)
            unfinished.write_bytes(path_of(told), msgspec.json.encode(later))
        sleep(min(seconds, 0.01))

    monkeypatch.setattr(time, "time", lambda: wall() + skew)
    monkeypatch.setattr(time, "sleep", work)
    found = status(unfinished, patience=60)
    assert found.state == "running"
    assert found.stage
    assert {item.item: item.silent for item in found.stage.working} == {"merge-0": True, "merge-1": False}
    lives = False
    found = status(unfinished, patience=0.2)
    assert found.state == "unfinished"
    assert found.stage
    assert all(item.silent for item in found.stage.working)
    assert "gives no sign" in "\n".join(status_lines(found))


def test_a_build_that_failed_or_was_stopped_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import beam_jobs.pipeline as pipeline

    def fail(*_: Any) -> None:
        raise BuildError("the disk of node7 is full")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    output = str(tmp_path / "dataset")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "run_items", fail)
        with pytest.raises(BuildError, match="node7"):
            run_build(output)
    found = status(Storage(output))
    assert found.state == "failed"
    assert "the disk of node7 is full" in status_lines(found)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "run_items", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_build(output)
    assert status(Storage(output)).state == "stopped"


def test_a_driver_that_was_killed_is_missed_and_its_build_continues(tmp_path: Path) -> None:
    output = tmp_path / "dataset"
    # One that stands still at the begin of its first stage, so that it can be looked at.
    hold = "import time; from beam_jobs import pipeline; pipeline.run_items = lambda *_: time.sleep(600); "
    run = f"from pileshard.cli import main; main(['build', '--output', {str(output)!r}, '--tokenizer', "
    run += f"{str(TOKENIZER)!r}, '--shard-bytes', '64KB', '--max-rejected', '1', '--input', *{DEMO_INPUTS!r}])"
    process = subprocess.Popen([sys.executable, "-c", hold + run])
    try:
        storage = Storage(str(output))
        deadline = time.monotonic() + 120
        while not storage.exists(SEEN) and time.monotonic() < deadline:
            time.sleep(0.1)
        found = status(storage)
        assert (found.state, found.driver and found.driver.pid) == ("running", process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = status(storage)
    assert found.state == "unfinished"
    assert found.driver
    assert not found.driver.lives
    assert storage.files(DRIVERS)
    run_build(output)
    assert status(storage).state == "complete"


def test_a_record_that_is_none_is_named(unfinished: Storage) -> None:
    unfinished.write_bytes(JOB, b"[]")
    with pytest.raises(BuildError, match=r"_build/job\.json: damaged"):
        status(unfinished)


def test_the_json_of_an_older_stage_is_not_taken_for_the_new_one(unfinished: Storage) -> None:
    seen = unfinished.read_bytes(SEEN)
    begin(unfinished, ["merge-0"])
    unfinished.write_bytes(SEEN, seen)
    found: Status = status(unfinished)
    assert found.stage
    assert (found.stage.name, found.stage.items, found.stage.tokens) == ("merge", 1, None)
