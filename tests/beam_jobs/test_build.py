"""Builds end to end: what goes in comes out once, whole, in order, and the same however it was made."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
from tokenizers import Tokenizer

from beam_jobs.options import parse_size
from pileshard.audit.verify import verify
from pileshard.errors import BuildError, OptionError, PileshardError
from pileshard.format.identity import document_keys
from pileshard.format.storage import Storage
from tests.built import DEMO_INPUTS, TOKENIZER, document, run_build, shard_hashes, write_input
from tests.records import documents

EOD = 0  # of the demo's tokenizer


def reference_ids(text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids


def command(output: Path, *more: str, inputs: list[str] = DEMO_INPUTS) -> list[str]:
    base = [sys.executable, "-m", "beam_jobs.build", "--output", str(output), "--tokenizer", str(TOKENIZER)]
    return [*base, "--shard-bytes", "64KB", "--max-rejected", "1", *more, "--input", *inputs]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's corpus, built in one process."""
    root = tmp_path_factory.mktemp("demo") / "dataset"
    run_build(root)
    return root


def demo_lines() -> dict[tuple[int, int], dict[str, Any]]:
    """Every line of the demo's inputs that is a document, by input and line."""
    from backports import zstd

    found = {}
    for number, path in enumerate(DEMO_INPUTS):
        for line, raw in enumerate(zstd.decompress(Path(path).read_bytes()).split(b"\n"), start=1):
            try:
                value = json.loads(raw)
            except ValueError:
                continue
            if "text" in value:
                found[number, line] = value
    return found


def test_every_document_is_there_once_with_the_ids_of_the_reference(demo: Path) -> None:
    wanted = demo_lines()
    found = documents(demo)
    assert Counter((number, line) for _, _, number, line, _ in found) == Counter(wanted.keys())
    for source, split, number, line, ids in found:
        value = wanted[number, line]
        assert source == value["meta"]["pile_set_name"]
        assert split == "train"
        assert ids == [*reference_ids(value["text"]), EOD]


def test_documents_are_in_key_order_and_shards_of_one_source_are_of_one_size(demo: Path) -> None:
    manifest = json.loads((demo / "manifest.json").read_text())
    by_source: dict[str, list[int]] = {}
    for source, _, number, line, _ in documents(demo):
        by_source.setdefault(source, []).append(int(document_keys(0, number, [line])[0]))
    for keys in by_source.values():
        assert keys == sorted(set(keys))
    several = {s["name"] for s in manifest["sources"] if s["shards"] > 1}
    assert several
    for name in several:
        sizes = [shard["size"] for shard in manifest["shards"] if shard["source"] == name]
        assert max(sizes) < 1.25 * min(sizes)  # documents here are a tenth of a shard


