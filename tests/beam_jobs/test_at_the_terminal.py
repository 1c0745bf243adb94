"""What a user sees of builds that go wrong: one sentence, whatever the number of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pileshard.audit.tables import printable
from pileshard.cli import main
from tests.built import DEMO_INPUTS, TOKENIZER, document, run_build, shard_hashes, write_input
from tests.records import documents


def command(output: Path, inputs: list[str], *more: str) -> list[str]:
    base = [sys.executable, "-m", "pileshard", "build", "--output", str(output), "--tokenizer", str(TOKENIZER)]
    return [*base, "--max-rejected", "1", "--shard-bytes", "64KB", *more, "--input", *inputs]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_damaged_input_is_told_in_one_line(tmp_path: Path, workers: str) -> None:
    good = write_input(tmp_path / "good.jsonl.zst", [document(f"text {n}") for n in range(50)])
    bad = tmp_path / "bad.jsonl.zst"
    bad.write_bytes(Path(good).read_bytes()[:-10])
    done = subprocess.run(
        command(tmp_path / "dataset", [good, str(bad)], "--workers", workers),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    # A stage that takes more than some seconds tells how far it is, too.
    told = [line for line in done.stderr.strip().splitlines() if not line.startswith("tokenize: ")]
    assert len(told) == 1, done.stderr
    assert "bad.jsonl.zst" in done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_says_how_to_go_on(tmp_path: Path, workers: str, number: int) -> None:
    more = ["--workers", workers, "--run-bytes", "100000", "--parts-per-input", "9"]
    process = subprocess.Popen(
        command(tmp_path / "dataset", DEMO_INPUTS, *more),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells have jobs behind them ignore it
    )
    while process.poll() is None and not (tmp_path / "dataset" / "_build" / "stage.json").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, number)
    _, printed = process.communicate(timeout=60)
    if process.returncode:
        assert printed.strip().splitlines()[-1].endswith("interrupted; the same command continues it"), printed
        assert "Traceback" not in printed


def test_names_that_look_like_chains_are_names(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps(document("wrong")) + "\n")
    (tmp_path / "a::b.jsonl").write_text(json.dumps(document("right")) + "\n")
    run_build(tmp_path / "c::d", [str(tmp_path / "*.jsonl")])
    assert (tmp_path / "c::d" / "manifest.json").exists()
    assert not (tmp_path / "c").exists()
    run_build(tmp_path / "other", [str(tmp_path / "a::b.jsonl")])
    run_build(tmp_path / "wrong", [str(tmp_path / "a")])
    assert shard_hashes(tmp_path / "c::d") == shard_hashes(tmp_path / "other") != shard_hashes(tmp_path / "wrong")


def test_two_drivers_on_one_output_end_in_the_same_bytes(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            command(tmp_path / "dataset", DEMO_INPUTS, "--workers", "1", "--run-bytes", "100000"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert 0 in [process.returncode for process in both], said
    assert not any("Traceback" in text for text in said)
    run_build(tmp_path / "alone")
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(tmp_path / "alone")


def test_a_mistyped_beam_option_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = command(tmp_path / "dataset", DEMO_INPUTS)[3:]
    assert main([*args, "--", "--runer=FlinkRunner"]) == 2
    assert "--runer=FlinkRunner" in capsys.readouterr().err


def test_source_names_cannot_draw_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[31mRED\nfake  train 1"
    path = write_input(tmp_path / "in.jsonl.zst", [document("text", name), document("text", "x" * 5000)])
    assert main(command(tmp_path / "dataset", [path], "--workers", "1")[3:]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 150
    assert {source for source, *_ in documents(tmp_path / "dataset")} == {name, "x" * 5000}
    assert printable("Pile-CC") == "Pile-CC"
