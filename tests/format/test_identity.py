"""Keys and identity hashes: the page's functions, and bijections."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pileshard.format.identity import (
    MAX_INPUT,
    MAX_LINE,
    document_keys,
    hex64,
    identity_hashes,
    mix64,
    mix64_int,
    sum64,
)
from tests.format import mini_reader

seeds = st.integers(-(2**63), 2**63 - 1)
identities = st.tuples(st.integers(0, MAX_INPUT), st.integers(1, MAX_LINE))


def test_keys_and_identities_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "schemas/FORMAT.md").read_text()
    rows = re.findall(r"^\| (-?\d+) \| (\d+) \| (\d+) \| `(\w{16})` \| `(\w{16})` \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for seed, number, line, key, identity in rows:
        lines = np.array([int(line)])
        assert hex64(int(document_keys(int(seed), int(number), lines)[0])) == key
        assert hex64(int(identity_hashes(int(number), lines)[0])) == identity


@given(seeds, identities)
def test_vectorised_hashes_are_the_page_s(seed: int, identity: tuple[int, int]) -> None:
    number, line = identity
    lines = np.array([line], dtype=np.int64)
    assert int(document_keys(seed, number, lines)[0]) == mini_reader.key(seed, number, line)
    assert int(identity_hashes(number, lines)[0]) == mini_reader.identity(number, line)


@given(seeds, st.lists(identities, unique=True, max_size=200))
def test_no_two_documents_share_a_key_or_an_identity(seed: int, found: list[tuple[int, int]]) -> None:
    inputs = np.array([number for number, _ in found], dtype=np.int64)
    lines = np.array([line for _, line in found], dtype=np.int64)
    assert len(np.unique(document_keys(seed, inputs, lines))) == len(found)
    assert len(np.unique(identity_hashes(inputs, lines))) == len(found)


def test_mix_is_undone_by_its_inverse() -> None:
    values = np.random.default_rng(1).integers(0, 2**64, 10_000, dtype=np.uint64)
    mixed = mix64(values)
    back = mixed.copy()
    back ^= back >> np.uint64(31) ^ back >> np.uint64(62)
    back *= np.uint64(pow(0x94D049BB133111EB, -1, 2**64))
    back ^= back >> np.uint64(27) ^ back >> np.uint64(54)
    back *= np.uint64(pow(0xBF58476D1CE4E5B9, -1, 2**64))
    back ^= back >> np.uint64(30) ^ back >> np.uint64(60)
    assert (back == values).all()
    assert mix64_int(int(values[0])) == int(mixed[0])


def test_keys_do_not_depend_on_how_lines_are_batched_or_typed() -> None:
    lines = np.arange(1, 2000)
    keys = document_keys(5, 3, lines)
    parts = [document_keys(5, np.full(len(part), 3), part.astype(np.uint64)) for part in np.array_split(lines, 7)]
    assert (np.concatenate(parts) == keys).all()


def test_sum_is_modulo_2_64() -> None:
    values = np.array([2**64 - 1, 2**64 - 1, 3], dtype=np.uint64)
    assert sum64(values) == 1
    assert sum64(values[:0]) == 0
    assert hex64(2**64 + 10) == "000000000000000a"
