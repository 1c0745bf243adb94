"""`pileshard repair`: every kind of damage mended to the same bytes, or refused with everything left as it was."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_jobs import repair_shards
from beam_jobs.repair import RepairOptions, repair
from pileshard.audit.repair import RepairReport
from pileshard.audit.verify import verify
from pileshard.cli import main
from pileshard.errors import BuildError, OptionError
from tests.audit.fault_table import REFUSED, build_golden_here, content, damage
from tests.audit.forge import Forgery
from tests.audit.test_damage import CASES as DAMAGE
from tests.built import document, run_build, write_input
from tests.data.golden.make_golden import HERE
from tests.format.validating import validator
from tests.tokenizers_made import EOD, tiny_gpt2_json

BUILDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "validation": {"validation": 0.3},
    "exact": {"dedup": "exact", "validation": 0.2},
    "token": {"special_tokens": "token"},
    "reject": {"special_tokens": "reject"},
    "kept": {"keep_runs": True, "run_bytes": 2**16},
}


def lines(count: int, first: int) -> list[Any]:
    """Documents of three sources, equal ones, long ones and special tokens among them, and lines that are none."""
    made: list[Any] = []
    for number in range(first, first + count):
        text = f"text {number % 35} " + "é" * (number % 9) + (EOD if number % 11 == 0 else "")
        made.append(document(text, "ABC"[number % 3]))
    made[3], made[7], made[9] = "no json", "", {"meta": {}}
    made += [document(f"the same {number} in every source", source) for number in range(12) for source in "CAB"]
    made.append(document("Q" * (2 * 65536 + 10 + first), "Long"))
    return made


@pytest.fixture(scope="session", params=BUILDS)
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with its inputs beside it."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "tokenizer.json").write_bytes(tiny_gpt2_json())
    inputs = [write_input(folder / f"{number}.jsonl.zst", lines(60, 60 * number)) for number in range(2)]
    options = {"shard_bytes": 1500, **BUILDS[request.param]}
    run_build(folder / "dataset", inputs, tokenizer=str(folder / "tokenizer.json"), **options)
    return folder / "dataset"


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain one of these."""
    folder = tmp_path_factory.mktemp("plain")
    inputs = [write_input(folder / f"{number}.jsonl.zst", lines(60, 60 * number)) for number in range(2)]
    run_build(folder / "dataset", inputs, shard_bytes=1500)
    return folder / "dataset"


