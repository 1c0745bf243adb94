"""Where Apache Beam is not installed, the command that needs it says so; those that do not need it work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.built import DEMO_INPUTS, TOKENIZER, run_build
from tests.data.golden.make_golden import DATASET

_WITHOUT = (
    "import sys\nsys.modules['apache_beam'] = None\nfrom pileshard.cli import main\n"
    "if __name__ == '__main__':\n    sys.exit(main())\n"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done


def needs(command: str) -> str:
    return f"pileshard {command} needs the package 'apache-beam', which is not installed: pip install 'pileshard[beam]'"


def test_build_and_verify_by_beam_are_named(tmp_path: Path) -> None:
    done = run("build", "--output", str(tmp_path / "x"), "--tokenizer", str(TOKENIZER), "--input", DEMO_INPUTS[0])
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"pileshard build: {needs('build')}")
    for more in (["--beam"], ["--", "--runner=FlinkRunner"]):
        done = run("verify", str(DATASET), *more)
        assert (done.returncode, done.stderr) == (1, f"pileshard verify: {needs('verify --beam')}\n")


def test_repair_that_needs_beam_is_named(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    run_build(root, DEMO_INPUTS[:1])
    shard = next((root / "shards").rglob("*.tfrecord"))
    for path in (shard, root / "manifest.json"):
        shutil.move(path, tmp_path / "away")
        done = run("repair", str(root))
        shutil.move(tmp_path / "away", path)
        assert done.returncode == 1
        assert needs("repair") in done.stdout
        assert "build needs" not in done.stdout + done.stderr


def test_other_commands_do_not_need_it(tmp_path: Path) -> None:
    shutil.copytree(DATASET, tmp_path / "dataset")
    for command in ("verify", "repair", "status", "stats"):
        assert run(command, str(tmp_path / "dataset")).returncode == 0
