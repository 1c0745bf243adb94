"""`pileshard inspect`: rows and documents are what the inputs hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pileshard
from pileshard.cli import main
from tests.built import DEMO_INPUTS, document, run_build, write_input
from tests.format.validating import validator
from tests.records import documents


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspect") / "dataset"
    run_build(root)
    return root


def test_a_document_is_found_by_input_and_line(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from backports import zstd

    lines = zstd.decompress(Path(DEMO_INPUTS[2]).read_bytes()).split(b"\n")
    assert main(["inspect", str(dataset), "--document", "02.jsonl.zst:7", "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    validator("inspect-document").validate(view)
    assert view["text"] == json.loads(lines[6])["text"]
    assert view["source"] == json.loads(lines[6])["meta"]["pile_set_name"]
    assert (view["input"], view["line"]) == (2, 7)
    assert main(["inspect", str(dataset), "--document", "2:7"]) == 0
    assert view["text"] in capsys.readouterr().out


def test_a_line_that_is_no_document_is_said_to_be_none(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(dataset), "--document", "01.jsonl.zst:12"]) == 1
    assert "holds no document of line 12" in capsys.readouterr().err
    for line, problem in (("0", "no line 0"), ("9" * 30, "no line 999,999")):
        assert main(["inspect", str(dataset), "--document", f"01.jsonl.zst:{line}"]) == 1
        told = capsys.readouterr().err
        assert problem in told
        assert "counted from 1" in told
        assert told.count("\n") == 1
    assert main(["inspect", str(dataset), "--document", "zst:12"]) == 2
    assert main(["inspect", str(dataset), "--document", "7"]) == 2
    assert main(["inspect", str(dataset)]) == 2


def test_a_position_shows_its_row_piece_by_piece(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    positions = [0, 5, 11]
    args = [word for position in positions for word in ("--position", str(position))]
    assert main(["inspect", str(dataset), "--seed", "3", "--seq-len", "32", "--json", *args]) == 0
    views = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    iterator = pileshard.numpy_dataset(0, 3, path=str(dataset), world_size=1, seq_len=32, batch_size=1)
    rows = [next(iterator)[0][0].tolist() for _ in range(12)]
    held = {(number, line): ids for _, _, number, line, ids in documents(dataset)}
    for position, view in zip(positions, views, strict=True):
        validator("inspect-row").validate(view)
        assert view["ids"][:-1] == rows[position]
        for piece in view["location"]["pieces"]:
            begin, end = piece["row_tokens"]
            low, high = piece["record_tokens"]
            assert held[piece["input"], piece["line"]][low:high] == view["ids"][begin:end]


def test_mixtures_are_asked_for_as_in_training(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["inspect", str(dataset), "--position", "0", "--seq-len", "32", "--json"]
    assert main([*args, "--weights", '{"Code": 1}']) == 0
    assert json.loads(capsys.readouterr().out)["location"]["source"] == "Code"
    assert main([*args, "--weights", '{"Cod": 1}']) == 2
    assert "'Code'" in capsys.readouterr().err
    assert main([*args, "--weights", "nonsense"]) == 2


ORDER = {
    "--seed": ["0"],
    "--seq-len": ["32"],
    "--slots": ["12"],
    "--weights": ["pile"],
    "--epochs": ['{"Code": 2}'],
    "--exclude": ["Code"],
    "--packing": ["document"],
    "--fim-rate": ["0.5"],
    "--fim-spm-rate": ["0.5"],
    "--fim-ids": ["5", "6", "7"],
}


@pytest.mark.parametrize("option", ORDER)
@pytest.mark.parametrize("shown", [["--find"], ["--shard", "0"], ["--document", "0:1"]])
def test_options_of_the_order_are_refused_where_no_position_is_shown(
    dataset: Path, option: str, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(dataset), *shown, option, *ORDER[option]]) == 2
    assert capsys.readouterr() == ("", f"pileshard inspect: {option} goes with --position\n")


def test_split_is_refused_where_it_would_say_nothing(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (["--shard", "0"], ["--document", "0:1"]):
        assert main(["inspect", str(dataset), *shown, "--split", "train"]) == 2
        assert capsys.readouterr().err == "pileshard inspect: --split goes with --position or --find\n"


def test_a_document_of_a_deduplicated_dataset_is_found_by_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_input(tmp_path / "in.jsonl.zst", [document("one"), document("two"), document("one")])
    run_build(tmp_path / "dataset", [path], dedup="exact")
    assert main(["inspect", str(tmp_path / "dataset"), "--document", "0:2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "two"
    assert main(["inspect", str(tmp_path / "dataset"), "--document", "0:3"]) == 1


@pytest.mark.parametrize("packing", ["best_fit", "document"])
def test_packed_rows_are_explained_too(dataset: Path, packing: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["inspect", str(dataset), "--seq-len", "64", "--packing", packing, "--json"]
    assert main([*args, "--position", "0", "--position", "7"]) == 0
    views = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    iterator = pileshard.numpy_dataset(path=str(dataset), world_size=1, seq_len=64, batch_size=1, packing=packing)
    rows = [next(iterator)["input_ids"][0].tolist() for _ in range(8)]
    held = {(number, line): ids for _, _, number, line, ids in documents(dataset)}
    for position, view in zip((0, 7), views, strict=True):
        assert view["ids"][:-1] == rows[position]
        assert view["location"]["pieces"]
        for piece in view["location"]["pieces"]:
            begin, end = piece["row_tokens"]
            low, high = piece["record_tokens"]
            assert held[piece["input"], piece["line"]][low:high] == view["ids"][begin:end]


def test_rows_filled_in_the_middle_are_shown_as_training_sees_them(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fim = ["--fim-rate", "1.0", "--fim-ids", "5", "6", "7"]
    for packing in ("concat", "best_fit"):
        args = ["inspect", str(dataset), "--seq-len", "64", "--packing", packing, *fim, "--json", "--position", "3"]
        assert main(args) == 0
        view = json.loads(capsys.readouterr().out)
        options = {"packing": packing, "fim_rate": 1.0, "fim_ids": (5, 6, 7), "segment_ids": True}
        iterator = pileshard.numpy_dataset(
            path=str(dataset), world_size=1, seq_len=64, batch_size=1, start=3, **options
        )
        batch = next(iterator)
        validator("inspect-row").validate(view)
        assert view["trained_ids"] == [*batch["input_ids"][0].tolist(), int(batch["labels"][0, -1])]
        assert view["trained_ids"] != view["ids"]
        assert main(args[:-3] + args[-2:]) == 0
        assert f"--- as training sees it, filled in the middle\n{view['trained_text']}" in capsys.readouterr().out


def test_ends_of_documents_are_drawn_in_rows(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["inspect", str(dataset), "--seq-len", "512", "--position", "0"]
    assert main([*args, "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    eod = pileshard.open(str(dataset)).manifest.eod_id
    assert view["ids"].count(eod) > 0
    assert main(args) == 0
    out = capsys.readouterr().out
    assert out.count("=== end of document") == view["ids"].count(eod)
    assert pileshard.open(str(dataset)).manifest.eod_token not in out
