"""`pileshard inspect --shard` and `--find`: what the shards hold, found without reading them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.audit import places, search
from pileshard.audit.browse import inspect_shard
from pileshard.audit.inspect import load_decoder
from pileshard.cli import main
from pileshard.corpus import open_corpus
from pileshard.errors import OptionError
from pileshard.format.storage import Storage
from tests.audit.forge import Forgery
from tests.built import run_build
from tests.data.golden.make_golden import DATASET
from tests.format.validating import validator
from tests.records import documents, examples


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browse") / "dataset"
    run_build(root, shard_bytes=16_000, validation=0.2)
    return root


def _json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["inspect", *args, "--json"]) == 0
    view: dict[str, Any] = json.loads(capsys.readouterr().out)
    return view


def _manifest(root: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((root / "manifest.json").read_bytes())
    return manifest


def test_the_records_of_a_shard_are_shown_as_it_holds_them(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = _manifest(dataset)
    decoder = load_decoder(open_corpus(str(dataset)))
    for number, shard in enumerate(manifest["shards"][:4]):
        held = list(examples(dataset / shard["path"]))
        view = _json(capsys, str(dataset), "--shard", shard["path"], "--head", "1000", "--characters", "100000")
        validator("inspect-shard").validate(view)
        assert view == _json(capsys, str(dataset), "--shard", str(number), "--head", "1000", "--characters", "100000")
        assert (view["records"], view["documents"], view["tokens"]) == (
            shard["records"],
            shard["documents"],
            shard["tokens"],
        )
        assert len(view["listed"]) == shard["records"]
        for record, features in zip(view["listed"], held, strict=True):
            assert (record["input"], record["line"], record["part"]) == (
                features["input"],
                features["line"],
                features["part"],
            )
            assert record["url"] == manifest["inputs"][record["input"]]["url"]
            assert record["tokens"] == len(features["tokens"]) // 2
            ids = list(memoryview(features["tokens"]).cast("H"))
            assert (record["text"], record["whole"]) == (decoder.decode(ids[:-1]), True)
        assert view["listed"][0]["first_token"] == 0


def test_a_shard_is_shown_from_a_record_on(parts_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = _json(capsys, str(parts_dataset), "--shard", "0", "--head", "100")["listed"]
    assert any(record["part"] == 2 for record in every)
    for record, after in zip(every, [*every[1:], None], strict=True):
        assert record["ends_document"] == (after is None or after["part"] == 0)
        assert record["whole"] == (record["tokens"] <= 201)
        assert len(record["text"]) == min(200, record["tokens"] - record["ends_document"])
    for first in range(len(every)):
        view = _json(capsys, str(parts_dataset), "--shard", "0", "--head", "2", "--first", str(first))
        assert view["listed"] == every[first : first + 2]
    assert main(["inspect", str(parts_dataset), "--shard", "0", "--first", str(len(every))]) == 2
    assert f"there is no record {len(every)}" in capsys.readouterr().err


def test_a_shard_is_named_by_the_end_of_its_path(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = _manifest(dataset)["shards"]
    path = shards[0]["path"]
    wanted = _json(capsys, str(dataset), "--shard", path)
    for name in (str(dataset / path), path.removeprefix("shards/"), shards[0]["index_path"], "0"):
        assert _json(capsys, str(dataset), "--shard", name) == wanted
    assert main(["inspect", str(dataset), "--shard", "nothing.tfrecord"]) == 2
    assert "no shard named 'nothing.tfrecord'" in capsys.readouterr().err
    name = path.rsplit("/", 1)[1]
    same = sum(shard["path"].endswith("/" + name) for shard in shards)
    assert main(["inspect", str(dataset), "--shard", name]) == (2 if same > 1 else 0)


def test_ends_of_documents_are_drawn(parts_dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(parts_dataset), "--shard", "0", "--head", "100"]) == 0
    out = capsys.readouterr().out
    assert out.count("=== end of document") == 6
    assert out.count("--- record ") == 9
    assert out.count("(part 0)") == 2
    assert "\x1b" not in out


def _wanted(root: Path, **options: Any) -> list[tuple[int, str, str, int, int]]:
    """The documents that fit, by reading them all."""
    found = []
    for source, split, number, line, ids in documents(root):
        if options.get("sources") and source not in options["sources"]:
            continue
        if options.get("split") not in (None, split):
            continue
        low, high = options.get("min_tokens"), options.get("max_tokens")
        if (low is None or len(ids) >= low) and (high is None or len(ids) <= high):
            found.append((len(ids), source, split, number, line))
    if options.get("order") == "longest":
        found.sort(key=lambda document: -document[0])
    if options.get("order") == "shortest":
        found.sort(key=lambda document: document[0])
    return found


@pytest.fixture(params=["dataset", "parts_dataset", "exact_dataset", "wide_dataset"])
def any_dataset(request: pytest.FixtureRequest) -> Path:
    root: Path = request.getfixturevalue(request.param)
    return root


@pytest.mark.parametrize("order", ["dataset", "longest", "shortest"])
@pytest.mark.parametrize("block", [3, 1 << 18])
def test_every_search_finds_what_a_reading_of_all_does(
    any_dataset: Path, order: search.Order, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_BLOCK", block)
    corpus = open_corpus(str(any_dataset))
    decoder = load_decoder(corpus)
    lengths = sorted({length for length, *_ in _wanted(any_dataset)})
    middle = lengths[len(lengths) // 2]
    cases: list[dict[str, Any]] = [
        {},
        {"min_tokens": middle},
        {"max_tokens": middle},
        {"min_tokens": middle, "max_tokens": middle},
        {"min_tokens": lengths[-1] + 1},
        *({"sources": [entry.name], "split": entry.split} for entry in corpus.sources),
    ]
    for case in cases:
        wanted = _wanted(any_dataset, order=order, **case)
        for limit in (1, 4) if block > 3 else (10,):
            view = search.search(corpus, decoder, order=order, limit=limit, characters=5, **case)
            found = [(d.tokens, d.source, d.split, d.input, d.line) for d in view.documents]
            assert view.matches == len(wanted)
            assert found == wanted[:limit]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=40), st.integers(1, 7), st.integers(1, 5), st.integers(1, 5))
def test_documents_are_put_together_over_blocks_of_any_size(parts: list[int], block: int, low: int, high: int) -> None:
    class Made:
        """An index of documents of so many records of one token each."""

        def __init__(self, *_: Any) -> None:
            self.heads = [at == 0 for count in parts for at in range(count)]

        def row(self, row: int, first: int, last: int) -> Any:
            return places.np.arange(first, last, dtype="u8")

        def documents(self, first: int, last: int) -> Any:
            heads = places.np.array([at for at in range(first, last) if self.heads[at]], dtype="i8")
            return heads, heads.astype("u8") + 1

    class Shard:
        records = sum(parts)

    class Corpus:
        storage = None

        class manifest:  # noqa: N801
            shards = (Shard,)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "Places", Made)
        patch.setattr(search, "_BLOCK", block)
        count, hits = search._search_shard(Corpus, 0, lambda n: (n >= low) & (n <= high), "dataset", 1000)  # type: ignore[arg-type]
    starts = [sum(parts[:at]) for at in range(len(parts))]
    wanted = [(start, size) for start, size in zip(starts, parts, strict=True) if low <= size <= high]
    assert count == len(wanted)
    assert list(zip(hits.record.tolist(), hits.tokens.tolist(), strict=True)) == wanted
    assert (hits.text_bytes == hits.record + 1).all()


@pytest.fixture
def remote(dataset: Path) -> Iterator[str]:
    name = f"browse-{uuid.uuid4().hex}"
    memory = fsspec.filesystem("memory")
    for path in dataset.rglob("*"):
        if path.is_file() and "_build" not in path.parts:
            memory.pipe_file(f"/{name}/{path.relative_to(dataset)}", path.read_bytes())
    yield f"memory://{name}"
    memory.rm(f"/{name}", recursive=True)


def test_a_remote_dataset_gives_the_same_and_only_the_hits_are_read(
    dataset: Path, remote: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for args in (["--find", "--longest", "3"], ["--find", "--source", "Code", "--limit", "2"], ["--shard", "1"]):
        here = _json(capsys, str(dataset), *args)
        read: list[tuple[str, int]] = []
        with monkeypatch.context() as patch:
            read_range = Storage.read_range

            def counted(self: Storage, path: str, start: int, end: int, *rest: Any, **options: Any) -> bytes:
                read.append((path, end - start))  # noqa: B023
                return read_range(self, path, start, end, *rest, **options)  # noqa: B023

            patch.setattr(Storage, "read_range", counted)
            assert _json(capsys, remote, *args) == here
        of_shards = [(path, size) for path, size in read if path.endswith(".tfrecord")]
        shown = here["listed"] if "listed" in here else here["documents"]
        assert len(of_shards) == len(shown)
        assert sum(size for _, size in of_shards) <= len(shown) * (2 * 801 + 200)


def test_a_search_is_told_to_a_person(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = _json(capsys, str(dataset), "--find", "--source", "Code", "--longest", "2")
    validator("inspect-search").validate(view)
    assert main(["inspect", str(dataset), "--find", "--source", "Code", "--longest", "2"]) == 0
    out = capsys.readouterr().out
    assert f"{view['matches']} documents fit" in out
    assert "the longest 2 are shown" in out
    for found in view["documents"]:
        assert f"--- {found['tokens']:,} tokens, source 'Code'" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "say what to show: --position, --document, --shard or --find"),
        (["--head", "3", "--find"], "--head goes with --shard"),
        (["--min-tokens", "3", "--shard", "0"], "--min-tokens goes with --find"),
        (["--characters", "3", "--position", "0"], "--characters goes with --shard or --find"),
        (["--shard", "0", "--head", "0"], "--head 0 is below 1"),
        (["--shard", "0", "--first", "-1"], "--first -1 is below 0"),
        (["--find", "--longest", "2", "--shortest", "2"], "give one of --longest, --shortest and --limit"),
        (["--find", "--limit", "0"], "--limit 0 is below 1"),
        (["--find", "--min-tokens", "5", "--max-tokens", "4"], "no document has at least 5 and at most 4 tokens"),
        (["--find", "--source", "Cod"], "'Cod' is none of the sources: 'Code'"),
        (["--find", "--split", "validation"], "no split 'validation'"),
    ],
)
def test_wrong_usage_is_one_sentence(
    args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "validation" in args:
        run_build(tmp_path / "dataset")
    root = tmp_path / "dataset" if "validation" in args else DATASET
    assert main(["inspect", str(root), *args]) == 2
    err = capsys.readouterr().err
    assert said.replace("'Code'", "'Code (Python 3.10+)'") in err
    assert err.count("\n") == 1


def test_damage_is_one_sentence_that_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(change: str, *args: str) -> str:
        root = tmp_path / f"{change}{len(list(tmp_path.iterdir()))}"
        dataset = Forgery(DATASET, root)
        shard = dataset.largest()
        number = dataset.shards.index(shard)
        path = dataset.path(shard["index_path" if change.startswith("index") else "path"])
        data = bytearray(path.read_bytes())
        if change == "index_gone" or change == "shard_gone":
            path.unlink()
        elif change == "index_header":
            data[60] ^= 1
        elif change == "index_short":
            del data[198:]
        elif change == "index_tokens":
            data[128 + 8 : 128 + 16] = b"\xff" * 8
        elif change == "index_offsets":
            data[128 + 8 * (shard["records"] + 1) + 8] ^= 1
        else:
            data[17] ^= 1
        if path.exists():
            path.write_bytes(data)
        assert main(["inspect", str(root), *(arg.replace("N", str(number)) for arg in args)]) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert str(path.relative_to(root)).split(".")[0] in err
        assert "run `pileshard verify" in err
        shutil.rmtree(root)
        return err

    for args in (["--shard", "N"], ["--find", "--limit", "1000"]):
        assert "is not there" in say("index_gone", *args)
        assert "its header is not that of an index" in say("index_header", *args)
        say("index_short", *args)
        say("index_offsets", *args)
        assert "is not there" in say("shard_gone", *args)
        assert "no record at byte 0" in say("shard_head", *args)
    assert "cannot be" in say("index_tokens", "--find")


def test_shards_that_are_not_there_are_named_by_the_library_too(dataset: Path) -> None:
    corpus = open_corpus(str(dataset))
    with pytest.raises(OptionError, match="no shard named"):
        inspect_shard(corpus, "9999999", load_decoder(corpus))
