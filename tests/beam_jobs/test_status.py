"""`pileshard status`: told from the files of an output, at any time of a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import beam_jobs.build as driver
from beam_jobs.progress import Heartbeat
from pileshard.cli import main
from pileshard.errors import BuildError
from pileshard.format.storage import Storage
from tests.built import run_build


def test_nothing_unfinished_and_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "dataset"
    assert main(["status", str(output)]) == 1
    assert "holds no build" in capsys.readouterr().err

    def stop(*_: Any) -> None:
        raise BuildError("stopped between the stages")

    monkeypatch.setattr(driver, "plan_groups", stop)
    with pytest.raises(BuildError):
        run_build(output)
    monkeypatch.undo()
    assert main(["status", str(output)]) == 0
    assert "tokenize: 100%, 3 of 3 items" in capsys.readouterr().out
    run_build(output)
    assert main(["status", str(output)]) == 0
    assert capsys.readouterr().out.startswith("complete: ")


def test_a_heartbeat_appears_while_an_item_is_in_work_and_goes_with_it(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with Heartbeat(storage, "tokenize-00000") as heartbeat:
        heartbeat._last -= 3600
        heartbeat.beat(10, 2, 30)
        [path] = storage.files("_build/progress")
        assert "tokenize-00000" in path
    assert not storage.files("_build/progress")
