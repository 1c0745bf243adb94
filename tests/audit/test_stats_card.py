"""`pileshard stats --card`: a card to publish a dataset with, and a Croissant description that its library reads."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from markdown_it import MarkdownIt

from pileshard.audit import croissant as croissant_module
from pileshard.audit.card import card, markdown
from pileshard.audit.croissant import croissant
from pileshard.audit.figures import shown
from pileshard.audit.statistics import collect
from pileshard.audit.verify import verify
from pileshard.cli import main
from pileshard.format.manifest import Manifest
from tests.audit.pages import HOSTILE
from tests.built import document, run_build, write_input
from tests.data.golden.make_golden import DATASET, HERE

SECRETS = "https://USERNAME:PASSWORD@host.example/00.jsonl.zst?X-Amz-Signature=SIGNED#FRAGMENT"


def golden_manifest() -> Manifest:
    return Manifest.from_bytes((DATASET / "manifest.json").read_bytes(), "manifest.json")


def front_matter(text: str) -> dict[str, Any]:
    import yaml

    match = re.match(r"---\n(.*?)\n---\n", text, re.S)
    assert match
    found: dict[str, Any] = yaml.safe_load(match[1])
    return found


def load(path: Path) -> Any:
    """The Croissant file as its own library reads it: it raises at an error."""
    import mlcroissant

    logging.getLogger("absl").setLevel(logging.ERROR)  # what only the owner can say is missing: a warning each
    return mlcroissant.Dataset(str(path))


def test_golden_dataset_has_the_golden_card() -> None:
    from tests.data.golden.make_statistics import card_bytes, croissant_bytes

    assert card_bytes() == (HERE / "card.md").read_bytes()
    assert croissant_bytes() == (HERE / "croissant.json").read_bytes()


def test_card_says_what_the_manifest_says(tmp_path: Path) -> None:
    assert main(["stats", str(DATASET), "--card", str(tmp_path / "card")]) == 0
    text = (tmp_path / "card" / "README.md").read_text(encoding="utf-8")
    head = front_matter(text)
    assert head["license"] == "unknown"
    assert head["pretty_name"] == "dataset"
    assert head["size_categories"] == ["n<1K"]
    manifest = golden_manifest()
    for value in (manifest.dataset_id, manifest.tokenizer_sha256, f"{manifest.tokens:,} tokens", "FILL IN"):
        assert value in text
    for entry in manifest.inputs:
        assert entry.sha256 in text
    for source in manifest.sources:
        row = f"| {source.split} | {source.documents:,} | {source.tokens:,} |"
        assert f"| {markdown(source.name)} {row}" in text
    assert "14 lines of 2 inputs = 12 accepted + 1 rejected (7.14%) + 1 blank." in text
    assert "$" not in text


def test_card_beside_the_manifest_leaves_the_dataset_sound(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(DATASET, root)
    before = set(root.rglob("*"))
    assert main(["stats", str(root), "--card", str(root)]) == 0
    assert {path.name for path in set(root.rglob("*")) - before} == {"README.md", "croissant.json"}
    assert verify(str(root)).faults == []


def test_card_that_is_there_is_replaced_only_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["stats", str(DATASET), "--card", str(tmp_path)]
    (tmp_path / "README.md").write_text("words of the owner")
    assert main(command) == 2
    assert "may hold words of your own" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "words of the owner"
    assert not (tmp_path / "croissant.json").exists()
    assert main([*command, "--overwrite"]) == 0
    assert (tmp_path / "README.md").read_text().startswith("---\npretty_name")


def test_card_goes_to_an_object_store_too() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    try:
        assert main(["stats", str(DATASET), "--card", "memory://card-of-golden"]) == 0
        assert sorted(memory.find("/card-of-golden")) == ["/card-of-golden/README.md", "/card-of-golden/croissant.json"]
    finally:
        memory.rm("/card-of-golden", recursive=True)


def test_no_credential_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(DATASET, root)
    manifest = golden_manifest()
    first, second = manifest.inputs
    named = [
        msgspec.structs.replace(first, url=SECRETS),
        msgspec.structs.replace(second, skipped=f"{SECRETS}: damaged at byte 1", sha256=""),
    ]
    (root / "manifest.json").write_bytes(msgspec.structs.replace(manifest, inputs=named).to_bytes())
    out = tmp_path / "out"
    files = ["--json", str(tmp_path / "numbers.json"), "--html", str(tmp_path / "page.html")]
    with caplog.at_level(logging.WARNING, "pileshard"):
        assert main(["stats", str(root), "--card", str(out), *files]) == 0
    written = [*out.iterdir(), tmp_path / "numbers.json", tmp_path / "page.html"]
    texts = [path.read_text(encoding="utf-8") for path in written] + [capsys.readouterr().out]
    assert sum("host.example/00.jsonl.zst" in text for text in texts) >= 3
    for text in texts:
        for secret in ("USERNAME", "PASSWORD", "SIGNED", "FRAGMENT"):
            assert secret not in text
    assert "names 1 inputs with a user, password or query" in caplog.text
    assert "PASSWORD" not in caplog.text


def test_hostile_names_stay_within_their_cells(tmp_path: Path) -> None:
    names = [name for name in HOSTILE if name.strip()]
    lines = [document(f"text {number}", name) for number, name in enumerate(names)]
    root = tmp_path / "na*me_<b>"
    run_build(root, [write_input(tmp_path / "a|b`c*.jsonl.zst", lines)])
    text = card(Manifest.from_bytes((root / "manifest.json").read_bytes(), ""), collect(str(root)))
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and re.search(r"\| (train|validation) \|", line)
    ]
    assert len(rows) == len(names)
    for row in rows:
        bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", row)
        assert bare.count("|") == 9
        assert not re.search(r"[<>*_`\[\]&]", bare)
    html = MarkdownIt("commonmark").enable("table").render(text.split("\n---\n", 1)[1])
    cells = [unescape(cell) for cell in re.findall(r"<tr>\s*<td[^>]*>(.*?)</td>", html)]
    assert {shown(name).strip() for name in names} <= {cell.strip() for cell in cells}
    assert set(re.findall(r"<([a-z0-9]+)", html)) <= {
        *("h1", "h2", "p", "strong", "code", "pre", "a", "blockquote", "table", "thead", "tbody", "tr", "th", "td")
    }
    assert html.count("<a ") == 1, "the link to Croissant alone"
    assert front_matter(text)["pretty_name"] == "na*me_<b>"
    assert "\n# na\\*me\\_\\<b\\>\n" in text


@pytest.mark.parametrize("listed", [1000, 3])
def test_croissant_is_valid_and_its_tables_are_read_by_its_library(
    listed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(croissant_module, "MOST_LISTED", listed)
    root = tmp_path / "dataset"
    shutil.copytree(DATASET, root)
    assert main(["stats", str(root), "--card", str(root)]) == 0
    dataset = load(root / "croissant.json")
    assert dataset.metadata.ctx.issues.errors == set()
    manifest = golden_manifest()
    files = json.loads((root / "croissant.json").read_bytes())["distribution"]
    for entry in files:
        if entry["@type"] == "cr:FileObject":
            data = (root / entry["contentUrl"]).read_bytes()
            assert entry["sha256"] == hashlib.sha256(data).hexdigest()
            assert entry["contentSize"] == f"{len(data)} B"
        else:
            assert len(list(root.glob(entry["includes"]))) == len(manifest.shards)
    paths = {entry.get("contentUrl") for entry in files}
    assert {shard.path for shard in manifest.shards} <= paths if listed == 1000 else len(files) == 6
    sources = [
        (r["sources/name"].decode(), r["sources/split"].decode(), r["sources/documents"], r["sources/tokens"])
        for r in dataset.records("sources")
    ]
    assert sources == [(entry.name, entry.split, entry.documents, entry.tokens) for entry in manifest.sources]
    shards = [(r["shards/path"].decode(), r["shards/sha256"].decode()) for r in dataset.records("shards")]
    assert shards == [(shard.path, shard.sha256) for shard in manifest.shards]


def test_croissant_of_an_empty_dataset_and_of_hostile_names_is_valid(tmp_path: Path) -> None:
    for name, lines in (("empty", [""]), ("</script>\u202e 🎉", [document("x", name) for name in HOSTILE])):
        root = tmp_path / name.replace("/", "_")
        run_build(root, [write_input(tmp_path / "a.jsonl.zst", lines)])
        assert main(["stats", str(root), "--card", str(root)]) == 0
        dataset = load(root / "croissant.json")
        assert dataset.metadata.ctx.issues.errors == set()
        if name != "empty":
            assert {r["sources/name"].decode() for r in dataset.records("sources")} >= set(filter(None, HOSTILE))


def test_croissant_of_many_shards_is_small() -> None:
    manifest = golden_manifest()
    many = msgspec.structs.replace(manifest, shards=manifest.shards * 7000)
    assert len(croissant(many, "many", "0" * 64, 1, 1)) < 10_000
