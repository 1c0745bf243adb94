"""`--plan-only` foretells what a build then gives, and writes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pileshard.cli import main
from tests.built import DEMO_INPUTS, TOKENIZER, run_build


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
