"""`pileshard clean` removes what dead attempts left, and nothing that a build or a dataset needs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import beam_jobs.leftovers as leftovers
from beam_jobs.job import PROGRESS, RECEIPTS, STAGE
from beam_jobs.lease import Lease
from beam_jobs.leftovers import find_leftovers, live_command
from pileshard.audit.verify import verify
from pileshard.cli import main
from pileshard.errors import BuildError
from pileshard.format.storage import Storage
from tests.built import DEMO_INPUTS, TOKENIZER, run_build, shard_hashes


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("demo") / "dataset"
    run_build(root)
    return shard_hashes(root)


def _killed(output: Path, seed: int) -> None:
    """A build that was killed when a random number of files had appeared."""
    enough = random.Random(seed).randint(8, 30)
    command = [sys.executable, "-m", "beam_jobs.build", "--output", str(output), "--tokenizer", str(TOKENIZER)]
    command += ["--shard-bytes", "64KB", "--max-rejected", "1", "--run-bytes", "100000", "--workers", "1", "--input"]
    process = subprocess.Popen(
        [*command, *DEMO_INPUTS], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None and sum(len(names) for _, _, names in os.walk(output)) < enough:
            time.sleep(0.005)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _litter(storage: Storage, fingerprint: str) -> set[str]:
    """What dead attempts may leave, at every place."""
    names = {
        f"_build/tmp/{os.urandom(16).hex()}",
        f"_build/runs-{fingerprint}/tmp/{os.urandom(16).hex()}",
        f"_build/runs-{fingerprint}/tokenize-00000-000-of-001-abcdef01-0123456789ab.run",
        "_build/runs-0123456789abcdef/merge-00000-abcdef01-0123456789ab.run",
        f"{PROGRESS}/tokenize-00000-000-of-001-999999999.json",
        "_build/failures/merge-00000.json",
        "_build/drivers/elsewhere-1-abcdef01.json",
        "_build/verify-0123456789ab/3.json",
    }
    for name in names:
        storage.write_bytes(name, b"{}" * 500)
    old = time.time() - 48 * 3600
    os.utime(storage.path("_build/verify-0123456789ab/3.json"), (old, old))
    return names


def _fingerprint(output: Path) -> str:
    found = leftovers._fingerprint(Storage(str(output)))
    assert found
    return found


@pytest.mark.parametrize("seed", range(3))
def test_unfinished_build_continues_to_the_same_bytes_after_it_was_cleaned(
    demo: dict[str, str], tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "dataset"
    _killed(output, seed)
    storage = Storage(str(output))
    litter = _litter(storage, _fingerprint(output))
    receipts = {path: storage.read_bytes(path) for path in storage.files(RECEIPTS)}
    before = storage.files()
    assert main(["clean", str(output), "--dry-run"]) == 0
    assert storage.files() == before
    assert "would remove" in capsys.readouterr().out
    assert main(["clean", str(output)]) == 0
    assert "half-written files" in capsys.readouterr().out
    assert not litter & set(storage.files())
    assert {path: storage.read_bytes(path) for path in storage.files(RECEIPTS)} == receipts
    assert main(["clean", str(output)]) == 0
    if not (output / "manifest.json").exists():
        assert "nothing to remove" in capsys.readouterr().out
    run_build(output, run_bytes=100_000)
    assert shard_hashes(output) == demo
    assert verify(str(output)).sound
    assert os.listdir(output / "_build") == ["job.json"]


def test_complete_dataset_keeps_all_that_it_needs(demo: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "dataset"
    run_build(output)
    storage = Storage(str(output))
    needed = storage.files()
    _litter(storage, _fingerprint(output))
    storage.write_bytes(f"{RECEIPTS}/tokenize-00000-000-of-001-0123456789ab.json", b"{}")  # of one that slept
    assert main(["clean", str(output)]) == 0
    assert storage.files() == needed
    assert os.listdir(output / "_build") == ["job.json"]
    assert shard_hashes(output) == demo
    assert verify(str(output)).sound


def test_kept_runs_stay_unless_they_are_to_go(tmp_path: Path) -> None:
    output = tmp_path / "dataset"
    run_build(output, keep_runs=True)
    storage = Storage(str(output))
    kept = storage.files()
    litter = _litter(storage, _fingerprint(output))
    assert main(["clean", str(output)]) == 0
    assert storage.files() == kept
    assert not litter & set(kept)
    assert main(["clean", str(output), "--kept-runs"]) == 0
    assert os.listdir(output / "_build") == ["job.json"]
    assert verify(str(output)).sound


def test_runs_elsewhere_are_cleaned_and_those_of_other_builds_there_are_not(tmp_path: Path) -> None:
    output, runs = tmp_path / "dataset", tmp_path / "runs"
    run_build(output, temp_url=str(runs), keep_runs=True)
    temp = Storage(str(runs))
    kept = temp.files()
    assert kept
    others = "_build/runs-0123456789abcdef/tokenize.run"
    temp.write_bytes(others, b"x")
    temp.write_bytes(f"_build/runs-{_fingerprint(output)}/orphan.run", b"x")
    assert main(["clean", str(output), "--temp-url", str(runs)]) == 0
    assert temp.files() == sorted([*kept, others])
    assert main(["clean", str(output), "--temp-url", str(runs), "--kept-runs"]) == 0
    assert temp.files() == [others]


def test_build_removes_half_written_runs_elsewhere_at_its_end(tmp_path: Path) -> None:
    output, runs = tmp_path / "dataset", tmp_path / "runs"
    run_build(tmp_path / "other")
    of_build = runs / "_build" / f"runs-{_fingerprint(tmp_path / 'other')}"  # the same inputs and options
    (of_build / "tmp").mkdir(parents=True)
    (of_build / "tmp" / os.urandom(16).hex()).write_bytes(b"x")
    run_build(output, temp_url=str(runs))
    assert not (runs / "_build").exists()


def test_live_build_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "dataset"
    run_build(output)
    storage = Storage(str(output))
    litter = _litter(storage, _fingerprint(output))
    storage.remove("_build/drivers/elsewhere-1-abcdef01.json")
    with Lease(storage):
        before = storage.files()
        assert main(["clean", str(output)]) == 1
        said = capsys.readouterr().err
        assert f"process {os.getpid()} works on it" in said
        assert "--force" in said
        assert storage.files() == before
        assert main(["clean", str(output), "--dry-run"]) == 0
        assert storage.files() == before
        assert main(["clean", str(output), "--force"]) == 0
        assert not litter & set(storage.files())


def test_item_in_work_on_another_host_is_left_alone_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from beam_jobs.progress import Beat

    output = tmp_path / "dataset"
    run_build(output)
    storage = Storage(str(output))

    import msgspec

    def beat(host: str, pid: int, age: float) -> None:
        told = Beat(item="merge-1", done_bytes=0, documents=0, tokens=0, host=host, pid=pid, time=time.time() - age)
        storage.write_bytes(f"{PROGRESS}/merge-1-1.json", msgspec.json.encode(told))

    beat("elsewhere", 1, age=10)
    assert "merge-1 is in work on elsewhere" in (live_command(storage) or "")
    beat("elsewhere", 1, age=1000)
    assert live_command(storage) is None
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    beat(os.uname().nodename, process.pid, age=1)
    assert live_command(storage) is None
    assert [left.what for left in find_leftovers(storage)] == ["heartbeats and notes of dead attempts"]


def test_directories_of_dead_drivers_on_this_machine_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead = tmp_path / "tmp" / f"pileshard-workers-{process.pid}-abc"
    alive = tmp_path / "tmp" / f"pileshard-workers-{os.getpid()}-abc"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
        (folder / "123").write_text("last words")
    run_build(tmp_path / "dataset")
    assert main(["clean", str(tmp_path / "dataset")]) == 0
    assert not dead.exists()
    assert alive.exists()


def test_killed_driver_leaves_only_what_the_next_one_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    command = [sys.executable, "-m", "beam_jobs.build", "--output", str(tmp_path / "dataset"), "--workers", "2"]
    command += ["--shard-bytes", "64KB", "--max-rejected", "1", "--tokenizer", str(TOKENIZER), "--input", *DEMO_INPUTS]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline and len(list(temporary.glob("*/*"))) < 2:
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert any(temporary.iterdir())
    run_build(tmp_path / "dataset")
    assert main(["clean", str(tmp_path / "dataset")]) == 0
    assert not any(temporary.iterdir())


def test_files_that_a_power_cut_spoilt_are_named_and_nothing_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "dataset"
    with pytest.raises(BuildError, match="lines were rejected"):
        run_build(output, max_rejected=0.0)
    storage = Storage(str(output))
    receipt = next(path for path in storage.files(RECEIPTS) if "/tokenize-" in path)
    storage.write_bytes(receipt, storage.read_bytes(receipt)[:-9])
    storage.write_bytes(STAGE, b"")
    before = storage.files()
    assert main(["status", str(output)]) == 0
    assert "no stage has begun" in capsys.readouterr().out
    assert main(["clean", str(output)]) == 1
    assert f"{receipt}: not a receipt" in capsys.readouterr().err
    assert storage.files() == before


def test_what_holds_no_build_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    for name in ("precious", "none"):
        assert main(["clean", str(tmp_path / name)]) == 1
        assert "holds neither a build nor a dataset" in capsys.readouterr().err
    assert (tmp_path / "precious" / "file").read_text() == "mine"
