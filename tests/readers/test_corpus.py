"""Opening a dataset reads its manifest alone, and every row can be traced back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pileshard
from pileshard.errors import DatasetError, OptionError
from pileshard.format.record import RECORD_TOKENS
from tests.readers.made import Made, make_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [3 * RECORD_TOKENS, 30_000], ("b", "train"): [9000], ("b", "validation"): [700]}
    means = {"a": 2 * RECORD_TOKENS, "b": 20}
    return make_dataset(str(tmp_path_factory.mktemp("corpus")), shards, mean_document=means)


def test_a_corpus_tells_what_it_holds(made: Made) -> None:
    corpus = pileshard.open(made.url)
    assert corpus.dataset_id == made.manifest.dataset_id
    assert corpus.tokens == sum(len(stream) for stream in made.streams)
    assert [(s.name, s.split) for s in corpus.sources] == [("a", "train"), ("b", "train"), ("b", "validation")]
    assert corpus.plan(seed=1, split="validation", seq_len=9).shard_tokens.tolist() == [700]


@pytest.mark.parametrize("seq_len", [100, 5000])
def test_every_token_of_a_row_is_traced_to_its_line(made: Made, seq_len: int) -> None:
    plan = pileshard.open(made.url).plan(seed=2, seq_len=seq_len, slots=12)
    numbers = made.split("train")
    for position in np.random.default_rng(0).integers(0, 3 * plan.samples_per_epoch, 40).tolist():
        found = plan.locate(position)
        number = next(n for n in numbers if made.manifest.shards[n].path == found.shard)
        begin, end = found.tokens
        assert end - begin == seq_len + 1
        assert np.array_equal(plan.row(position), made.streams[number][begin:end])
        assert found.position == position
        assert found.epoch == position // plan.samples_per_epoch
        assert found.source == made.manifest.shards[number].source
        owners = np.empty((seq_len + 1, 4), dtype=np.int64)
        at = 0
        for piece in found.pieces:
            assert piece.row_tokens[0] == at
            at = piece.row_tokens[1]
            assert piece.url == f"input-{piece.input:02}.jsonl.zst"
            owners[slice(*piece.row_tokens), :3] = piece.input, piece.line, piece.part
            owners[slice(*piece.row_tokens), 3] = np.arange(*piece.record_tokens)
        assert at == seq_len + 1
        assert np.array_equal(owners, made.owners[number][begin:end])


def test_a_record_that_is_damaged_is_named(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [500]}, mean_document=10_000)
    path = tmp_path / made.manifest.shards[0].path
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"record 0 is not readable .*pileshard repair"):
        pileshard.open(made.url).plan(seq_len=10).locate(0)


def test_missing_datasets_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PILESHARD_DATA", raising=False)
    with pytest.raises(OptionError, match="PILESHARD_DATA"):
        pileshard.open()
    with pytest.raises(DatasetError, match=r"manifest.json: not found"):
        pileshard.open(tmp_path)


def test_opening_opens_no_shard(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [500]})
    entry = made.manifest.shards[0]
    for path in (entry.path, entry.index_path):
        (tmp_path / path).unlink()
    plan = pileshard.open(tmp_path).plan(seq_len=10)
    assert plan.rows([0, 1]).shard.tolist() == [0, 0]
    with pytest.raises(DatasetError):
        plan.row(0)


def test_importing_is_quick_and_imports_no_framework() -> None:
    code = (
        "import time; t = time.perf_counter(); import pileshard; t = time.perf_counter() - t; import sys; "
        "heavy = [m for m in ('tensorflow', 'apache_beam', 'numpy') if m in sys.modules]; "
        "import pileshard.order; "
        "also = [m for m in ('tensorflow', 'apache_beam', 'fsspec') if m in sys.modules]; "
        "pileshard.open, pileshard.numpy_dataset, pileshard.dataset; "
        "print(t, heavy, also, 'tensorflow' in sys.modules)"
    )
    seconds, rest = subprocess.check_output([sys.executable, "-c", code], text=True).split(maxsplit=1)
    assert float(seconds) < 0.3
    assert rest.strip() == "[] [] False"
