"""Builds as a user gives them to an engine, and what came of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.built import DEMO_INPUTS, TOKENIZER
from tests.servers.engines import WAIT_SECONDS, RunningEngine

#: Of the demo's corpus: some twenty items, small runs.
SMALL = ("--tokenizer", str(TOKENIZER), "--shard-bytes", "64000", "--max-rejected", "1")
SMALL += ("--run-bytes", "100000", "--parts-per-input", "4")


def command(
    engine: RunningEngine, output: Path | str, inputs: Sequence[str] = DEMO_INPUTS, options: Sequence[str] = SMALL
) -> list[str]:
    """The command line of a build on an engine."""
    base = [sys.executable, "-m", "pileshard", "build", "--output", str(output), *options, "--workers", "2"]
    return [*base, "--input", *inputs, *(["--", *engine.beam_args] if engine.beam_args else [])]


def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=600)


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Starts a command."""
    return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def await_receipts(driver: subprocess.Popen[str], output: Path, count: int) -> None:
    """Waits until some items of a build are done, or its driver has ended."""
    deadline = time.monotonic() + WAIT_SECONDS
    while driver.poll() is None and time.monotonic() < deadline:
        if (output / "_build" / "stage.json").exists() and len([*output.glob("_build/receipts/*")]) >= count:
            return
        time.sleep(0.005)


def account(output: Path) -> dict[str, Any]:
    """The manifest without what tells how it was built."""
    manifest: dict[str, Any] = json.loads((output / "manifest.json").read_text())
    return {name: value for name, value in manifest.items() if name not in ("build", "manifest_sha256")}


def only_sentence(said: str) -> str:
    """The one line, the last, in which a failed build tells why; those before it tell of its progress."""
    lines = said.strip().splitlines()
    assert lines, "nothing was said"
    assert [line for line in lines if line.startswith("pileshard build: ")] == lines[-1:], said
    assert "Traceback" not in said, said
    assert "Exception" not in said, said
    return lines[-1]
