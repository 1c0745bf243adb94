"""Runs give back, for any range of keys, exactly the documents that were put in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.job import RunEntry, TokenizeItem, TokenizeReceipt
from beam_jobs.runs import MAGIC, RunBuffer, read_buckets, read_rows, read_spreads
from beam_jobs.shard_plan import plan_groups
from pileshard.errors import BuildError
from pileshard.format.identity import split_hashes, text_keys
from pileshard.format.storage import Storage

KEYS = st.integers(0, 2**64 - 1)
DOCUMENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["train", "validation"]),
        KEYS | st.integers(0, 3).map(lambda small: small << 62),
        st.lists(st.integers(0, 65535), max_size=6),
    ),
    min_size=1,
    max_size=40,
)


Documents = list[tuple[str, str, int, list[int]]]


def make_run(storage: Storage, documents: Documents, batch: int = 7, buffer: RunBuffer | None = None) -> RunEntry:
    buffer = buffer or RunBuffer(np.dtype("<u2"), limit=1 << 20)
    for start in range(0, len(documents), batch):
        part = documents[start : start + batch]
        buffer.add(
            np.array([token for *_, tokens in part for token in tokens], dtype="<u2"),
            np.cumsum([len(tokens) for *_, tokens in part]),
            np.array([buffer.group_number(source, split) for source, split, _, _ in part]),
            np.array([key for _, _, key, _ in part], dtype=np.uint64),
            np.arange(start + 1, start + 1 + len(part)),
            np.arange(start, start + len(part)),
            np.zeros(len(part), dtype=np.uint64),
        )
    entry = buffer.write(storage, "run")
    assert buffer.empty
    assert not buffer.held
    return entry


@given(documents=DOCUMENTS, ends=st.tuples(KEYS, KEYS))
def test_a_range_of_keys_gives_exactly_its_documents(
    documents: list[tuple[str, str, int, list[int]]], ends: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("run")
    storage = Storage(str(root))
    entry = make_run(storage, documents)
    data = (root / entry.path).read_bytes()
    assert len(data) == entry.size
    assert data.startswith(MAGIC)
    first, last = min(ends), max(ends)
    for group in entry.groups:
        rows, before = read_rows(storage, entry.path, group, first, last)
        at = group.tokens_at + before * 2
        found = []
        for row in rows:
            size = int(row["tokens"]) * 2
            found.append((int(row["key"]), int(row["line"]), np.frombuffer(data[at : at + size], "<u2").tolist()))
            at += size
        wanted = sorted(
            (key, line + 1, tokens)
            for line, (source, split, key, tokens) in enumerate(documents)
            if (source, split) == (group.source, group.split) and first <= key <= last
        )
        assert found == wanted
    assert sum(group.documents for group in entry.groups) == len(documents)


@given(documents=DOCUMENTS, cut=st.integers(0, 40))
def test_bucket_counts_do_not_depend_on_how_documents_fall_into_runs(
    documents: list[tuple[str, str, int, list[int]]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("run")))

    def counts(parts: list[list[tuple[str, str, int, list[int]]]]) -> dict[tuple[str, str, int], tuple[int, int]]:
        out: dict[tuple[str, str, int], tuple[int, int]] = {}
        for part in parts:
            entry = make_run(storage, part)
            for group in entry.groups:
                for bucket, number, tokens in read_buckets(storage, entry.path, group).tolist():
                    had = out.get((group.source, group.split, bucket), (0, 0))
                    out[group.source, group.split, bucket] = (had[0] + number, had[1] + tokens)
        return out

    parts = [part for part in (documents[:cut], documents[cut:]) if part]
    assert counts([documents]) == counts(parts)


def test_a_run_that_is_cut_off_is_an_error_that_names_it(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    entry = make_run(storage, [("a", "train", 5, [1, 2, 3])])
    path = tmp_path / entry.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BuildError, match=entry.path):
        read_rows(storage, entry.path, entry.groups[0], 0, 2**64 - 1)


def test_equal_texts_have_equal_keys_and_splits() -> None:
    keys, twins = text_keys(7, [b"one", b"two", b"one"])
    assert (keys[0], twins[0]) == (keys[2], twins[2])
    assert keys[0] != keys[1]
    assert text_keys(8, [b"one"])[0][0] != keys[0]
    hashes = split_hashes([b"one", b"two", b"one"])
    assert hashes[0] == hashes[2] != hashes[1]


def make_receipt(storage: Storage, runs: list[Documents], spread: bool) -> TokenizeReceipt:
    buffer = RunBuffer(np.dtype("<u2"), limit=1 << 20)
    entries = [make_run(storage, documents, buffer=buffer) for documents in runs]
    return TokenizeReceipt(
        item=TokenizeItem(input=0, part=0, parts=1, engine="fast"),
        input_size=0,
        input_sha256="",
        runs=entries,
        spread=buffer.write_spread(storage, "run") if spread else None,
    )


@given(runs=st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_the_spread_of_an_item_plans_as_the_tables_of_its_runs_do(
    runs: list[Documents], tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("run")))
    receipt = make_receipt(storage, runs, spread=True)
    bare = msgspec.structs.replace(receipt, spread=None)
    assert plan_groups([receipt], storage, 2) == plan_groups([bare], storage, 2)
    names = [name for name, _ in read_spreads(storage, receipt)]
    assert len(set(names)) == len(names)


def test_a_plan_reads_one_file_an_item_and_does_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path))
    documents: Documents = [("a", "train", 5 << 60, [1, 2]), ("b", "train", 9 << 58, [3])]
    receipt = make_receipt(storage, [documents] * 5, spread=True)
    reads: list[str] = []
    read_range = Storage.read_range

    def counted(self: Storage, path: str, *args: int) -> bytes:
        reads.append(path)
        return read_range(self, path, *args)

    monkeypatch.setattr(Storage, "read_range", counted)
    plan = plan_groups([receipt], storage, 2)
    assert receipt.spread
    assert reads == [receipt.spread.path]
    storage.remove(receipt.spread.path)
    assert plan_groups([receipt], storage, 2) == plan
