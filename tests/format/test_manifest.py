"""Manifests: what is written comes back, and what does not fit is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.errors import DatasetError
from pileshard.format.manifest import FORMAT_VERSION, InputEntry, Manifest, Options, ShardEntry, SourceEntry
from pileshard.format.storage import Storage
from tests.data.golden.make_golden import DATASET

GOLDEN = (DATASET / "manifest.json").read_bytes()

counts = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
words = st.text("0123456789abcdef", min_size=16, max_size=16)
splits = st.sampled_from(["train", "validation"])


def _struct(kind: type, **fields: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **fields)


options = _struct(
    Options,
    seed=st.integers(-(2**63), 2**63 - 1),
    shard_bytes=st.integers(1, 2**63 - 1),
    validation=st.floats(0, 1, exclude_max=True),
    dedup=st.sampled_from(["none", "exact"]),
    special_tokens=st.sampled_from(["text", "token", "reject"]),
    text_key=texts,
    source_key=texts,
)
inputs = _struct(
    InputEntry,
    url=texts,
    size=counts,
    sha256=hashes,
    lines=counts,
    rejected=st.dictionaries(texts, counts, max_size=3),
    identity_sum=words,
    rejected_path=st.none() | texts,
    rejected_sha256=st.none() | hashes,
    skipped=st.none() | texts,
)
sources = _struct(
    SourceEntry, name=texts, split=splits, documents=counts, tokens=counts, text_bytes=counts, shards=counts
)
shards = _struct(
    ShardEntry,
    path=texts.map(lambda text: "p" + text),
    index_path=texts.map(lambda text: "i" + text),
    source=texts,
    split=splits,
    sha256=hashes,
    index_sha256=hashes,
    key_first=words,
    key_last=words,
    identity_sum=words,
    **dict.fromkeys(("number", "count", "size", "index_size", "records", "documents", "tokens", "text_bytes"), counts),
)
manifests = _struct(
    Manifest,
    dtype=st.sampled_from(["uint16", "uint32"]),
    vocab_size=st.integers(1, 2**32),
    eod_id=counts,
    eod_token=texts,
    tokenizer_sha256=hashes,
    options=options,
    documents=counts,
    tokens=counts,
    text_bytes=counts,
    inputs=st.lists(inputs, max_size=2),
    sources=st.lists(sources, max_size=2),
    shards=st.lists(shards, max_size=2),
    build=st.dictionaries(texts, st.recursive(st.none() | texts | st.integers(-(2**53), 2**53), st.lists), max_size=3),
)


@given(manifests)
def test_manifest_comes_back(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert Manifest.bytes_are_whole(data)
    back = Manifest.from_bytes(data, "manifest.json")
    named = msgspec.structs.replace(back, dataset_id="", manifest_sha256="")
    assert named == manifest
    assert back.to_bytes() == data
    assert back.dataset_id == manifest.content_id()


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 7))
def test_every_flipped_bit_is_seen(at: int, bit: int) -> None:
    data = bytearray(GOLDEN)
    data[at] ^= 1 << bit
    assert not Manifest.bytes_are_whole(bytes(data))


@given(st.integers(0, len(GOLDEN) - 1))
def test_every_cut_is_seen(end: int) -> None:
    assert not Manifest.bytes_are_whole(GOLDEN[:end])


def test_dataset_id_changes_with_the_content_and_not_with_the_build() -> None:
    manifest = Manifest.from_bytes(GOLDEN, "golden")
    other = msgspec.structs.replace(manifest, build={"seconds": 1}, writer="another")
    assert other.content_id() == manifest.content_id() == manifest.dataset_id
    first, *rest = manifest.shards
    changed = msgspec.structs.replace(first, index_sha256="0" * 64)
    assert msgspec.structs.replace(manifest, shards=[changed, *rest]).content_id() != manifest.dataset_id


def _changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(GOLDEN), **fields}).encode()


def _changed_first(name: str, **fields: Any) -> bytes:
    raw = json.loads(GOLDEN)
    raw[name][0].update(fields)
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a pileshard manifest"),
        (b"[]", "not a pileshard manifest"),
        (b"{}", "not a pileshard manifest"),
        (b"not json", "not a pileshard manifest"),
        (b"\xff\xfe{}", "not a pileshard manifest"),
        (GOLDEN[:-5], "not a pileshard manifest"),
        (b'{"build":' + b"[" * 100_000, "not a pileshard manifest"),
        (_changed(format="another"), "not a pileshard manifest"),
        (_changed(format_version=FORMAT_VERSION + 1), "upgrade pileshard"),
        (_changed(format_version="1"), "its format_version is '1'"),
        (_changed(surprise=1), "surprise"),
        (_changed(documents=-1), "documents"),
        (_changed(documents=1.5), "documents"),
        (_changed(documents=2**63), "documents"),
        (_changed(tokens=None), "tokens"),
        (_changed(dtype="float16"), "dtype"),
        (_changed(tokenizer_sha256="ab"), "tokenizer_sha256"),
        (_changed(shards={}), "shards"),
        (_changed_first("shards", size=-1), "size"),
        (_changed_first("shards", surprise=0), "surprise"),
        (_changed_first("shards", key_first="xyz"), "key_first"),
        (_changed_first("shards", path=""), "path"),
        (_changed_first("shards", split="test"), "split"),
        (_changed_first("inputs", lines=-3), "lines"),
        (_changed_first("inputs", rejected={"blank": -1}), "rejected"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_sentence(data: bytes, says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        Manifest.from_bytes(data, "here/manifest.json")
    message = str(caught.value)
    assert message.startswith("here/manifest.json: ")
    assert says in message
    assert "\n" not in message


def test_manifest_of_a_newer_format_is_told_even_where_its_fields_are_unknown() -> None:
    with pytest.raises(DatasetError, match="format 9, and this release reads up to"):
        Manifest.from_bytes(b'{"format": "pileshard", "format_version": 9, "all_new": true}', "m")


def test_no_dataset_and_an_unfinished_build_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no dataset there"):
        Manifest.read(Storage(str(tmp_path)))
    (tmp_path / "_build").mkdir()
    with pytest.raises(DatasetError, match="not finished; run the same"):
        Manifest.read(Storage(str(tmp_path)))
    with pytest.raises(DatasetError, match="no dataset there"):
        Manifest.read(Storage("memory://nowhere"))
