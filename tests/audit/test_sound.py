"""Sound datasets of every kind have no fault; wrong usage is told apart from faults."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import fsspec
import pytest

from pileshard.audit.verify import verify
from pileshard.cli import main
from pileshard.errors import OptionError
from tests.audit.checking import run_verify
from tests.audit.forge import Forgery
from tests.data.golden.make_golden import DATASET
from tests.format import mini_reader


@pytest.mark.parametrize("name", ["parts_dataset", "exact_dataset", "token_dataset", "wide_dataset", "other_dataset"])
def test_sound_dataset_has_no_fault(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name)
    manifest = json.loads((root / "manifest.json").read_bytes())
    code, report = run_verify(root)
    assert (code, report["faults"]) == (0, [])
    assert (report["documents"], report["tokens"]) == (manifest["documents"], manifest["tokens"])


@pytest.mark.parametrize("name", ["parts_dataset", "exact_dataset", "token_dataset", "wide_dataset"])
def test_a_reader_written_from_the_page_alone_reads_it_too(name: str, request: pytest.FixtureRequest) -> None:
    manifest, documents = mini_reader.read_dataset(request.getfixturevalue(name))
    assert len(documents) == manifest["documents"] > 0


def test_shard_of_no_document_is_sound(tmp_path: Path) -> None:
    dataset = Forgery(DATASET, tmp_path / "dataset")
    dataset.write(dataset.largest(), [])
    code, report = run_verify(dataset.root)
    assert (code, report["faults"]) == (0, [])


def test_datasets_are_of_the_kinds_they_are_built_for(
    parts_dataset: Path, exact_dataset: Path, token_dataset: Path, wide_dataset: Path
) -> None:
    manifests = [
        json.loads((root / "manifest.json").read_bytes())
        for root in (parts_dataset, exact_dataset, token_dataset, wide_dataset)
    ]
    parts, exact, token, wide = manifests
    assert sum(shard["records"] for shard in parts["shards"]) == parts["documents"] + 1 + 2
    assert sum(entry["duplicates"] for entry in exact["inputs"]) == 20
    assert token["options"]["special_tokens"] == "token"
    assert wide["dtype"] == "uint32"


def test_sound_dataset_on_an_object_store_has_no_fault() -> None:
    name = f"verify-{uuid.uuid4().hex}"
    memory = fsspec.filesystem("memory")
    for path in DATASET.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/{name}/{path.relative_to(DATASET)}", path.read_bytes())
    try:
        assert verify(f"memory://{name}").faults == []
        memory.rm_file(f"/{name}/tokenizer.json")
        assert [fault.path for fault in verify(f"memory://{name}").faults] == ["tokenizer.json"]
    finally:
        memory.rm(f"/{name}", recursive=True)


def test_report_is_written_to_standard_output(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["verify", str(DATASET), "--json", "-"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["sound"] is True


def test_report_for_a_person_names_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(DATASET, root)
    assert main(["verify", str(root)]) == 0
    assert ": sound: " in capsys.readouterr().out
    (root / "tokenizer.json").unlink()
    assert main(["verify", str(root)]) == 1
    out = capsys.readouterr().out
    assert "tokenizer.json: [missing_file] is not there" in out
    assert ": 1 fault: " in out


@pytest.mark.parametrize("args", [[], ["x", "--level", "all"], ["x", "--surprise"], ["x", "y"]])
def test_wrong_usage_exits_with_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", *args])
    assert caught.value.code == 2


def test_unknown_file_system_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "nosuch://bucket/x"]) == 2
    assert "nosuch" in capsys.readouterr().err
    with pytest.raises(OptionError):
        verify(str(DATASET), level="most")  # type: ignore[arg-type]


def test_no_dataset_is_a_fault_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert "there is nothing at" in capsys.readouterr().out