def files(root: Path) -> dict[str, bytes]:
    """Every file of a dataset, but for what a build leaves to itself."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "_build" not in path.parts
    }


def mend(root: Path, **options: Any) -> RepairReport:
    report = repair(RepairOptions(url=str(root), workers=1, **options))
    validator("repair-report").validate(json.loads(report.to_json()))
    return report


def outcomes(report: RepairReport) -> dict[str, str]:
    return {file.path: file.outcome for file in report.files}


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def test_everything_at_once_is_mended_to_the_same_bytes(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(sound, root)
    shards = json.loads((root / "manifest.json").read_bytes())["shards"]
    wanted = files(root)
    rng = random.Random(1)
    rng.shuffle(shards)
    long = next(shard for shard in shards if shard["source"] == "Long")
    _flip(root / long["path"], 5000)
    _flip(root / shards[0]["path"], 30)
    (root / shards[1]["path"]).unlink()
    (root / shards[1]["index_path"]).unlink()
    _flip(root / shards[2]["index_path"], 200)
    (root / shards[3]["path"]).write_bytes(b"")
    rejected = sorted((root / "rejected").iterdir())
    rejected[0].unlink()
    _flip(rejected[1], 20)
    assert not verify(str(root)).sound
    report = mend(root)
    assert report.sound, report.text()
    assert set(outcomes(report).values()) <= {"repaired", "follows"}
    assert files(root) == wanted
    assert not (root / "_build" / "repair").exists()
    assert verify(str(root)).sound


def test_an_index_comes_from_its_shard_and_needs_no_input(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(sound, root)
    wanted = files(root)
    manifest = json.loads((root / "manifest.json").read_bytes())
    for shard in manifest["shards"]:
        (root / shard["index_path"]).unlink()
    moved = [(Path(entry["url"]), Path(entry["url"] + ".away")) for entry in manifest["inputs"]]
    for path, away in moved:
        path.rename(away)
    try:
        report = mend(root)
    finally:
        for path, away in moved:
            away.rename(path)
    assert report.sound, report.text()
    assert {file.why for file in report.files} == {"from its shard"}
    assert files(root) == wanted


def test_a_tokenizer_that_loses_something_has_indexes_made_from_the_inputs(tmp_path: Path) -> None:
    tokenizer = json.loads(tiny_gpt2_json())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    # A capital dotted I takes two bytes, and its small letters three.
    inputs = [write_input(tmp_path / "0.jsonl.zst", [document(f"TEXT \u0130 {number}") for number in range(50)])]
    root = tmp_path / "dataset"
    run_build(root, inputs, tokenizer=str(tmp_path / "tokenizer.json"), engine="reference", shard_bytes=1024)
    wanted = files(root)
    [first, *_] = (root / "shards").rglob("*.npy")
    first.unlink()
    report = mend(root)
    assert report.sound, report.text()
    assert [file.why for file in report.files] == ["from the inputs"]
    assert files(root) == wanted


def test_runs_that_the_build_kept_save_the_inputs(tmp_path: Path) -> None:
    inputs = [write_input(tmp_path / f"{number}.jsonl.zst", lines(60, 60 * number)) for number in range(2)]
    root = tmp_path / "dataset"
    run_build(root, inputs, keep_runs=True, parts_per_input=2, shard_bytes=1500, temp_url=str(tmp_path / "temp"))
    wanted = files(root)
    shard = next(iter(sorted((root / "shards").rglob("*.tfrecord"))))
    for path in inputs:
        Path(path).rename(path + ".away")
    shard.unlink()
    report = mend(root)
    assert not report.sound
    assert "is gone" in report.files[0].why
    report = mend(root, temp_url=str(tmp_path / "temp"))
    assert report.sound, report.text()
    assert report.files[0].why == "from the build's runs"
    assert files(root) == wanted
    # A run that is damaged gives other bytes: then the inputs are read after all.
    for path in inputs:
        Path(path + ".away").rename(path)
    for run in (tmp_path / "temp").rglob("*.run"):
        data = bytearray(run.read_bytes())
        data[8:40] = bytes(32)
        run.write_bytes(bytes(data))
    for path in (root / "shards").rglob("*.tfrecord"):
        path.unlink()
    report = mend(root, temp_url=str(tmp_path / "temp"))
    assert report.sound, report.text()
    assert "from the inputs" in {file.why for file in report.files}
    assert files(root) == wanted


def test_inputs_that_are_gone_or_changed_are_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    text = "".join(json.dumps(document(f"text {number}")) + "\n" for number in range(100))
    path.write_text(text)
    root = tmp_path / "dataset"
    run_build(root, [str(path)], shard_bytes=1024)
    wanted = files(root)
    shard = next(iter(sorted((root / "shards").rglob("*.tfrecord"))))
    _flip(shard, 100)
    damaged = files(root)

    def refused() -> str:
        report = mend(root)
        assert not report.sound
        assert files(root) == damaged
        return report.files[0].why

    path.unlink()
    assert "is gone" in refused()
    path.write_text(text + "x")
    assert "bytes, the build read" in refused()
    path.write_text(text.replace("text 5", "test 5"))
    assert "has other bytes than the build read" in refused()
    path.write_text(text)
    assert mend(root).sound
    assert files(root) == wanted


def test_what_gives_other_bytes_is_never_put_into_place(plain: Path, tmp_path: Path) -> None:
    """A shard that the manifest names and no input gives: forged, then damaged."""
    d = Forgery(plain, tmp_path / "dataset")
    shard = d.shard_of("A")
    records = d.records(shard)
    ids = d.ids(records[0])
    ids[0] += 1
    d.write(shard, [d.with_ids(records[0], ids), *records[1:]])
    other = d.shard_of("B")
    before = d.path(other["path"]).read_bytes()
    _flip(d.path(shard["path"]), 100)
    _flip(d.path(other["path"]), 100)
    damaged = d.path(shard["path"]).read_bytes()
    report = mend(d.root)
    assert not report.sound
    assert outcomes(report) == {shard["path"]: "", other["path"]: "repaired"}
    assert d.path(shard["path"]).read_bytes() == damaged
    assert d.path(other["path"]).read_bytes() == before
    assert "the manifest names" in next(file.why for file in report.files if file.path == shard["path"])


def test_a_fault_that_was_built_in_is_told_from_damage(plain: Path, tmp_path: Path) -> None:
    d = Forgery(plain, tmp_path / "dataset")
    shard = d.largest()
    records = d.records(shard)
    d.write(shard, [records[1], records[0], *records[2:]])
    before = files(d.root)
    report = mend(d.root)
    assert not report.sound
    assert "so the fault was built in or forged" in report.files[0].why
    assert files(d.root) == before


def test_surplus_files_are_named_and_removed_only_if_asked_for(plain: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    wanted = files(root)
    extra = root / "shards" / "A" / "mine.tfrecord"
    extra.write_bytes(b"precious")
    report = mend(root)
    assert not report.sound
    assert "--remove-surplus" in report.text()
    assert extra.exists()
    report = mend(root, remove_surplus=True)
    assert report.sound
    assert set(outcomes(report).values()) == {"removed"}
    assert files(root) == wanted


def test_a_lost_tokenizer_is_taken_from_the_user_if_it_is_the_one(plain: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    wanted = files(root)
    (root / "tokenizer.json").unlink()
    _flip(next(iter((root / "shards").rglob("*.tfrecord"))), 100)
    report = mend(root)
    assert not report.sound
    assert all("--tokenizer FILE" in file.why for file in report.files)
    other = tmp_path / "other.json"
    other.write_bytes(tiny_gpt2_json(330))
    with pytest.raises(OptionError, match="is not the file of the build"):
        mend(root, tokenizer=str(other))
    other.write_bytes(wanted["tokenizer.json"])
    assert mend(root, tokenizer=str(other)).sound
    assert files(root) == wanted


MANIFEST_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:700]),
    "a bit": lambda path: _flip(path, path.read_bytes().index(b'"writer": "pile') + 12),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("name", MANIFEST_DAMAGE)
def test_a_damaged_manifest_is_made_again_from_the_record_of_the_build(name: str, plain: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    wanted = files(root)
    MANIFEST_DAMAGE[name](root / "manifest.json")
    shards = sorted((root / "shards").rglob("*.tfrecord"))
    _flip(shards[0], 100)
    shards[1].unlink()
    report = mend(root)
    assert report.sound, report.text()
    found = files(root)
    before, after = (json.loads(all_files.pop("manifest.json")) for all_files in (wanted, found))
    assert found == wanted
    for name_of_times in ("build", "manifest_sha256"):
        before.pop(name_of_times), after.pop(name_of_times)
    assert after == before
    assert not (root / "_build" / "rebuild").exists()


def test_a_manifest_is_not_made_from_inputs_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "0.jsonl"
    path.write_text("".join(json.dumps(document(f"text {number}")) + "\n" for number in range(100)))
    root = tmp_path / "dataset"
    run_build(root, [str(path)], shard_bytes=1024)
    (root / "manifest.json").unlink()
    before = files(root)
    path.write_text(path.read_text().replace("text 5", "test 5"))
    report = mend(root)
    assert not report.sound
    assert "is whole, and what the inputs give now is another" in report.files[0].why
    assert files(root) == before
    path.write_text(path.read_text() + "\n")
    assert "their sizes differ" in mend(root).files[0].why
    assert files(root) == before
    shutil.rmtree(root / "_build")
    assert "no record of the build" in mend(root).files[0].why
    assert files(root) == before


def test_a_manifest_is_made_once_the_inputs_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a repair that was stopped had read of other files does not stand in the way."""
    path = tmp_path / "0.jsonl"
    path.write_text("".join(json.dumps(document(f"text {number}")) + "\n" for number in range(100)))
    text = path.read_text()
    root = tmp_path / "dataset"
    run_build(root, [str(path)], shard_bytes=1024)
    (root / "manifest.json").unlink()
    path.write_text(text.replace("text 5", "a longer text 5"))

    def stop(*_: object) -> None:
        raise BuildError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("beam_jobs.build.plan_groups", stop)
        assert "stopped" in mend(root).files[0].why
    assert (root / "_build" / "rebuild").exists()
    path.write_text(text)
    assert mend(root).sound


