"""Names of files: different, and safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pileshard.format.paths import escape, index_path, rejected_names, shard_path
from tests.format import mini_reader

names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.text(st.sampled_from("./\\~\0aA%:é -"), max_size=10),
    st.text(st.sampled_from("ab~."), min_size=110, max_size=400),
)


@given(names)
def test_escaped_name_is_one_safe_component(name: str) -> None:
    out = escape(name)
    assert 1 <= len(out) <= 120
    assert out.isascii()
    assert not set(out) & set("/\\\0:*?\"<>|% '\n")
    assert not out.startswith(".")
    assert out not in (".", "..")


@given(names, names)
def test_different_names_give_different_components(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(names)
def test_escape_is_the_page_s(name: str) -> None:
    assert escape(name) == mini_reader.escape(name)


@given(st.text(st.sampled_from("ab~."), min_size=121, max_size=140))
def test_long_names_that_begin_alike_stay_apart(name: str) -> None:
    assert escape(name + "a") != escape(name + "b")


def test_paths_of_a_shard() -> None:
    path = shard_path("a/b", "train", 3, 100_000)
    assert path == "shards/a~2Fb/train-00003-of-100000.tfrecord"
    assert index_path(path) == "shards/a~2Fb/train-00003-of-100000.index.npy"


def test_lists_of_rejected_lines_never_share_a_path() -> None:
    assert rejected_names(["x/a.zst", "x/b.zst"]) == ["rejected/a.zst.jsonl", "rejected/b.zst.jsonl"]
    urls = ["p/00001-a.zst", "q/a.zst", "r/a.zst"]
    assert rejected_names(urls) == [
        "rejected/00000-00001-a.zst.jsonl",
        "rejected/00001-a.zst.jsonl",
        "rejected/00002-a.zst.jsonl",
    ]


@given(st.lists(st.text(st.sampled_from("01/-a"), min_size=1, max_size=12), max_size=12))
def test_each_input_has_a_list_of_its_own(urls: list[str]) -> None:
    found = rejected_names(urls)
    assert len(set(found)) == len(urls)
