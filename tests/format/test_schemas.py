"""The JSON Schemas: in step with the structs, and true of real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pileshard.format.schema import SCHEMAS, text
from tests.built import run_build, write_input
from tests.data.golden.make_golden import DATASET
from tests.format.validating import FOLDER, validator


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_file_is_what_the_structs_give(name: str) -> None:
    command = "python -m pileshard.format.schema schemas/"
    assert (FOLDER / f"{name}.schema.json").read_text() == text(name), f"run {command}"


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_property_of_a_described_struct_is_described(name: str) -> None:
    made = json.loads((FOLDER / f"{name}.schema.json").read_text())
    for struct in [made, *made.get("$defs", {}).values()]:
        described = ["description" in entry for entry in struct.get("properties", {}).values()]
        assert all(described) or not any(described), struct["title"]


def test_golden_manifest_fits_its_schema() -> None:
    validator("manifest").validate(json.loads((DATASET / "manifest.json").read_bytes()))


@pytest.mark.parametrize(
    ("field", "value"),
    [("documents", -1), ("dtype", "int16"), ("tokenizer_sha256", "no hash"), ("surprise", 1), ("inputs", None)],
)
def test_schema_refuses_what_the_reader_refuses(field: str, value: Any) -> None:
    manifest = {**json.loads((DATASET / "manifest.json").read_bytes()), field: value}
    assert not validator("manifest").is_valid(manifest)


def test_files_of_a_built_dataset_fit_their_schemas(tmp_path: Path) -> None:
    lines = [{"text": "accepted"}, "", {"text": 7}, b"\xff", b"{broken", {"no": "text"}, {"text": ""}, b"x" * 300]
    run_build(tmp_path / "out", [write_input(tmp_path / "a.jsonl.zst", lines)])
    out = tmp_path / "out"
    validator("manifest").validate(json.loads((out / "manifest.json").read_bytes()))
    validator("job").validate(json.loads((out / "_build/job.json").read_bytes()))
    (rejected,) = (out / "rejected").iterdir()
    entries = [json.loads(line) for line in rejected.read_bytes().splitlines()]
    assert len(entries) == 6
    for entry in entries:
        validator("rejected-line").validate(entry)


def test_the_page_of_the_format_names_every_schema_and_its_version() -> None:
    rows = [line.split("|") for line in (FOLDER / "FORMAT.md").read_text().splitlines() if line.startswith("| `")]
    named = {row[1].strip().strip("`"): row[-2] for row in rows}
    for name in SCHEMAS:
        made = json.loads((FOLDER / f"{name}.schema.json").read_text())
        versions = [field for field in made["required"] if field.endswith("version")]
        assert name in named
        assert f"`{versions[0]}`" in named[name] if versions else "the manifest's" in named[name]
    assert {path.name for path in FOLDER.glob("*.json")} == {f"{name}.schema.json" for name in SCHEMAS}