def test_an_unfinished_build_is_not_repaired(plain: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    (root / "manifest.json").unlink()
    (root / "tokenizer.json").unlink()
    assert "the build is not finished" in mend(root).files[0].why


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The golden dataset with its inputs beside it, and one of another seed."""
    folder = tmp_path_factory.mktemp("golden")
    return build_golden_here(folder / "golden"), build_golden_here(folder / "other", seed=1)


@pytest.mark.parametrize("name", DAMAGE)
def test_every_damage_of_the_register_is_mended_or_refused(
    name: str, golden: tuple[Path, Path], tmp_path: Path
) -> None:
    root = tmp_path / "dataset"
    damage(name, *golden, root)
    before = files(root)
    report = mend(root, remove_surplus=True, tokenizer=str(HERE / "tokenizer.json"))
    if name in REFUSED:
        assert not report.sound
        assert files(root) == before
        return
    assert report.sound, report.text()
    assert content(root) == content(golden[0])


@pytest.mark.parametrize("seed", range(6))
def test_killed_repair_leaves_whole_files_and_goes_on(seed: int, plain: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    wanted = files(root)
    shards = sorted((root / "shards").rglob("*.tfrecord"))
    for path in shards:
        _flip(path, 100)
    manifest_too = seed % 3 == 2
    if manifest_too:
        (root / "manifest.json").unlink()
    damaged = files(root)
    rng = random.Random(seed)
    command = [sys.executable, "-m", "pileshard", "repair", str(root), "--workers", "1"]
    for _ in range(2):
        enough = rng.randint(3, 60)
        process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while process.poll() is None and sum(len(names) for _, _, names in os.walk(root)) < len(damaged) + enough:
                time.sleep(0.005)
            time.sleep(rng.random() * 0.2)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for path, data in files(root).items():
            assert path == "manifest.json" or data in (damaged.get(path), wanted[path]), path
    assert mend(root).sound
    found = files(root)
    if manifest_too:
        wanted.pop("manifest.json"), found.pop("manifest.json")
    assert found == wanted


def test_a_repair_goes_on_from_what_another_left(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    wanted = files(root)
    for path in (root / "shards").rglob("*.tfrecord"):
        path.unlink()
    real, calls = repair_shards.install, 0

    def stop(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(repair_shards, "install", stop)
    with pytest.raises(KeyboardInterrupt):
        mend(root)
    monkeypatch.undo()
    from beam_jobs import tokenize_stage

    def tokenized_again(*_: Any) -> None:
        raise AssertionError("a receipt says that it is done")

    monkeypatch.setattr(tokenize_stage._Pass, "run", tokenized_again)
    report = mend(root)
    assert report.sound
    assert len(report.files) == len(list((root / "shards").rglob("*.tfrecord"))) - 2
    assert files(root) == wanted


def test_workers_and_a_runner_of_the_user_repair_too(plain: Path, tmp_path: Path) -> None:
    for more in (["--workers", "2"], ["--", "--runner=FnApiRunner"]):
        root = tmp_path / f"dataset{len(more[-1])}"
        shutil.copytree(plain, root)
        wanted = files(root)
        _flip(next(iter((root / "shards").rglob("*.tfrecord"))), 100)
        done = subprocess.run(
            [sys.executable, "-m", "beam_jobs.repair", str(root), *more], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "1 of 1 files repaired" in done.stdout
        assert files(root) == wanted


def test_exit_codes(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(plain, root)
    assert main(["repair", str(root)]) == 0
    assert "nothing to repair" in capsys.readouterr().out
    (root / "tokenizer.json").unlink()
    assert main(["repair", str(root)]) == 1
    assert "not repaired" in capsys.readouterr().out
    assert main(["repair", str(root), "--workers", "0"]) == 2
    assert main(["repair", "nosuch://bucket/x"]) == 2
    assert main(["repair", str(tmp_path / "none")]) == 1


def test_a_dataset_on_an_object_store_is_repaired(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    path = Path(write_input(tmp_path / "0.jsonl.zst", lines(60, 0)))
    memory.pipe_file("/mended/0.jsonl.zst", path.read_bytes())
    try:
        run_build("memory://mended/dataset", ["memory://mended/0.jsonl.zst"], shard_bytes=1500)
        shards = [name for name in memory.find("/mended/dataset/shards") if name.endswith(".tfrecord")]
        hashes = {name: hashlib.sha256(memory.cat_file(name)).hexdigest() for name in shards}
        memory.rm_file(shards[0])
        memory.pipe_file(shards[1], b"junk")
        report = repair(RepairOptions(url="memory://mended/dataset", workers=1))
        assert report.sound, report.text()
        assert {name: hashlib.sha256(memory.cat_file(name)).hexdigest() for name in shards} == hashes
    finally:
        memory.rm("/mended", recursive=True)
