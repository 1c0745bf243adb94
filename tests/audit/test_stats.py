"""`pileshard stats` tells the truth, however it counts; what is damaged is named in one sentence."""

from __future__ import annotations

import json
import random
import shutil
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import fsspec
import jsonschema
import msgspec
import numpy as np
import pytest

from pileshard.audit import shard_counts
from pileshard.audit.statistics import collect
from pileshard.cli import main
from pileshard.errors import DatasetError, OptionError
from tests.audit.counting import check_statistics
from tests.audit.forge import Forgery
from tests.built import document, run_build, write_input
from tests.data.golden.make_golden import DATASET, HERE
from tests.servers.ranges import RangeHandler
from tests.tokenizers_made import tiny_gpt2_json

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
NAMES = ["parts_dataset", "exact_dataset", "token_dataset", "wide_dataset", "other_dataset"]


def random_dataset(folder: Path, seed: int) -> Path:
    """A build of random lines: sources with and without names, lengths of every size, rejects, blanks, duplicates."""
    rng = random.Random(seed)
    words = [
        "the",
        "of",
        "and",
        "hello",
        "world",
        "text",
        "token",
        "1",
        "2",
        "3",
        "é",
        "中文",
        "привет",
        "()",
        "don't",
        "\n",
    ]
    lines: list[list[object]] = [[], [], []]
    for _ in range(rng.randrange(150, 250)):
        here = rng.choice(lines)
        kind = rng.random()
        if kind < 0.06:
            here.append(rng.choice(["{broken", '{"text": 7}', '{"no": "text"}', '{"text": ""}', b"\xff", "  ", "[]"]))
            continue
        text = " ".join(rng.choices(words, k=int(rng.paretovariate(0.7))))[:60_000]
        if kind > 0.995:
            text = "Q" * rng.choice([65_535, 65_536, 140_000])
        here.append(document(text, rng.choice(["ArXiv", "Wikipedia (en)", "Ünï", "<b>", None])))
    lines[2].append(document("Q" * (70_000 + seed), "ArXiv"))
    inputs = [write_input(folder / f"{number}.jsonl.zst", part) for number, part in enumerate(lines)]  # type: ignore[arg-type]
    (folder / "tokenizer.json").write_bytes(tiny_gpt2_json())
    options = {"validation": 0.25, "dedup": ["none", "exact"][seed % 2], "shard_bytes": 20_000}
    run_build(folder / "out", inputs, tokenizer=str(folder / "tokenizer.json"), seed=seed, **options)
    return folder / "out"


