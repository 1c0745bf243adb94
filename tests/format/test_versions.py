"""Files of another format or version: each command and each reader says what to do, in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pileshard
from beam_jobs.job import JOB_VERSION
from pileshard.audit.verify import verify
from pileshard.cli import main
from pileshard.errors import DatasetError
from tests.built import DEMO_INPUTS, TOKENIZER, run_build

ABSENT = object()
DAMAGED = "formats are counted from 1, so it is damaged: run `pileshard repair`, or restore it from a copy"
NEWER = "this release reads up to format 1; upgrade pileshard"

#: Fields of the manifest, and what is to be said of it.
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "format 0": ({"format_version": 0}, f"its format_version is 0, and {DAMAGED}"),
    "format -1": ({"format_version": -1}, f"its format_version is -1, and {DAMAGED}"),
    "format 2": ({"format_version": 2}, f"written in format 2, and {NEWER}"),
    "format 2 with new fields": ({"format_version": 2, "surprise": 1, "shards": None}, NEWER),
    "format 1.5": ({"format_version": 1.5}, DAMAGED),
    "format '1.5'": ({"format_version": "1.5"}, f"its format_version is '1.5', and {DAMAGED}"),
    "format true": ({"format_version": True}, DAMAGED),
    "format null": ({"format_version": None}, f"has no format_version, and {DAMAGED}"),
    "no format": ({"format_version": ABSENT}, f"has no format_version, and {DAMAGED}"),
    "another file": ({"format": ABSENT}, "not a pileshard manifest"),
    "format 1 with a field too many": ({"surprise": 1}, "unknown field `surprise`); run `pileshard repair`"),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("versions") / "dataset"
    run_build(root)
    return root


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, built: Path, tmp_path: Path) -> tuple[Path, str]:
    """A dataset whose manifest has another form, and the sentence about it."""
    root = tmp_path / "dataset"
    shutil.copytree(built, root)
    fields, says = FORMS[request.param]
    manifest = json.loads((root / "manifest.json").read_bytes())
    manifest = {name: value for name, value in {**manifest, **fields}.items() if value is not ABSENT}
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return root, says


READERS: dict[str, Callable[[str], Any]] = {
    "open": lambda path: pileshard.open(path),
    "numpy_dataset": lambda path: pileshard.numpy_dataset(0, 1, path=path, world_size=1, seq_len=32, batch_size=1),
    "dataset": lambda path: pileshard.dataset(0, 1, path=path, world_size=1, seq_len=32, batch_size=1),
    "torch_dataset": lambda path: pileshard.torch_dataset(0, 1, path=path, world_size=1, seq_len=32, batch_size=1),
}


def test_every_reader_says_what_to_do(form: tuple[Path, str]) -> None:
    root, says = form
    for reader in READERS.values():
        with pytest.raises(DatasetError) as caught:
            reader(str(root))
        assert says in str(caught.value)
        assert str(caught.value).startswith(f"{root}/manifest.json: ")
        assert "\n" not in str(caught.value)


def test_every_command_says_what_to_do(form: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    root, says = form
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    build = ["build", "--output", str(root), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64000", "--workers", "1"]
    for command in (
        ["status", str(root)],
        ["inspect", str(root), "--position", "0"],
        ["stats", str(root)],
        [*build, "--max-rejected", "1", "--input", *DEMO_INPUTS],
    ):
        assert main(command) == 1, command
        err = capsys.readouterr().err
        assert says in err, command
        assert len([line for line in err.splitlines() if line.startswith(f"pileshard {command[0]}: ")]) == 1
    for level in ("quick", "full", "deep"):
        report = verify(str(root), level=level)  # type: ignore[arg-type]
        assert [(fault.kind.value, fault.path) for fault in report.faults] == [("manifest", "manifest.json")]
        assert says in report.faults[0].message
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("form", ["format 0", "format 2", "no format", "format 1 with a field too many"], indirect=True)
def test_a_newer_manifest_is_never_replaced_and_a_damaged_one_is_made_again(
    form: tuple[Path, str], built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, says = form
    before = (root / "manifest.json").read_bytes()
    code = main(["repair", str(root), "--workers", "1", "--tokenizer", str(TOKENIZER)])
    out = capsys.readouterr().out
    if NEWER in says:
        assert code == 1
        assert "upgrade pileshard" in out
        assert (root / "manifest.json").read_bytes() == before
        return
    assert code == 0
    names = ("dataset_id", "shards", "inputs", "sources", "format_version")
    made, wanted = (json.loads((path / "manifest.json").read_bytes()) for path in (root, built))
    assert {name: made[name] for name in names} == {name: wanted[name] for name in names}


@pytest.mark.parametrize("version", [1, 3, "1.5", None])
def test_the_record_of_a_build_by_another_release_is_not_taken_for_ones_own(
    version: Any, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(built, root)
    (root / "manifest.json").unlink()
    record = json.loads((root / "_build/job.json").read_bytes())
    (root / "_build/job.json").write_text(json.dumps({**record, "version": version}))
    build = ["build", "--output", str(root), "--tokenizer", str(TOKENIZER), "--shard-bytes", "64000", "--workers", "1"]
    for command in (["status", str(root)], [*build, "--input", *DEMO_INPUTS], ["repair", str(root), "--workers", "1"]):
        assert main(command) == 1, command
        said = "".join(capsys.readouterr())
        assert (
            f"is of version {version!r}, and this release reads version {JOB_VERSION}: use the release that began"
            in said
        )
    assert not (root / "manifest.json").exists()


def test_an_index_of_another_kind_is_damaged(built: Path, tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(built, root)
    path = next((root / "shards").rglob("*.npy"))
    data = bytearray(path.read_bytes())
    data[6] = 2  # the version of the .npy form
    path.write_bytes(data)
    faults = verify(str(root), level="quick").faults
    assert [(fault.kind.value, fault.path) for fault in faults] == [("index", path.relative_to(root).as_posix())]
    assert "not a readable index" in faults[0].message
