"""`--plan-only` foretells what a build then gives, and writes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pileshard.cli import main
from tests.built import DEMO_INPUTS, TOKENIZER, run_build, write_input
from tests.format.validating import validator


def test_the_forecast_is_near_the_build_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "dataset"
    args = ["build", "--output", str(output), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64KB"]
    assert main([*args, "--plan-only", "--input", *DEMO_INPUTS]) == 0
    text = capsys.readouterr().out
    assert not output.exists()
    manifest = run_build(output).manifest
    found = re.search(r"about ([0-9,]+) documents", text)
    assert found
    assert int(found[1].replace(",", "")) == pytest.approx(manifest.documents, rel=0.1)
    assert "GB are free there" in text


def test_the_forecast_in_json_fits_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["build", "--output", str(tmp_path / "out"), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64KB"]
    assert main([*args, "--plan-only", "--json", "--temp-url", str(tmp_path / "runs"), "--input", *DEMO_INPUTS]) == 0
    found = json.loads(capsys.readouterr().out)
    validator("forecast").validate(found)
    assert (found["inputs"], found["temp_url"]) == (3, str(tmp_path / "runs"))
    assert found["temp_bytes"] < found["output_bytes"] == found["shard_bytes"]
    blank = write_input(tmp_path / "blank.jsonl.zst", ["", ""])
    assert main([*args, "--plan-only", "--json", "--input", blank]) == 0
    found = json.loads(capsys.readouterr().out)
    validator("forecast").validate(found)
    assert found["documents"] is None
    assert not (tmp_path / "out").exists()
    assert main([*args, "--json", "--input", *DEMO_INPUTS]) == 2
    assert "manifest.json in its output" in capsys.readouterr().err
