"""The golden dataset: built again to the same bytes, and read by a reader that has the page alone."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from pileshard.format import FORMAT_VERSION, Manifest, Storage
from tests.data.golden.make_golden import DATASET, HERE, build_golden
from tests.format import mini_reader


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("golden") / "dataset"
    build_golden(root)
    return root


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_golden_dataset_is_built_again_to_the_same_bytes(rebuilt: Path) -> None:
    golden, made = _files(DATASET), _files(rebuilt)
    golden.pop("manifest.json"), made.pop("manifest.json")
    assert made == golden


def test_golden_manifest_is_built_again_but_for_how_the_build_went(rebuilt: Path) -> None:
    golden, made = (json.loads((root / "manifest.json").read_bytes()) for root in (DATASET, rebuilt))
    for manifest in (golden, made):
        for name in ("build", "manifest_sha256", "writer"):
            del manifest[name]
    assert made == golden


def test_golden_dataset_is_of_the_current_format() -> None:
    assert Manifest.read(Storage(str(DATASET))).format_version == FORMAT_VERSION


def test_a_reader_written_from_the_page_alone_reads_the_golden_dataset() -> None:
    manifest, documents = mini_reader.read_dataset(DATASET)
    assert manifest["dtype"] == "uint16"
    assert len({document.source for document in documents}) == 3
    assert {document.split for document in documents} == {"train", "validation"}
    accepted = _accepted_texts()
    assert {(document.input, document.line) for document in documents} == set(accepted)
    decode = _decoder()
    for document in documents:
        assert decode(document.tokens[:-1]) == accepted[document.input, document.line]
        assert document.text_bytes == len(accepted[document.input, document.line].encode())


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_tensorflow_reads_the_golden_dataset() -> None:
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature([], tf.int64) for name in ("input", "line", "part")}
    spec["tokens"] = tf.io.FixedLenFeature([], tf.string)
    manifest, documents = mini_reader.read_dataset(DATASET)
    found = []
    for raw in tf.data.TFRecordDataset([str(DATASET / shard["path"]) for shard in manifest["shards"]]):
        got = tf.io.parse_single_example(raw, spec)
        ids = tf.io.decode_raw(got["tokens"], tf.uint16, little_endian=True)
        found.append((int(got["input"]), int(got["line"]), int(got["part"]), tuple(ids.numpy().tolist())))
    assert found == [(entry.input, entry.line, 0, entry.tokens) for entry in documents]


def _accepted_texts() -> dict[tuple[int, int], str]:
    from backports import zstd

    raw = (zstd.decompress((HERE / "inputs/00.jsonl.zst").read_bytes()), (HERE / "inputs/01.jsonl").read_bytes())
    texts = {}
    for number, data in enumerate(raw):
        for line, text in enumerate(data.split(b"\n"), 1):
            value = json.loads(text)["text"] if text else None
            if isinstance(value, str):
                texts[number, line] = value
    return texts


def _decoder():  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str((HERE / "tokenizer.json").read_text())
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)
