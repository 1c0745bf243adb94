"""`verify --level deep`: the inputs read again find what fitting hashes hide, and what became of the inputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pileshard.audit.report import FaultKind as K
from pileshard.audit.report import Report
from pileshard.audit.tallies import Sample
from pileshard.audit.verify import verify
from pileshard.errors import OptionError
from pileshard.format.identity import identity_hashes
from tests.audit.checking import run_verify
from tests.audit.forge import Forgery
from tests.built import DEMO_INPUTS, document, run_build, write_input

ALL = ["parts_dataset", "exact_dataset", "token_dataset", "wide_dataset"]


def lines(count: int) -> list[Any]:
    """Documents of two sources, and among them lines that are none."""
    made: list[Any] = [document(f"text {number} " + "é" * (number % 9), "AB"[number % 2]) for number in range(count)]
    made[3], made[7], made[9] = "no json", "", {"meta": {}}
    return made


@pytest.fixture
def built(tmp_path: Path) -> Forgery:
    """A dataset of two inputs with rejected lines, as it was built, that may be changed."""
    inputs = [write_input(tmp_path / f"{number}.jsonl.zst", lines(60)) for number in range(2)]
    run_build(tmp_path / "built", inputs, shard_bytes=2048, validation=0.2)
    return Forgery(tmp_path / "built", tmp_path / "dataset")


def deep(root: Path, **options: Any) -> list[Any]:
    return verify(str(root), level="deep", sample="all", **options).faults


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", [*ALL, "other_dataset"])
def test_sound_datasets_of_every_kind_are_sound_to_the_inputs(
    name: str, parts: int, request: pytest.FixtureRequest
) -> None:
    from pileshard.audit import verify as module
    from pileshard.audit.pool import do_items

    root = request.getfixturevalue(name)

    def threads(task: Any, manifest: Any, items: Any, on_bytes: Any) -> Any:
        return do_items(task, manifest, items, None, on_bytes)

    report = module.verify(str(root), level="deep", sample="all", workers=2 * parts, engine=threads)
    assert report.faults == []
    manifest = json.loads((root / "manifest.json").read_bytes())
    assert report.compared == sum(entry["accepted"] for entry in manifest["inputs"])
    assert report.lines == sum(entry["lines"] for entry in manifest["inputs"])
    assert report.inputs == len(manifest["inputs"])


def test_report_of_the_level_fits_its_schema(built: Forgery) -> None:
    code, report = run_verify(built.root, "deep")
    assert (code, report["faults"], report["compared"]) == (0, [], 114)


def _change(d: Forgery, source: str, number: int, change: Any) -> tuple[dict[str, Any], Any]:
    """Changes the ids of a record and makes everything else fit."""
    shard = d.shard_of(source)
    records = d.records(shard)
    records[number] = d.with_ids(records[number], change(d.ids(records[number])))
    d.write(shard, records)
    return shard, records[number]


def test_a_changed_token_is_found_with_its_file_line_and_byte(built: Forgery) -> None:
    def change(ids: np.ndarray) -> np.ndarray:
        ids[2] += 1
        return ids

    shard, record = _change(built, "A", 1, change)
    assert verify(str(built.root)).sound
    [fault] = deep(built.root)
    assert (fault.kind, fault.path, fault.line) == (K.TOKENS, shard["path"], record.line)
    assert fault.input == built.manifest["inputs"][record.input]["url"]
    assert fault.offset == built.offset(shard, 2) - 4 - len(record.tokens) + 2 * built.width
    assert f"line {record.line:,} of {fault.input}" in str(fault)


@pytest.mark.parametrize("change", [lambda ids: ids[1:], lambda ids: np.concatenate([ids[:1], ids])])
def test_a_lost_or_surplus_token_is_found(built: Forgery, change: Any) -> None:
    shard, record = _change(built, "A", 0, change)
    assert verify(str(built.root)).sound
    assert [(fault.kind, fault.path, fault.line) for fault in deep(built.root)] == [
        (K.TOKENS, shard["path"], record.line)
    ]


def test_a_token_of_a_later_part_is_found_where_it_is(parts_dataset: Path, tmp_path: Path) -> None:
    d = Forgery(parts_dataset, tmp_path / "dataset")
    shard = d.largest()
    records = d.records(shard)
    at = next(number for number, record in enumerate(records) if record.part == 2)
    ids = d.ids(records[at])
    ids[3] += 1
    records[at] = d.with_ids(records[at], ids)
    d.write(shard, records)
    assert verify(str(d.root)).sound
    [fault] = deep(d.root)
    begin = d.offset(shard, at + 1) - 4 - len(records[at].tokens)
    assert (fault.kind, fault.offset) == (K.TOKENS, begin + 3 * d.width)


def test_wrong_text_bytes_are_found_in_the_index(built: Forgery) -> None:
    shard = built.shard_of("A")
    records = built.records(shard)
    records[1] = replace(records[1], text_bytes=records[1].text_bytes + 1)
    built.write(shard, records)
    assert verify(str(built.root)).sound
    faults = [fault for fault in deep(built.root) if fault.path == shard["index_path"]]
    assert [(fault.kind, fault.line) for fault in faults] == [(K.INDEX, records[1].line)]
    data = built.path(shard["index_path"]).read_bytes()
    assert int.from_bytes(data[faults[0].offset : faults[0].offset + 8], "little") == records[1].text_bytes


def test_a_document_under_another_source_is_found(built: Forgery) -> None:
    one = built.shard_of("A")
    moved, *ones = built.records(one)
    other = next(
        shard
        for shard in built.shards
        if (shard["source"], shard["split"]) == ("B", "train")
        and int(shard["key_first"], 16) <= moved.key <= int(shard["key_last"], 16)
    )
    others = sorted([moved, *built.records(other)], key=lambda record: record.key)
    built.write(one, ones, close=False)
    built.write(other, others)
    assert verify(str(built.root)).sound
    [fault] = deep(built.root)
    assert (fault.kind, fault.path, fault.line) == (K.IDENTITY, one["path"], moved.line)
    assert other["path"] in fault.message


def test_the_later_of_two_equal_texts_is_no_substitute_for_the_first(exact_dataset: Path, tmp_path: Path) -> None:
    d = Forgery(exact_dataset, tmp_path / "dataset")
    shard = d.largest()
    records = d.records(shard)
    records[0] = replace(records[0], line=records[0].line + 10)  # the second of its texts in that input
    d.write(shard, records)
    assert verify(str(d.root)).sound
    assert K.IDENTITY in {fault.kind for fault in deep(d.root)}


@pytest.mark.parametrize("place", ["line", "offset", "another"])
def test_a_list_of_other_rejected_lines_is_found(built: Forgery, place: str) -> None:
    import hashlib

    entry = built.manifest["inputs"][0]
    listed = [json.loads(line) for line in built.path(entry["rejected_path"]).read_text().splitlines()]
    listed[0][place if place != "another" else "line"] += 1
    data = b"".join(json.dumps(line).encode() + b"\n" for line in listed)
    built.path(entry["rejected_path"]).write_bytes(data)
    entry["rejected_sha256"] = hashlib.sha256(data).hexdigest()
    built.sign()
    assert verify(str(built.root)).sound
    assert [(fault.kind, fault.path) for fault in deep(built.root)] == [(K.REJECTED, entry["rejected_path"])]


def test_an_account_that_closes_and_is_not_the_input_s_is_found(built: Forgery) -> None:
    entry = built.manifest["inputs"][0]
    entry["lines"] += 5
    entry["blank"] += 5
    built.sign()
    assert verify(str(built.root)).sound
    faults = deep(built.root)
    assert {fault.kind for fault in faults} == {K.ACCOUNT}
    assert all(entry["url"] in fault.message for fault in faults)


def test_inputs_that_are_gone_changed_or_damaged_are_named_and_condemn_no_shard(built: Forgery) -> None:
    paths = [Path(entry["url"]) for entry in built.manifest["inputs"]]
    whole = [path.read_bytes() for path in paths]

    def found() -> list[tuple[K, str]]:
        return [(fault.kind, fault.path) for fault in deep(built.root)]

    paths[0].unlink()
    assert found() == [(K.INPUT, str(paths[0]))]
    write_input(paths[0], lines(59))
    assert found() == [(K.INPUT, str(paths[0]))]
    paths[0].write_bytes(bytes(len(whole[0])))
    [fault] = deep(built.root)
    assert (fault.kind, fault.path, fault.offset) == (K.INPUT, str(paths[0]), 0)
    paths[0].write_bytes(whole[0])
    assert found() == []


@pytest.mark.parametrize("damage", ["gone", "another byte", "no tokenizer"])
def test_verdict_tells_how_many_inputs_were_compared_and_which_were_not(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [str(tmp_path / f"{number}.jsonl") for number in range(3)]
    for number, url in enumerate(urls):
        texts = (json.dumps(document(f"text {n}")) for n in range(10 + number))
        Path(url).write_text("".join(f"{text}\n" for text in texts))
    run_build(tmp_path / "dataset", urls)
    lost = urls[:1]
    if damage == "gone":
        Path(urls[0]).unlink()
    elif damage == "another byte":  # which is told by the hash, once all of it is read
        Path(urls[0]).write_text(Path(urls[0]).read_text().replace("text 9", "test 9"))
    else:
        lost = urls
        (tmp_path / "dataset" / "tokenizer.json").unlink()
    code, report = run_verify(tmp_path / "dataset", "deep")
    lines = 23 if len(lost) == 1 else 0
    assert (code, report["inputs"], report["unread"]) == (1, 3 - len(lost), lost)
    assert (report["lines"], report["compared"]) == (lines, lines)
    told = f"{lines} lines of {3 - len(lost)} of 3 inputs, {lines} documents tokenized again"
    assert f"{told} (could not be compared: {', '.join(lost)})" in capsys.readouterr().out
    parts = verify(str(tmp_path / "dataset"), level="deep", sample="all", workers=4)
    assert (parts.inputs, parts.unread, parts.lines) == (report["inputs"], lost, lines)


def test_verdict_names_three_inputs_that_were_not_compared() -> None:
    report = Report(url="x", level="deep", unread=[f"{number}.jsonl" for number in range(1005)], inputs=2, lines=7)
    assert "7 lines of 2 of 1,007 inputs, 0 documents tokenized again" in report.text()
    assert "(could not be compared: 0.jsonl, 1.jsonl, 2.jsonl and 1,002 more)" in report.text()
    assert "7 lines of 2 inputs, 0" in Report(url="x", level="deep", inputs=2, lines=7).text()


def test_an_input_of_the_same_size_and_other_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_text(json.dumps(document("some text")) + "\n")
    run_build(tmp_path / "dataset", [str(path)])
    path.write_text(json.dumps(document("same size")) + "\n")
    [fault] = deep(tmp_path / "dataset")
    assert (fault.kind, fault.message) == (K.INPUT, "has other bytes than the build read")


def test_a_sample_is_about_as_large_as_asked_for_and_depends_on_its_seed_alone() -> None:
    identities = [identity_hashes(number, np.arange(1, 20_001)) for number in range(5)]
    sizes = []
    for seed in range(5):
        sample = Sample.of(1000, 100_000, seed)
        chosen = [set(sample.choose(part).tolist()) for part in identities]
        sizes.append(sum(map(len, chosen)))
        again = sample.choose(identities[0][:5000]).tolist()
        assert set(again) == {at for at in chosen[0] if at < 5000}
    assert all(850 < size < 1150 for size in sizes)
    assert len(set(sizes)) > 1
    assert Sample.of(None, 10, 0).everything
    assert Sample.of(10, 10, 0).everything


def test_a_sampled_run_accounts_for_every_line_all_the_same(tmp_path: Path) -> None:
    run_build(tmp_path / "dataset")
    report = verify(str(tmp_path / "dataset"), level="deep", sample=100)
    assert report.sound
    assert report.lines > 700
    assert 60 < report.compared < 150
    other = verify(str(tmp_path / "dataset"), level="deep", sample=100, sample_seed=1)
    assert other.compared != report.compared or other.sound


@pytest.mark.parametrize("level", ["full", "deep"])
def test_processes_and_beam_give_the_same_report(built: Forgery, level: str) -> None:
    from beam_jobs.audit_pipeline import beam_engine

    shard, _ = _change(built, "A", 1, lambda ids: ids[1:])
    built.path(shard["index_path"]).write_bytes(b"")
    target = str(built.root)
    wanted = verify(target, level=level, sample="all")  # type: ignore[arg-type]
    assert wanted.faults
    here = verify(target, level=level, sample="all", workers=2)  # type: ignore[arg-type]
    beam = verify(target, level=level, sample="all", engine=beam_engine(None, [], 1))  # type: ignore[arg-type]
    for report in (here, beam):
        report.seconds = wanted.seconds
        report.input_bytes = wanted.input_bytes
        assert report == wanted
    assert [path.name for path in (built.root / "_build").rglob("*.json")] == ["job.json"]


def test_beam_verifies_from_the_command_line_too(tmp_path: Path) -> None:
    run_build(tmp_path / "dataset", DEMO_INPUTS[:1])
    command = [sys.executable, "-m", "beam_jobs.verify", str(tmp_path / "dataset"), "--level", "deep", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ": sound: " in done.stdout


def test_a_killed_worker_ends_the_command_with_a_sentence(tmp_path: Path) -> None:
    inputs = [write_input(tmp_path / f"{n}.jsonl.zst", [document("some words " * 2000)] * 300) for n in range(2)]
    run_build(tmp_path / "dataset", inputs, shard_bytes=10**9)
    base = [sys.executable, "-m", "pileshard", "verify", str(tmp_path / "dataset")]
    command = [*base, "--level", "deep", "--sample", "all", "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    workers: list[psutil.Process] = []
    while process.poll() is None and not workers:
        time.sleep(0.02)
        children = psutil.Process(process.pid).children()
        workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    time.sleep(1)
    os.kill(workers[0].pid, signal.SIGKILL)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 1, printed
    [said] = [line for line in printed.splitlines() if line.startswith("pileshard verify:")]
    assert "a worker process died (killed, or out of memory: then lower --workers)" in said
    assert "Traceback" not in printed


@pytest.mark.parametrize("options", [{"sample": 0}, {"sample": "some"}, {"workers": 0}])
def test_wrong_options_are_named(built: Forgery, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        verify(str(built.root), level="deep", **options)


def test_remote_datasets_and_inputs_are_verified(built: Forgery) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in built.root.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/deep/{path.relative_to(built.root)}", path.read_bytes())
    try:
        report = verify("memory://deep", level="deep", sample="all")
        assert (report.faults, report.compared) == ([], 114)
    finally:
        memory.rm("/deep", recursive=True)


@pytest.mark.parametrize("damage", ["missing shard", "missing index", "flipped token", "flipped length"])
def test_damage_that_hides_an_earlier_equal_text_is_named_where_it_is_alone(damage: str, tmp_path: Path) -> None:
    first, second = ([document(f"text {number}", source) for number in range(20)] for source in "AB")
    inputs = [write_input(tmp_path / f"{number}.jsonl.zst", made) for number, made in enumerate((first, second))]
    more = write_input(tmp_path / "2.jsonl.zst", [document(f"more {number}", "B") for number in range(5)])
    run_build(tmp_path / "built", [*inputs, more], dedup="exact")
    dataset = Forgery(tmp_path / "built", tmp_path / "dataset")
    assert deep(dataset.root) == []
    shard = dataset.shard_of("A")
    path = dataset.path(shard["index_path" if damage == "missing index" else "path"])
    if damage.startswith("missing"):
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        for record in range(20):
            data[
                dataset.offset(shard, record) if damage == "flipped length" else dataset.offset(shard, record + 1) - 8
            ] ^= 1
        path.write_bytes(data)
    faults = deep(dataset.root)
    assert faults
    assert {fault.path for fault in faults} <= {shard["path"], shard["index_path"]}


def test_what_cannot_be_read_is_not_said_to_be_repaired_or_forged(built: Forgery) -> None:
    shard = built.shard_of("A")
    path = built.path(shard["path"])
    path.unlink()
    path.mkdir()
    [remedy] = {fault.remedy for fault in deep(built.root) if fault.kind is K.UNREADABLE}
    assert "can be read" in remedy