@pytest.fixture(scope="module")
def random_datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [random_dataset(tmp_path_factory.mktemp("random"), seed) for seed in (1, 2)]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_a_slow_count(name: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(name)
    check_statistics(collect(str(root), vocab=True, workers=1), root)


def test_numbers_of_random_datasets_are_those_of_a_slow_count(random_datasets: list[Path]) -> None:
    for root in random_datasets:
        found = collect(str(root), vocab=True, workers=1)
        check_statistics(found, root)
        assert found.counted.records > found.counted.documents, "no document of several records"
        assert set(found.splits) == {"train", "validation"}
        assert sum(found.account.rejected.values()) > 3


def test_random_datasets_are_of_both_kinds(random_datasets: list[Path]) -> None:
    assert {collect(str(root)).account.duplicates is None for root in random_datasets} == {True, False}


def test_numbers_do_not_depend_on_workers_or_on_how_much_is_read_at_once(
    random_datasets: list[Path], parts_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for root in (random_datasets[0], parts_dataset):
        expected = collect(str(root), vocab=True, workers=1)
        assert collect(str(root), vocab=True, workers=3) == expected
        assert collect(str(root)) == msgspec.structs.replace(expected, vocabulary=None)
        for records, size in ((1, 1), (2, 100), (5, 3000)):
            monkeypatch.setattr(shard_counts, "_RECORDS_AT_ONCE", records)
            monkeypatch.setattr(shard_counts, "_BYTES_AT_ONCE", size)
            assert collect(str(root), vocab=True, workers=1) == expected
        monkeypatch.undo()


@pytest.fixture
def remote_urls(tmp_path: Path) -> Iterator[list[str]]:
    """The golden dataset in an object store's memory, and on a web server."""
    name = f"stats-{uuid.uuid4().hex}"
    memory = fsspec.filesystem("memory")
    for path in DATASET.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/{name}/{path.relative_to(DATASET)}", path.read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(RangeHandler, ranges=True, directory=str(DATASET)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield [f"memory://{name}", f"http://127.0.0.1:{server.server_port}"]
    server.shutdown()
    server.server_close()
    thread.join()
    memory.rm(f"/{name}", recursive=True)


@pytest.mark.parametrize("records", [1 << 18, 1])
def test_remote_dataset_gives_the_same_numbers(
    remote_urls: list[str], records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = collect(str(DATASET), vocab=True, workers=1)
    monkeypatch.setattr(shard_counts, "_RECORDS_AT_ONCE", records)
    for url in remote_urls:
        found = collect(url, vocab=True, workers=1)
        assert found == msgspec.structs.replace(expected, url=url)


def test_golden_dataset_gives_the_golden_numbers() -> None:
    from tests.data.golden.make_statistics import statistics_bytes

    assert statistics_bytes() == (HERE / "statistics.json").read_bytes()


def test_json_fits_its_schema(
    random_datasets: list[Path], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    validator = jsonschema.Draft202012Validator(json.loads((SCHEMAS / "statistics.schema.json").read_text()))
    for root in (*random_datasets, empty_dataset(tmp_path)):
        for options in ([], ["--vocab", "--workers", "1"]):
            assert main(["stats", str(root), "--json", "-", *options]) == 0
            found = json.loads(capsysbinary.readouterr().out)
            validator.validate(found)
            assert (found["vocabulary"] is None) == (not options)
            assert found["statistics_version"] == 1


def empty_dataset(folder: Path) -> Path:
    run_build(folder / "empty", [write_input(folder / "empty.jsonl.zst", ["", "{broken"])])
    return folder / "empty"


def test_dataset_of_no_document_has_numbers_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = empty_dataset(tmp_path)
    found = collect(str(root), vocab=True, workers=1)
    check_statistics(found, root)
    assert found.account.rejected == {"invalid_json": 1}
    assert main(["stats", str(root), "--vocab", "--workers", "1"]) == 0
    assert "2 lines of 1 input = 0 accepted + 1 rejected (50.0%) + 1 blank" in capsys.readouterr().out


def test_shard_of_no_document_counts_as_a_shard(tmp_path: Path) -> None:
    dataset = Forgery(DATASET, tmp_path / "dataset")
    dataset.write(dataset.largest(), [])
    found = collect(str(dataset.root), vocab=True, workers=1)
    check_statistics(found, dataset.root)
    assert found.shards.count == len(dataset.shards)


def test_table_for_a_person_has_sources_account_and_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DATASET), "--vocab", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    for text in ("Code (Python 3.10+)", "14 lines of 2 inputs", "rejected: text_not_string 1", "vocabulary: "):
        assert text in out
    assert "duplicates: not looked for" in out


def test_tokenizer_with_an_id_for_the_unknown_has_its_share_told(tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "known": 1, "words": 5}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    lines = [document("known words strange", "A"), document("strange strange known", "B"), document("known", "B")]
    inputs = [write_input(tmp_path / "a.jsonl.zst", lines)]
    run_build(tmp_path / "out", inputs, tokenizer=str(tmp_path / "tokenizer.json"), engine="reference")
    found = collect(str(tmp_path / "out"), vocab=True, workers=1)
    check_statistics(found, tmp_path / "out")
    vocabulary = found.vocabulary
    assert vocabulary is not None
    assert (vocabulary.unknown_id, vocabulary.unknown_tokens, vocabulary.unknown_token_share) == (0, 3, 0.3)
    assert [entry.unknown_tokens for entry in vocabulary.sources] == [1, 2]
    assert vocabulary.holes == 2


def test_ids_above_the_vocabulary_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Forgery(DATASET, tmp_path / "dataset")
    shard = dataset.largest()
    path = dataset.path(shard["path"])
    table = dataset.table(shard)
    data = bytearray(path.read_bytes())
    end = int(table[1, 1]) - 4
    data[end - 4 : end - 2] = np.uint16(320).tobytes()  # the first id that there is not
    path.write_bytes(data)
    vocabulary = collect(str(dataset.root), vocab=True, workers=1).vocabulary
    assert vocabulary is not None
    assert (vocabulary.above, vocabulary.above_ids) == (1, [320])
    assert main(["stats", str(dataset.root), "--vocab", "--workers", "1"]) == 0
    assert "ids above the vocabulary: 1 tokens (320); run `pileshard verify`" in capsys.readouterr().out


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def _swap(at: int, value: int, path: Path) -> None:
    """Another value in the first row and column that `at` names."""
    table = np.load(path)
    table[at, 1] = value
    path.write_bytes(path.read_bytes()[:128] + table.tobytes())


INDEX, SHARD, TOKENIZER = "index_path", "path", "tokenizer"
BROKEN = {
    "no index": (INDEX, Path.unlink, False),
    "index cut off": (INDEX, _cut, False),
    "index longer": (INDEX, _extend, False),
    "index with another header": (INDEX, lambda path: path.write_bytes(b"\x94" + path.read_bytes()[1:]), False),
    "tokens not rising": (INDEX, partial(_swap, 0, 0), False),
    "tokens above all": (INDEX, partial(_swap, 0, 2**63), False),
    "text bytes above all": (INDEX, partial(_swap, 2, 2**64 - 1), False),
    "document that is a part": (INDEX, partial(_swap, 2, 0), False),
    "text bytes of another": (INDEX, partial(_swap, 2, 3), False),
    "offset beyond": (INDEX, partial(_swap, 1, 2**40), True),
    "no shard": (SHARD, Path.unlink, True),
    "shard cut off": (SHARD, _cut, True),
    "no tokenizer": (TOKENIZER, Path.unlink, True),
    "another tokenizer": (TOKENIZER, _extend, True),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("records", [1 << 18, 2])
def test_damaged_dataset_is_refused_in_one_sentence(
    name: str, records: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    what, damage, vocab = BROKEN[name]
    monkeypatch.setattr(shard_counts, "_RECORDS_AT_ONCE", records)
    dataset = Forgery(DATASET, tmp_path / "dataset")
    path = dataset.path("tokenizer.json" if what == TOKENIZER else dataset.largest()[what])
    damage(path)
    assert main(["stats", str(dataset.root), *(["--vocab", "--workers", "1"] if vocab else [])]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"pileshard stats: {path}: ")
    assert "; run `pileshard " in err


@pytest.mark.parametrize("field", ["documents", "tokens"])
def test_manifest_that_does_not_agree_with_itself_is_refused(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DATASET, tmp_path / "dataset")
    path = tmp_path / "dataset" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest[field] += 1
    path.write_text(json.dumps(manifest))
    assert main(["stats", str(path.parent)]) == 1
    assert capsys.readouterr().err.startswith(f"pileshard stats: {path}: does not agree with itself")


def test_path_that_leads_out_of_the_dataset_is_never_opened(tmp_path: Path) -> None:
    shutil.copytree(DATASET, tmp_path / "dataset")
    path = tmp_path / "dataset" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["shards"][0]["index_path"] = "../secret.npy"
    path.write_text(json.dumps(manifest))
    with pytest.raises(DatasetError, match="does not agree with itself"):
        collect(str(path.parent))


def test_no_dataset_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(tmp_path / "none")]) == 1
    assert "no dataset there" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_file_in_no_directory_exits_with_2_before_anything_is_read(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", str(tmp_path / "none"), option, str(tmp_path / "no" / "file")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DATASET), "--workers", "0"]) == 2
    assert main(["stats", "nosuch://bucket/x"]) == 2
    with pytest.raises(OptionError):
        collect(str(DATASET), workers=0)
    with pytest.raises(SystemExit) as caught:
        main(["stats"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("json_name", "html_name"), [("x", "x"), ("x", "../here/./x"), ("link", "x"), ("x", "there/x")]
)
def test_two_reports_are_not_written_into_one_file(
    json_name: str, html_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "link").symlink_to("x")
    (here / "there").symlink_to(here)
    assert main(["stats", str(DATASET), "--json", json_name, "--html", html_name]) == 2
    assert capsys.readouterr().err == (
        f"pileshard stats: --json and --html would both write {html_name}; name another file for one of them\n"
    )
    assert not (here / "x").exists()


def test_report_is_not_written_into_a_file_of_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(DATASET), "--card", str(tmp_path), "--json", str(tmp_path / "croissant.json")]) == 2
    assert "--json and --card would both write" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["stats", str(DATASET), "--card", str(tmp_path), "--json", "-"]) == 0