def test_the_account_closes_and_rejected_lines_are_listed(demo: Path) -> None:
    manifest = json.loads((demo / "manifest.json").read_text())
    account = manifest["inputs"][1]
    assert account["rejected"] == {"invalid_json": 1, "no_text": 1}
    assert account["blank"] == 1
    assert account["lines"] == account["accepted"] + 3
    listed = [json.loads(line) for line in (demo / account["rejected_path"]).read_text().splitlines()]
    assert [(entry["line"], entry["reason"]) for entry in listed] == [(11, "invalid_json"), (13, "no_text")]
    assert listed[0]["input"] == account["url"] == DEMO_INPUTS[1]
    assert listed[0]["excerpt"] == '{"text": "cut of'
    from backports import zstd

    stream = zstd.decompress(Path(DEMO_INPUTS[1]).read_bytes())
    assert stream[listed[0]["offset"] :].startswith(b'{"text": "cut of\n')
    assert verify(str(demo)).sound


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"parts_per_input": 3},
        {"run_bytes": 70_000},
        {"run_bytes": 100_000, "parts_per_input": 2, "workers": 2},
        {"engine": "reference"},
        {"keep_runs": True},
    ],
    ids=str,
)
def test_the_bytes_do_not_depend_on_how_the_work_is_done(demo: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    run_build(tmp_path / "again", **options)
    assert shard_hashes(tmp_path / "again") == shard_hashes(demo)


def test_the_bytes_do_not_depend_on_the_order_of_inputs_on_the_command_line(demo: Path, tmp_path: Path) -> None:
    run_build(tmp_path / "again", DEMO_INPUTS[::-1])
    assert shard_hashes(tmp_path / "again") == shard_hashes(demo)


def test_runs_and_shards_on_other_file_systems_are_the_same(demo: Path, tmp_path: Path) -> None:
    run_build("memory://here/dataset", temp_url="memory://there")
    remote = fsspec.filesystem("memory")
    for path, digest in shard_hashes(demo).items():
        target = tmp_path / "copy" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(remote.cat_file(f"/here/dataset/{path}"))
        assert shard_hashes(tmp_path / "copy")[path] == digest
    assert not remote.exists("/there/_build") or not remote.find("/there/_build")
    assert verify("memory://here/dataset").sound
    remote.rm("/here", recursive=True)


def _files_below(root: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(root))


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 4 else [pytest.mark.slow]) for n in range(20)])
def test_killed_build_resumes_to_the_same_bytes(demo: Path, tmp_path: Path, seed: int) -> None:
    """`kill -9` when a random number of files has appeared; then the same command again."""
    output = tmp_path / "dataset"
    rng = random.Random(seed)
    workers = str(rng.choice([1, 2]))
    # 3 inputs in 2 parts and some 10 shards leave about 40 files on the way.
    more = ["--workers", workers, "--run-bytes", "100000", "--parts-per-input", "2"]
    for _ in range(2):
        enough = rng.randint(2, 38)
        process = subprocess.Popen(
            command(output, *more), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while process.poll() is None and _files_below(output) < enough:
                time.sleep(0.005)
            time.sleep(rng.random() * 0.05)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    done = subprocess.run(command(output, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shard_hashes(output) == shard_hashes(demo)
    assert verify(str(output)).sound
    assert os.listdir(output / "_build") == ["job.json"]


@pytest.mark.parametrize(
    "delay", [pytest.param(0.0, marks=pytest.mark.slow), 0.3, pytest.param(0.8, marks=pytest.mark.slow)]
)
def test_a_killed_worker_stops_the_build_with_a_sentence_and_it_continues(
    demo: Path, tmp_path: Path, delay: float
) -> None:
    output = tmp_path / "dataset"
    more = ["--workers", "2", "--run-bytes", "100000", "--parts-per-input", "8"]
    process = subprocess.Popen(command(output, *more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    workers: list[psutil.Process] = []
    while process.poll() is None and not workers:
        with contextlib.suppress(psutil.Error):  # a child that ended while it was looked at
            children = psutil.Process(process.pid).children()
            workers = [child for child in children if "beam_jobs.local_worker" in " ".join(child.cmdline())]
        time.sleep(0.01)
    time.sleep(delay)
    workers[0].kill()
    _, printed = process.communicate(timeout=120)
    if process.returncode:
        said = [line for line in printed.splitlines() if line.startswith("pileshard build:")]
        assert len(said) == 1
        assert "a worker process died" in said[0]
        assert "Traceback" not in printed
    done = subprocess.run(command(output, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shard_hashes(output) == shard_hashes(demo)


def test_the_same_command_on_a_complete_dataset_does_nothing(demo: Path, tmp_path: Path) -> None:
    output = tmp_path / "dataset"
    shutil.copytree(demo, output)
    before = (output / "manifest.json").read_bytes()
    assert run_build(output).seconds == {}
    assert (output / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 1}, "--seed was 0, now 1"),
        ({"shard_bytes": 70_000}, "--shard-bytes was 64000, now 70000"),
        ({"validation": 0.1}, "--validation"),
        ({"dedup": "exact"}, "--dedup"),
        ({"special_tokens": "reject"}, "--special-tokens"),
        ({"source_key": "meta.other"}, "--source-key"),
        ({"inputs": DEMO_INPUTS[:2]}, "is not among the inputs now"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_option_in_the_same_output_is_refused(demo: Path, options: dict[str, Any], named: str) -> None:
    before = shard_hashes(demo)
    with pytest.raises(BuildError, match=named):
        run_build(demo, **options)
    assert shard_hashes(demo) == before


def test_an_unfinished_build_refuses_another_option_too(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl.zst"
    bad.write_bytes(Path(write_input(tmp_path / "good.jsonl.zst", [document("text")])).read_bytes()[:-3])
    inputs = [str(bad), str(tmp_path / "good.jsonl.zst")]
    with pytest.raises(PileshardError, match=r"bad\.jsonl\.zst"):
        run_build(tmp_path / "dataset", inputs)
    with pytest.raises(BuildError, match="--seed was 0, now 5"):
        run_build(tmp_path / "dataset", inputs, seed=5)


def test_a_changed_input_is_refused_and_a_touched_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(json.dumps(document("some text")) + "\n")
    run_build(tmp_path / "dataset", [str(path)])
    os.utime(path, (1, 1))
    assert run_build(tmp_path / "dataset", [str(path)]).seconds == {}
    path.write_text(json.dumps(document("same size")) + "\n")
    with pytest.raises(BuildError, match="has other bytes"):
        run_build(tmp_path / "dataset", [str(path)])
    path.write_text(json.dumps(document("longer than before")) + "\n")
    with pytest.raises(BuildError, match="bytes, now"):
        run_build(tmp_path / "dataset", [str(path)])


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(BuildError, match=r"precious\.txt"):
        run_build(tmp_path)
    assert os.listdir(tmp_path) == ["precious.txt"]


def test_a_damaged_input_stops_the_build_with_its_name_and_publishes_nothing(tmp_path: Path) -> None:
    good = write_input(tmp_path / "good.jsonl.zst", [document(f"text {n}") for n in range(50)])
    bad = tmp_path / "bad.jsonl.zst"
    bad.write_bytes(Path(good).read_bytes()[:-10])
    with pytest.raises(BuildError, match=r"bad\.jsonl\.zst: .* at byte \d+"):
        run_build(tmp_path / "dataset", [good, str(bad)])
    assert not (tmp_path / "dataset" / "manifest.json").exists()
    assert not (tmp_path / "dataset" / "shards").exists()


def test_a_damaged_input_can_be_left_out_whole_and_the_manifest_says_so(tmp_path: Path) -> None:
    good = write_input(tmp_path / "good.jsonl.zst", [document(f"text {n}") for n in range(50)])
    bad = tmp_path / "bad.jsonl.zst"
    bad.write_bytes(Path(good).read_bytes()[:-10])
    manifest = run_build(tmp_path / "dataset", [good, str(bad)], on_bad_input="skip", parts_per_input=2).manifest
    assert [entry.skipped is None for entry in manifest.inputs] == [False, True]
    assert manifest.documents == 50
    assert "bad.jsonl.zst" in (manifest.inputs[0].skipped or "")
    assert {number for _, _, number, _, _ in documents(tmp_path / "dataset")} == {1}
    assert verify(str(tmp_path / "dataset")).sound


def test_too_many_rejected_lines_stop_the_build_and_a_higher_limit_continues_it(tmp_path: Path) -> None:
    path = write_input(tmp_path / "input.jsonl.zst", [document("text"), "no json", document("text"), "{}"])
    with pytest.raises(BuildError, match=r"2 of 4 lines were rejected \(invalid_json 1, no_text 1\)"):
        run_build(tmp_path / "dataset", [path], max_rejected=0.49)
    assert not (tmp_path / "dataset" / "manifest.json").exists()
    assert run_build(tmp_path / "dataset", [path], max_rejected=0.5).manifest.documents == 2


def test_exact_deduplication_keeps_the_first_of_equal_texts(tmp_path: Path) -> None:
    first = write_input(tmp_path / "0.jsonl.zst", [document("one", "A"), document("two", "A"), document("one", "A")])
    second = write_input(tmp_path / "1.jsonl.zst", [document("two", "A"), document("three", "A"), document("é", "A")])
    third = write_input(tmp_path / "2.jsonl.zst", [document("three", "A"), document("e\u0301", "A")])
    for parts in (1, 2):
        output = tmp_path / f"dataset{parts}"
        manifest = run_build(output, [first, second, third], dedup="exact", parts_per_input=parts).manifest
        kept = {(number, line) for _, _, number, line, _ in documents(output)}
        assert kept == {(0, 1), (0, 2), (1, 2), (1, 3), (2, 2)}
        assert [entry.duplicates for entry in manifest.inputs] == [1, 1, 1]
        assert verify(str(output)).sound
    assert shard_hashes(tmp_path / "dataset1") == shard_hashes(tmp_path / "dataset2")


def test_exact_deduplication_sees_through_sources(tmp_path: Path) -> None:
    lines = [document("one", "A"), document("two", "B"), document("one", "B"), document("two", "A"), document("x", "B")]
    first = write_input(tmp_path / "0.jsonl.zst", lines)
    second = write_input(tmp_path / "1.jsonl.zst", [document(f"text {n % 40}", f"S{n % 7}") for n in range(300)])
    for parts in (1, 3):
        output = tmp_path / f"dataset{parts}"
        manifest = run_build(output, [first, second], dedup="exact", parts_per_input=parts, validation=0.3).manifest
        kept = {(number, line) for _, _, number, line, _ in documents(output)}
        assert kept == {(0, 1), (0, 2), (0, 5)} | {(1, n + 1) for n in range(40)}
        assert [entry.duplicates for entry in manifest.inputs] == [2, 260]
        assert verify(str(output), level="deep", sample="all").sound
    assert shard_hashes(tmp_path / "dataset1") == shard_hashes(tmp_path / "dataset3")


def test_equal_texts_fall_on_one_side_of_the_validation_split(tmp_path: Path) -> None:
    texts = [f"text number {n % 500}" for n in range(2000)]
    path = write_input(tmp_path / "input.jsonl.zst", [document(text) for text in texts])
    run_build(tmp_path / "dataset", [path], validation=0.2)
    sides: dict[str, set[str]] = {}
    for _, split, _, line, _ in documents(tmp_path / "dataset"):
        sides.setdefault(texts[line - 1], set()).add(split)
    assert all(len(side) == 1 for side in sides.values())
    held_out = sum(side == {"validation"} for side in sides.values())
    assert 60 < held_out < 140
    assert verify(str(tmp_path / "dataset")).sound


def test_policies_for_special_tokens(tmp_path: Path) -> None:
    texts = ["plain", "a<|endoftext|>b", "<|endoftext|>"]
    path = write_input(tmp_path / "input.jsonl.zst", [document(text) for text in texts])
    found = {}
    for policy in ("text", "token", "reject"):
        output = tmp_path / policy
        manifest = run_build(output, [path], special_tokens=policy).manifest
        found[policy] = {line: ids for _, _, _, line, ids in documents(output)}
        assert verify(str(output)).sound, verify(str(output)).text()
        assert manifest.inputs[0].rejected == ({"special_token": 2} if policy == "reject" else {})
    assert found["text"][2] == [*reference_ids(texts[1]), EOD]
    assert found["text"][2].count(EOD) == 1
    assert found["token"][2] == [*reference_ids("a"), EOD, *reference_ids("b"), EOD]
    assert set(found["reject"]) == {1}
    [rejected] = (tmp_path / "reject" / "rejected").iterdir()
    lines = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert [(entry["line"], entry["reason"]) for entry in lines] == [(2, "special_token"), (3, "special_token")]
    assert lines[0]["offset"] == len(json.dumps(document(texts[0]))) + 1


def test_a_long_document_is_stored_in_parts_of_65536_tokens(tmp_path: Path) -> None:
    text = " ".join(str(n) for n in range(60_000))
    path = write_input(tmp_path / "input.jsonl.zst", [document("before"), document(text), document("after")])
    manifest = run_build(tmp_path / "dataset", [path], shard_bytes=10**9).manifest
    [shard] = manifest.shards
    assert shard.records > shard.documents == 3
    found = {line: ids for _, _, _, line, ids in documents(tmp_path / "dataset")}
    assert found[2] == [*reference_ids(text), EOD]
    assert verify(str(tmp_path / "dataset")).sound


def test_a_disk_that_fills_up_stops_the_build_with_a_sentence_and_it_continues(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    create = Storage.create

    def full(self: Storage, relative: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path(relative))
        return create(self, relative)

    monkeypatch.setattr(Storage, "create", full)
    with pytest.raises(BuildError, match="No space left on device") as caught:
        run_build(tmp_path / "dataset")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "dataset") in str(caught.value)
    run_build(tmp_path / "dataset")
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(demo)


def test_runs_that_vanished_are_made_again(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import beam_jobs.build as driver

    def stop(*_: Any) -> None:
        raise BuildError("stopped between the stages")

    monkeypatch.setattr(driver, "plan_groups", stop)
    with pytest.raises(BuildError, match="stopped"):
        run_build(tmp_path / "dataset")
    monkeypatch.undo()
    [run, *_] = (tmp_path / "dataset" / "_build").rglob("*.run")
    run.unlink()
    run_build(tmp_path / "dataset")
    assert shard_hashes(tmp_path / "dataset") == shard_hashes(demo)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"inputs": ["no/such/file"]}, "no such file"),
        ({"inputs": ["no/such/*.zst"]}, "no file matches"),
        ({"inputs": [DEMO_INPUTS[0], DEMO_INPUTS[0]]}, "named twice"),
        ({"inputs": [str(TOKENIZER.parent)]}, "is a directory"),
        ({"inputs": ["nosuchprotocol://x/y"]}, "nosuchprotocol"),
        ({"tokenizer": "no/such/tokenizer.json"}, "no such file"),
        ({"validation": 1.0}, "--validation"),
        ({"max_rejected": -1}, "--max-rejected"),
        ({"parts_per_input": 0}, "--parts-per-input"),
        ({"text_key": "a..b"}, "--text-key"),
        ({"workers": 0}, "--workers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        run_build(tmp_path / "dataset", **options)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("1GB", 10**9), ("256MiB", 2**28), ("4096", 4096), ("1.5 kb", 1500), ("2g", 2 * 10**9)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1XB", "0", "1e9"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="is no size"):
        parse_size(text)
