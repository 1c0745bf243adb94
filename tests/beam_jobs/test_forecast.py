"""`--plan-only` foretells what a build then gives, and writes nothing."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backports import zstd

from beam_jobs import sample
from beam_jobs.build import forecast
from beam_jobs.forecast import Forecast, item_costs, passed_over, schedule
from beam_jobs.options import BuildOptions
from beam_jobs.parts import Kind, cut, part_cost
from beam_jobs.requests import build_requests
from beam_jobs.sample import text_per_stored
from pileshard.cli import main
from pileshard.format.storage import Storage
from tests.built import DEMO_INPUTS, TOKENIZER, document, run_build, write_input
from tests.format.validating import validator
from tests.paths import SHARED, needs_shared


def test_the_forecast_is_near_the_build_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "dataset"
    args = ["build", "--output", str(output), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64KB"]
    assert main([*args, "--plan-only", "--input", *DEMO_INPUTS]) == 0
    text = capsys.readouterr().out
    assert not output.exists()
    manifest = run_build(output).manifest
    # The sample is all there is: nothing is off.
    found = re.search(r"about ([0-9,]+) documents, ([0-9.]+) G tokens \(([0-9.]+) to ([0-9.]+)\)", text)
    assert found
    assert int(found[1].replace(",", "")) == manifest.documents
    assert found[2] == found[3] == found[4] == f"{manifest.tokens / 1e9:.3f}"
    assert re.search(r"time: .* to .*, with workers that do", text)
    assert re.search(r"requests, where storage counts them: about [0-9,]+ that read and [0-9,]+ that write", text)
    assert "GB are free there" in text


def test_the_forecast_in_json_fits_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["build", "--output", str(tmp_path / "out"), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64KB"]
    assert main([*args, "--plan-only", "--json", "--temp-url", str(tmp_path / "runs"), "--input", *DEMO_INPUTS]) == 0
    found = json.loads(capsys.readouterr().out)
    validator("forecast").validate(found)
    assert (found["inputs"], found["temp_url"]) == (3, str(tmp_path / "runs"))
    assert found["temp_bytes"] < found["shard_bytes"] < found["output_bytes"]
    blank = write_input(tmp_path / "blank.jsonl.zst", ["", ""])
    assert main([*args, "--plan-only", "--json", "--input", blank]) == 0
    found = json.loads(capsys.readouterr().out)
    validator("forecast").validate(found)
    assert found["documents"] is None
    assert not (tmp_path / "out").exists()
    assert main([*args, "--json", "--input", *DEMO_INPUTS]) == 2
    assert "manifest.json in its output" in capsys.readouterr().err


def options(tmp_path: Path, inputs: list[str], **more: Any) -> BuildOptions:
    given = {"tokenizer": str(TOKENIZER), "shard_bytes": 64_000, "workers": 2, "max_rejected": 1.0, **more}
    return BuildOptions(inputs=tuple(inputs), output=str(tmp_path / "none"), **given)


def test_inputs_that_are_sampled_in_part_give_a_range_that_holds_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs that compress differently, of long and short documents: what is foretold goes by what is stored."""
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 100_000)
    rng = np.random.default_rng(5)
    words = ["".join(chr(97 + letter) for letter in rng.integers(0, 26, 6)) for _ in range(3000)]
    inputs = []
    for number in range(10):
        chosen = words[: 300 * (number + 1)]
        lines = [
            document(" ".join(rng.choice(chosen, int(rng.integers(5, 60 * (number + 1))))), f"s{number % 3}")
            for _ in range(4000 // (number + 1))
        ]
        inputs.append(write_input(tmp_path / f"{number}.jsonl.zst", lines))
    found: Forecast = forecast(options(tmp_path, inputs))
    manifest = run_build(tmp_path / "dataset", inputs, shard_bytes=10**6, keep_runs=True).manifest
    assert found.error
    assert found.tokens
    assert 0 < found.error < 0.5
    assert abs(found.tokens - manifest.tokens) <= found.error * found.tokens
    assert found.shards
    assert found.output_bytes
    size = sum(shard.size for shard in manifest.shards)
    runs = sum(path.stat().st_size for path in (tmp_path / "dataset" / "_build").rglob("*.run"))
    assert size + runs <= found.output_bytes <= 1.5 * (size + runs)
    assert found.shard_bytes == pytest.approx(size, rel=0.1)


@needs_shared
def test_the_forecast_of_the_shared_corpus_is_true(tmp_path: Path) -> None:
    """33,072 documents of 22 sources, 78,303,494 tokens of `gpt2.json`: what a build counts (README)."""
    assert SHARED
    inputs = [str(path) for path in sorted((SHARED / "corpus").glob("0?.jsonl.zst"))]
    found = forecast(options(tmp_path, inputs, tokenizer=str(SHARED / "tokenizers" / "gpt2.json"), shard_bytes=10**9))
    assert found.tokens
    assert found.error
    assert abs(found.tokens - 78_303_494) <= found.error * found.tokens
    assert found.error < 0.1
    assert found.documents == pytest.approx(33_072, rel=0.1)
    assert found.shards == 22


@pytest.mark.parametrize("size", [1000, 900_000, 6_000_000])
def test_what_a_decompressor_reads_ahead_is_not_counted(size: int) -> None:
    rng = np.random.default_rng(1)
    text = b'{"text": "' + rng.integers(97, 105, 3 * size, dtype=np.uint8).tobytes()
    stored = zstd.compress(text)
    truth = len(text) / len(stored)
    assert text_per_stored(io.BytesIO(stored), "x", len(stored)) == pytest.approx(truth, rel=0.03)
    assert text_per_stored(io.BytesIO(text), "x", len(text)) == 1.0


@pytest.mark.parametrize("kind", [Kind("zstd", False), Kind("zstd", True), Kind("gzip", False), Kind("plain", True)])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_parts_cost_what_their_plan_takes_them_to_cost(kind: Kind, parts: int) -> None:
    one = cut(3_000_000, kind, parts)
    costs = item_costs(one, 3_000_000)
    assert len(costs) == parts
    if parts > 1:
        ratio = part_cost(3_000_000, kind, parts) / part_cost(1_000_000, kind, parts)
        assert costs[0] / item_costs(cut(1_000_000, kind, parts), 1_000_000)[0] == pytest.approx(ratio)
    assert sum(costs) >= 3_000_000
    assert passed_over(one, 3_000_000) >= 3_000_000


def test_the_time_of_workers_is_that_of_the_longest_and_of_all() -> None:
    assert schedule([5, 1, 1, 1], 2) == 5
    assert schedule([1] * 10, 3) == 4
    assert schedule([], 3) == 0


def test_requests_are_about_those_of_a_real_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read_range = Storage.read_range

    def counted(self: Storage, path: str, *args: Any, **options: Any) -> bytes:
        reads.append(path)
        return read_range(self, path, *args, **options)

    monkeypatch.setattr(Storage, "read_range", counted)
    output = f"memory://{tmp_path.name}-requests"
    manifest = run_build(output, run_bytes=1 << 16, keep_runs=True).manifest
    storage = Storage(output)
    runs = [path for path in storage.files("_build") if path.endswith(".run")]
    size = sum(storage.size(path) for path in runs)
    shards = len(manifest.shards)
    most, writes = build_requests(0, len(runs), size, sum(s.size for s in manifest.shards), shards, size)
    made = sum(path.endswith(".run") for path in reads)
    # Not every run has documents for every shard; the rest of `most` are receipts and lists.
    assert made <= most <= 4 * made
    assert writes >= len(runs) + 3 * shards


def test_what_a_build_refuses_at_its_start_is_not_foretold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "dataset"
    (tmp_path / "empty.jsonl.zst").touch()
    args = ["build", "--output", str(output), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64KB", "--workers", "1"]
    with_empty = [*args, "--input", str(tmp_path / "empty.jsonl.zst"), *DEMO_INPUTS]
    for command in ([*with_empty, "--plan-only"], with_empty):
        assert main(command) == 1
        assert "empty.jsonl.zst: the input is empty" in capsys.readouterr().err
        assert not list(output.rglob("*.json"))  # a mended input is no other build
    (tmp_path / "cut.jsonl.zst").write_bytes(Path(DEMO_INPUTS[0]).read_bytes()[:-100])
    assert main([*with_empty, str(tmp_path / "cut.jsonl.zst"), "--plan-only", "--json", "--on-bad-input", "skip"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["inputs"], found["documents"]) == (5, 763)
    run_build(output)
    assert main([*args, "--plan-only", "--seed", "5", "--input", *DEMO_INPUTS]) == 1
    assert "--seed was 0, now 5" in capsys.readouterr().err
    assert main([*args, "--plan-only", "--input", *DEMO_INPUTS]) == 0
