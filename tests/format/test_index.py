"""Indexes: a .npy file for any reader, and never more memory than the file has bytes."""

from __future__ import annotations

import io
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.errors import DatasetError
from pileshard.format.index import HEADER_BYTES, Index, load_index, make_index, npy_header
from pileshard.format.storage import Storage

PATH = "shards/a/train-00000-of-00001.index.npy"


def _write(root: Path, data: bytes) -> Storage:
    target = root / PATH
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return Storage(str(root))


def _table(records: int, seed: int = 0) -> Index:
    rng = np.random.default_rng(seed)
    tokens, offsets = (np.concatenate([[0], np.cumsum(rng.integers(1, 1000, records))]) for _ in range(2))
    return make_index(
        tokens.astype(np.uint64), offsets.astype(np.uint64), np.ones(records, np.uint64), np.arange(records)
    )


@pytest.mark.parametrize("records", [0, 1, 9, 10_000])
def test_index_is_what_numpy_saves_and_loads(records: int, tmp_path: Path) -> None:
    index = _table(records)
    out = io.BytesIO()
    np.save(out, index.table)
    assert index.to_bytes() == out.getvalue()
    assert (np.load(io.BytesIO(index.to_bytes())) == index.table).all()


@given(st.integers(0, 50), st.integers(0, 5))
def test_index_comes_back_from_a_directory_and_from_a_store(records: int, seed: int) -> None:
    index = _table(records, seed)
    memory = Storage("memory://index-round-trip")
    memory.write_bytes(PATH, index.to_bytes())
    back = load_index(memory, PATH)
    assert (back.table == index.table).all()
    assert (back.records, back.total_tokens) == (records, int(index.tokens[-1]))


def test_index_of_a_directory_is_mapped(tmp_path: Path) -> None:
    index = _table(5)
    back = load_index(_write(tmp_path, index.to_bytes()), PATH)
    assert isinstance(back.table, np.memmap)
    for name in ("tokens", "offsets", "text_bytes", "keys"):
        row = getattr(back, name)
        assert row.flags.c_contiguous
        assert row.tolist() == getattr(index, name).tolist()


def test_header_has_its_size_for_any_number_of_records() -> None:
    assert {len(npy_header(columns)) for columns in (1, 10, 10**6, 2**63)} == {HEADER_BYTES}


def _archive() -> bytes:
    out = io.BytesIO()
    np.savez(out, table=np.zeros((4, 3), np.uint64))
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        _table(3).to_bytes()[:-1],
        _table(3).to_bytes() + b"\0",
        _table(3).to_bytes()[:-32],
        _table(3).to_bytes() + bytes(32),
        b"PK\x03\x04" + _table(3).to_bytes()[4:],
        _archive(),
        npy_header(2**60) + bytes(128),
        npy_header(4).replace(b"<u8", b"<i8") + bytes(128),
        npy_header(4).replace(b"False", b"True ") + bytes(128),
        npy_header(4).replace(b"(4, 4)", b"(9**9)") + bytes(128),
    ],
)
def test_what_is_no_index_is_refused_in_one_sentence(data: bytes, tmp_path: Path) -> None:
    memory = Storage("memory://index-refused")
    memory.write_bytes(PATH, data)
    for storage in (_write(tmp_path, data), memory):
        with pytest.raises(DatasetError) as caught:
            load_index(storage, PATH)
        assert PATH in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_index_says_what_to_do(tmp_path: Path) -> None:
    for storage in (Storage(str(tmp_path)), Storage("memory://index-missing")):
        with pytest.raises(DatasetError, match="missing; run `pileshard repair"):
            load_index(storage, PATH)


def teardown_module() -> None:
    for name in fsspec.filesystem("memory").ls("/", detail=False):
        if name.startswith("/index-"):
            fsspec.filesystem("memory").rm(name, recursive=True)
