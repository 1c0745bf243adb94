"""Inputs from real bug reports, through the command line: each gives what it must, alone and beside good inputs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pileshard.cli import main
from tests.built import DEMO_INPUTS, TOKENIZER
from tests.paths import SHARED, needs_shared
from tests.records import documents

NASTY = SHARED / "nasty" if SHARED else None
EXPECTED: dict[str, dict[str, Any]] = json.loads((NASTY / "expect.json").read_text()) if NASTY else {}

# Of five lines without a fault (NaN, Infinity, 1e999, a long integer, a plain document) the list names four accepted
# and none rejected. An account that closes has five.
CORRECTED = {"nan.jsonl.zst": 5}

pytestmark = needs_shared


def build(output: Path, *inputs: Path | str, **more: str) -> int:
    args = ["build", "--output", str(output), "--tokenizer", str(TOKENIZER), "--workers", "1", "--max-rejected", "1"]
    for name, value in more.items():
        args += [f"--{name.replace('_', '-')}", value]
    return main([*args, "--input", *map(str, inputs)])


def accepted(name: str) -> int:
    return CORRECTED.get(name, EXPECTED[name]["accepted"])


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_each_gives_what_it_must(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert NASTY
    output = tmp_path / "dataset"
    code = build(output, NASTY / name)
    printed = capsys.readouterr()
    expected = EXPECTED[name]
    if expected["outcome"] == "source_error":
        assert code == 1
        assert name in printed.err
        assert "byte" in printed.err
        assert len(printed.err.strip().splitlines()) == 1
        assert not (output / "manifest.json").exists()
    else:
        assert code == 0, printed.err
        manifest = json.loads((output / "manifest.json").read_text())
        [account] = manifest["inputs"]
        assert (account["accepted"], account["rejected"]) == (accepted(name), expected["rejected"])
        assert account["lines"] == account["accepted"] + sum(account["rejected"].values()) + account["blank"]
        paths = (output / "rejected").glob("*.jsonl")
        listed = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        assert Counter(entry["reason"] for entry in listed) == Counter(expected["rejected"])
        assert ("no document was accepted" in caplog.text) == (accepted(name) == 0)
        assert main(["verify", str(output)]) == 0, capsys.readouterr().out


def test_all_together_beside_good_inputs_lose_and_invent_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert NASTY
    output = tmp_path / "dataset"
    slow = {"tiny_docs.jsonl.zst", "one_line_64MB_words.jsonl.zst", "rep_hex1M.jsonl.zst", "rep_spaces1M.jsonl.zst"}
    names = sorted(name for name in EXPECTED if name not in slow)
    inputs = [NASTY / name for name in names]
    assert build(output, *inputs, *DEMO_INPUTS) == 1
    assert build(output, *inputs, *DEMO_INPUTS, on_bad_input="skip", parts_per_input="2", workers="2") == 0
    manifest = json.loads((output / "manifest.json").read_text())
    found = Counter(number for _, _, number, _, _ in documents(output))
    for number, account in enumerate(manifest["inputs"]):
        name = Path(account["url"]).name
        if account["url"] in DEMO_INPUTS:
            assert found[number] == account["accepted"] > 100
        elif EXPECTED[name]["outcome"] == "source_error":
            assert name in account["skipped"]
            assert found[number] == 0
        else:
            assert account["skipped"] is None
            assert found[number] == account["accepted"] == accepted(name)
            assert account["rejected"] == EXPECTED[name]["rejected"]
    assert main(["verify", str(output)]) == 0


def test_texts_are_whole(tmp_path: Path) -> None:
    """Decoded, each text is what its line holds: nothing is split at other line ends, normalized or cut."""
    assert NASTY
    names = ["unicode_line_seps", "crlf", "bom", "meta_types", "special_tokens", "duplicate_keys", "normalization"]
    build(tmp_path / "dataset", *[NASTY / f"{name}.jsonl.zst" for name in names])
    manifest = json.loads((tmp_path / "dataset" / "manifest.json").read_text())
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    from backports import zstd

    for source, _, number, line, ids in documents(tmp_path / "dataset"):
        raw = zstd.decompress(Path(manifest["inputs"][number]["url"]).read_bytes()).split(b"\n")[line - 1]
        value = json.loads(raw.lstrip(b"\xef\xbb\xbf"))
        assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == value["text"]
        meta = value.get("meta")
        name = meta.get("pile_set_name") if isinstance(meta, dict) else None
        assert source == (name if isinstance(name, str) and name else "unknown")
    assert not [path for path in (tmp_path / "dataset" / "shards").iterdir() if ".." in path.name[:2]]
