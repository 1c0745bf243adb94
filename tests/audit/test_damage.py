"""Damage that no program meant: files lost, cut, exchanged, bits flipped. Hashes and CRCs find it, and say where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pileshard.audit.report import FaultKind as K
from tests.audit.checking import Expected, check_found, run_verify
from tests.audit.forge import Forgery, framed
from tests.data.golden.make_golden import DATASET


@pytest.fixture
def dataset(tmp_path: Path) -> Forgery:
    return Forgery(DATASET, tmp_path / "dataset")


def _flip(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


Case = Callable[[Forgery, Path], list[Expected]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


@case
def missing_shard(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["path"]
    d.path(path).unlink()
    return [Expected(K.MISSING_FILE, path)]


@case
def missing_index(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["index_path"]
    d.path(path).unlink()
    return [Expected(K.MISSING_FILE, path)]


@case
def missing_folder_of_a_source(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["path"]
    shutil.rmtree(d.path(path).parent)
    return [Expected(K.MISSING_FILE, path), Expected(K.MISSING_FILE, d.shards[0]["index_path"])]


@case
def missing_tokenizer(d: Forgery, _: Path) -> list[Expected]:
    d.path("tokenizer.json").unlink()
    return [Expected(K.MISSING_FILE, "tokenizer.json")]


@case
def missing_rejected_lines(d: Forgery, _: Path) -> list[Expected]:
    path = d.manifest["inputs"][0]["rejected_path"]
    d.path(path).unlink()
    return [Expected(K.MISSING_FILE, path)]


@case
def missing_manifest(d: Forgery, _: Path) -> list[Expected]:
    d.path("manifest.json").unlink()
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def unfinished_build(d: Forgery, _: Path) -> list[Expected]:
    d.path("manifest.json").unlink()
    d.path("_build").mkdir()
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def surplus_shard(d: Forgery, _: Path) -> list[Expected]:
    path = "shards/Prose/train-00002-of-00003.tfrecord"
    d.path(path).write_bytes(b"")
    return [Expected(K.SURPLUS_FILE, path)]


@case
def surplus_list_of_rejected_lines(d: Forgery, _: Path) -> list[Expected]:
    d.path("rejected/01.jsonl.jsonl").write_bytes(b"")
    return [Expected(K.SURPLUS_FILE, "rejected/01.jsonl.jsonl")]


@case
def surplus_index(d: Forgery, _: Path) -> list[Expected]:
    path = "shards/Prose/train-00002-of-00003.index.npy"
    shutil.copy(d.path(d.shards[0]["index_path"]), d.path(path))
    return [Expected(K.SURPLUS_FILE, path)]


@case
def renamed_index(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["index_path"]
    other = path.replace("index", "indix")
    d.path(path).rename(d.path(other))
    return [Expected(K.MISSING_FILE, path), Expected(K.SURPLUS_FILE, other)]


@case
def swapped_indexes(d: Forgery, _: Path) -> list[Expected]:
    one, other = (d.shard_of("Prose", number=number) for number in (0, 1))
    first, second = d.path(one["index_path"]).read_bytes(), d.path(other["index_path"]).read_bytes()
    d.path(one["index_path"]).write_bytes(second)
    d.path(other["index_path"]).write_bytes(first)
    return [Expected(kind, s["index_path"]) for s in (one, other) for kind in (K.WRONG_SIZE, K.WRONG_SHA256)]


@case
def truncated_index(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    path = d.path(shard["index_path"])
    path.write_bytes(path.read_bytes()[:-8])
    return [
        Expected(K.WRONG_SIZE, shard["index_path"], shard["index_size"] - 8),
        Expected(K.WRONG_SHA256, shard["index_path"]),
    ]


@case
def extended_index(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    with d.path(shard["index_path"]).open("ab") as file:
        file.write(b"\0" * 32)
    return [Expected(K.WRONG_SIZE, shard["index_path"], shard["index_size"])]


@case
def shard_of_another_build(d: Forgery, other: Path) -> list[Expected]:
    path = d.shard_of("Prose")["path"]
    shutil.copy(other / path, d.path(path))
    return [Expected(K.WRONG_SHA256, path), Expected(K.IDENTITY, path)]


@case
def empty_tokenizer(d: Forgery, _: Path) -> list[Expected]:
    d.path("tokenizer.json").write_bytes(b"")
    return [Expected(K.WRONG_SHA256, "tokenizer.json")]


@case
def empty_manifest(d: Forgery, _: Path) -> list[Expected]:
    d.path("manifest.json").write_bytes(b"")
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def extended_manifest(d: Forgery, _: Path) -> list[Expected]:
    with d.path("manifest.json").open("ab") as file:
        file.write(b"\n")
    return [Expected(K.MANIFEST_CHECKSUM, "manifest.json")]


@case
def renamed_shard(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["path"]
    other = path.replace("train", "trail")
    d.path(path).rename(d.path(other))
    return [Expected(K.MISSING_FILE, path), Expected(K.SURPLUS_FILE, other)]


@case
def swapped_shards(d: Forgery, _: Path) -> list[Expected]:
    one, other = (d.shard_of("Prose", number=number) for number in (0, 1))
    first, second = d.path(one["path"]).read_bytes(), d.path(other["path"]).read_bytes()
    d.path(one["path"]).write_bytes(second)
    d.path(other["path"]).write_bytes(first)
    return [
        Expected(K.WRONG_SHA256, one["path"]),
        Expected(K.WRONG_SHA256, other["path"]),
        Expected(K.WRONG_SIZE, one["path"]),
        Expected(K.IDENTITY, one["path"]),
        Expected(K.KEY_RANGE, one["path"], 0),
    ]


@case
def truncated_shard(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    path = d.path(shard["path"])
    path.write_bytes(path.read_bytes()[:-9])
    return [
        Expected(K.WRONG_SIZE, shard["path"], shard["size"] - 9),
        Expected(K.FRAMING, shard["path"], d.offset(shard, -2)),
    ]


@case
def shard_truncated_within_a_header(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    path, end = d.path(shard["path"]), d.offset(shard, 1)
    path.write_bytes(path.read_bytes()[: end + 7])
    return [Expected(K.WRONG_SIZE, shard["path"]), Expected(K.FRAMING, shard["path"], end)]


@case
def shard_truncated_at_the_end_of_a_record(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    path, end = d.path(shard["path"]), d.offset(shard, -2)
    path.write_bytes(path.read_bytes()[:end])
    return [
        Expected(K.WRONG_SIZE, shard["path"], end),
        Expected(K.TOTALS, shard["path"]),
        Expected(K.IDENTITY, shard["path"]),
    ]


@case
def extended_shard(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    with d.path(shard["path"]).open("ab") as file:
        file.write(b"\0" * 30)
    return [
        Expected(K.WRONG_SIZE, shard["path"], shard["size"]),
        Expected(K.FRAMING, shard["path"], shard["size"]),
        Expected(K.WRONG_SHA256, shard["path"]),
    ]


@case
def shard_extended_by_a_record_of_its_own(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    path = d.path(shard["path"])
    data = path.read_bytes()
    path.write_bytes(data + data[d.offset(shard, -2) :])
    return [
        Expected(K.WRONG_SIZE, shard["path"], shard["size"]),
        Expected(K.KEY_ORDER, shard["path"], shard["size"]),
        Expected(K.TOTALS, shard["path"]),
    ]


@case
def empty_shard(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["path"]
    d.path(path).write_bytes(b"")
    return [Expected(K.WRONG_SIZE, path, 0), Expected(K.TOTALS, path), Expected(K.WRONG_SHA256, path)]


@case
def empty_index(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["index_path"]
    d.path(path).write_bytes(b"")
    return [Expected(K.WRONG_SIZE, path, 0), Expected(K.WRONG_SHA256, path)]


@case
def folder_in_place_of_a_shard(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["path"]
    d.path(path).unlink()
    d.path(path).mkdir()
    return [Expected(K.UNREADABLE, path)]


@case
def folder_in_place_of_an_index(d: Forgery, _: Path) -> list[Expected]:
    path = d.shards[0]["index_path"]
    d.path(path).unlink()
    d.path(path).mkdir()
    return [Expected(K.UNREADABLE, path)]


@case
def file_in_place_of_a_folder(d: Forgery, _: Path) -> list[Expected]:
    folder = d.path(d.shards[0]["path"]).parent
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    return [Expected(K.UNREADABLE, d.shards[0]["path"])]


@case
def folders_in_place_of_the_small_files(d: Forgery, _: Path) -> list[Expected]:
    paths = ["tokenizer.json", d.manifest["inputs"][0]["rejected_path"]]
    for path in paths:
        d.path(path).unlink()
        d.path(path).mkdir()
    return [Expected(K.UNREADABLE, path) for path in paths]


@case
def folder_in_place_of_the_manifest(d: Forgery, _: Path) -> list[Expected]:
    d.path("manifest.json").unlink()
    d.path("manifest.json").mkdir()
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def flipped_bit_in_a_length(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    _flip(d.path(shard["path"]), d.offset(shard, 1))
    return [Expected(K.FRAMING, shard["path"], d.offset(shard, 1)), Expected(K.WRONG_SHA256, shard["path"])]


@case
def flipped_bit_in_the_crc_of_a_length(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    _flip(d.path(shard["path"]), d.offset(shard, 1) + 9)
    return [Expected(K.FRAMING, shard["path"], d.offset(shard, 1))]


@case
def flipped_bit_in_the_head_of_an_example(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    _flip(d.path(shard["path"]), d.offset(shard, 1) + 17)
    return [Expected(K.CRC, shard["path"], d.offset(shard, 1)), Expected(K.RECORD, shard["path"], d.offset(shard, 1))]


@case
def flipped_bit_in_a_token(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    _flip(d.path(shard["path"]), d.offset(shard, 2) - 8, 0)
    return [Expected(K.CRC, shard["path"], d.offset(shard, 1)), Expected(K.WRONG_SHA256, shard["path"])]


@case
def flipped_bit_in_the_crc_of_an_example(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    _flip(d.path(shard["path"]), d.offset(shard, 2) - 2)
    return [Expected(K.CRC, shard["path"], d.offset(shard, 1))]


@case
def flipped_bit_in_an_index(d: Forgery, _: Path) -> list[Expected]:
    path = d.largest()["index_path"]
    _flip(d.path(path), 128 + 8)
    return [Expected(K.WRONG_SHA256, path), Expected(K.INDEX, path)]


@case
def flipped_bit_in_the_header_of_an_index(d: Forgery, _: Path) -> list[Expected]:
    path = d.largest()["index_path"]
    _flip(d.path(path), 70)
    return [Expected(K.WRONG_SHA256, path), Expected(K.INDEX, path)]


@case
def flipped_bit_in_the_manifest(d: Forgery, _: Path) -> list[Expected]:
    path = d.path("manifest.json")
    _flip(path, path.read_bytes().index(b'"writer": "pile') + 12, 0)
    return [Expected(K.MANIFEST_CHECKSUM, "manifest.json")]


@case
def flipped_bit_in_the_tokenizer(d: Forgery, _: Path) -> list[Expected]:
    _flip(d.path("tokenizer.json"), 1000)
    return [Expected(K.WRONG_SHA256, "tokenizer.json")]


@case
def cut_manifest(d: Forgery, _: Path) -> list[Expected]:
    path = d.path("manifest.json")
    path.write_bytes(path.read_bytes()[:1000])
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def manifest_written_in_another_form(d: Forgery, _: Path) -> list[Expected]:
    d.path("manifest.json").write_text(json.dumps(d.manifest))
    return [Expected(K.MANIFEST_CHECKSUM, "manifest.json")]


@case
def manifest_of_a_newer_format(d: Forgery, _: Path) -> list[Expected]:
    d.manifest["format_version"] = 2
    d.sign()
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def manifest_of_an_older_format(d: Forgery, _: Path) -> list[Expected]:
    d.manifest["format_version"] = 0
    d.sign()
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def manifest_without_a_format_version(d: Forgery, _: Path) -> list[Expected]:
    del d.manifest["format_version"]
    d.sign_as_it_is()
    return [Expected(K.MANIFEST, "manifest.json")]


@case
def index_of_another_shard(d: Forgery, _: Path) -> list[Expected]:
    one, other = (d.shard_of("Prose", number=number) for number in (0, 1))
    shutil.copy(d.path(other["index_path"]), d.path(one["index_path"]))
    return [Expected(K.WRONG_SIZE, one["index_path"]), Expected(K.WRONG_SHA256, one["index_path"])]


@case
def shard_and_index_of_another_dataset(d: Forgery, other: Path) -> list[Expected]:
    shard = d.shard_of("Prose")
    for name in (shard["path"], shard["index_path"]):
        shutil.copy(other / name, d.path(name))
    return [
        Expected(K.WRONG_SHA256, shard["path"]),
        Expected(K.WRONG_SHA256, shard["index_path"]),
        Expected(K.IDENTITY, shard["path"]),
    ]


@case
def manifest_of_another_dataset(d: Forgery, other: Path) -> list[Expected]:
    shutil.copy(other / "manifest.json", d.path("manifest.json"))
    return [Expected(K.WRONG_SHA256, d.shard_of("Prose")["path"])]


@case
def tokenizer_of_another_dataset(d: Forgery, _: Path) -> list[Expected]:
    from tests.tokenizers_made import tiny_gpt2_json

    d.path("tokenizer.json").write_bytes(tiny_gpt2_json(330))
    return [Expected(K.WRONG_SHA256, "tokenizer.json")]


@case
def record_put_in_the_place_of_another(d: Forgery, _: Path) -> list[Expected]:
    shard = d.largest()
    path = d.path(shard["path"])
    data = path.read_bytes()
    begin, end = d.offset(shard, 1), d.offset(shard, 2)
    path.write_bytes(data[:begin] + framed(b"\0" * (end - begin - 16)) + data[end:])
    return [Expected(K.RECORD, shard["path"], begin), Expected(K.WRONG_SHA256, shard["path"])]


@pytest.mark.parametrize("name", CASES)
def test_damage_is_found_and_named(name: str, dataset: Forgery, other_dataset: Path) -> None:
    expected = CASES[name](dataset, other_dataset)
    for fault in expected:
        check_found(dataset.root, fault)


@pytest.mark.parametrize(
    "name", ["swapped_shards", "shard_truncated_at_the_end_of_a_record", "empty_shard", "flipped_bit_in_a_length"]
)
def test_sound_index_beside_a_damaged_shard_is_not_named(name: str, dataset: Forgery, other_dataset: Path) -> None:
    paths = [shard[key] for shard in dataset.shards for key in ("path", "index_path")]
    before = {path: dataset.path(path).read_bytes() for path in paths}
    CASES[name](dataset, other_dataset)
    changed = {path for path in paths if dataset.path(path).read_bytes() != before[path]}
    assert changed
    assert all(path.endswith(".tfrecord") for path in changed)
    _, report = run_verify(dataset.root)
    assert {fault["path"] for fault in report["faults"]} == changed


QUICK = [
    "missing_shard",
    "missing_index",
    "missing_tokenizer",
    "missing_rejected_lines",
    "missing_manifest",
    "surplus_shard",
    "renamed_shard",
    "empty_shard",
    "empty_index",
    "flipped_bit_in_the_manifest",
    "flipped_bit_in_the_tokenizer",
    "flipped_bit_in_the_header_of_an_index",
    "index_of_another_shard",
]


@pytest.mark.parametrize("name", QUICK)
def test_what_the_quick_level_sees(name: str, dataset: Forgery, other_dataset: Path) -> None:
    expected, *_ = CASES[name](dataset, other_dataset)
    if expected.kind is K.WRONG_SHA256 and expected.path.endswith(".npy"):
        expected = Expected(K.INDEX, expected.path)
    check_found(dataset.root, expected, level="quick")


def test_sound_dataset_has_no_fault_at_any_level(dataset: Forgery) -> None:
    for level in ("quick", "full"):
        code, report = run_verify(dataset.root, level)
        assert (code, report["faults"]) == (0, [])
        assert report["dataset_id"] == dataset.manifest["dataset_id"]
        assert report["shards"] == len(dataset.shards)
    assert (report["documents"], report["tokens"]) == (dataset.manifest["documents"], dataset.manifest["tokens"])
    assert report["bytes_read"] == sum(shard["size"] for shard in dataset.shards)
