"""The permutation is one, looks random at every size, and never changes."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.order.permutation import derive_key, mix, permute, rounds


def whole(n: int, seed: int = 0) -> np.ndarray:
    return permute(np.arange(n), n, derive_key(seed, 0, "chunks"))


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**64 - 1))
def test_is_a_permutation(n: int, seed: int) -> None:
    assert np.array_equal(np.sort(whole(n, seed)), np.arange(n))


@given(n=st.integers(1, 2**62), seed=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=50)
def test_huge_domains_stay_in_range_and_injective(n: int, seed: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))
    sent = permute(values, n, seed)
    assert sent.dtype == np.int64
    assert len(set(sent.tolist())) == len(values)
    assert sent.min() >= 0
    assert sent.max() < n


def test_elementwise_equals_whole() -> None:
    n = 20_000  # more than one block
    together = whole(n, 3)
    places = np.random.default_rng(0).integers(0, n, (7, 11))
    assert np.array_equal(permute(places, n, derive_key(3, 0, "chunks")), together[places])


def test_arguments_are_not_written_to() -> None:
    values = np.arange(10, dtype=np.uint64)
    permute(values, 10, 1)
    assert np.array_equal(values, np.arange(10))


def test_values_never_change() -> None:
    """Golden values: a change of these is a new ORDER_FORMAT."""
    assert whole(10, 0).tolist() == GOLDEN_10
    assert permute([0, 1, 2, 5_000_000_000], 2**40 + 7, derive_key(1, 2, "chunks")).tolist() == GOLDEN_BIG
    assert derive_key(0, 0, "chunks") == GOLDEN_KEY


GOLDEN_10 = [8, 2, 9, 6, 3, 7, 1, 0, 4, 5]
GOLDEN_BIG = [80632235853, 804815671455, 1091767892156, 752211277245]
GOLDEN_KEY = 0x8F0F2D375A1C36A1


def slow_permute(x: int, n: int, key: int) -> int:
    """Swap-or-not as the paper writes it, in Python integers."""
    golden = 0x9E3779B97F4A7C15
    for i in range(rounds(n)):
        partner = (mix(key + 2 * i * golden) - x) % n
        name = max(x, partner)
        if mix(name + mix(key + (2 * i + 1) * golden)) >> 63:
            x = partner
    return x


@given(n=st.integers(2, 2**63 - 1), key=st.integers(0, 2**64 - 1), data=st.data())
@settings(max_examples=50)
def test_equals_the_method_in_plain_integers(n: int, key: int, data: st.DataObject) -> None:
    x = data.draw(st.integers(0, n - 1))
    assert permute([x], n, key)[0] == slow_permute(x, n, key)


def chi_square(counts: np.ndarray, expected: float | np.ndarray) -> float:
    return float((((counts - expected) ** 2) / expected).sum())


@pytest.mark.parametrize("n", [10_007, 300_000, 1_000_003])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("lag", [1, 1000])
def test_successive_differences_are_uniform(n: int, seed: int, lag: int) -> None:
    sent = whole(n, seed)
    bins = ((sent[lag:] - sent[:-lag]) % n) * 256 // n
    share = np.diff(np.ceil(np.arange(257) * n / 256)) / n  # bins differ by one value where 256 does not divide n
    assert chi_square(np.bincount(bins, minlength=256), len(bins) * share) == pytest.approx(255, abs=80)


def test_chi_square_itself_is_distributed_as_for_random_permutations() -> None:
    n = 20_011
    found = []
    for seed in range(150):
        sent = whole(n, seed)
        found.append(chi_square(np.bincount(((sent[1:] - sent[:-1]) % n) * 256 // n, minlength=256), (n - 1) / 256))
    assert np.mean(found) == pytest.approx(255, abs=4 * 22.6 / math.sqrt(150))
    assert np.std(found) == pytest.approx(22.6, rel=0.25)  # a Feistel network of 12 rounds shows here


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_small_permutations_are_equally_frequent(n: int) -> None:
    draws = 150 * math.factorial(n)
    counts = Counter(tuple(whole(n, seed).tolist()) for seed in range(draws))
    assert set(counts) == set(itertools.permutations(range(n)))
    freedom = math.factorial(n) - 1
    chi = chi_square(np.array(list(counts.values())), 150)
    assert chi < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_seeds_epochs_and_purposes_give_unrelated_permutations() -> None:
    n = 10_000
    keys = [derive_key(s, e, p) for s in (0, 1, 2**63) for e in (0, 1) for p in ("chunks", "chunk", "")]
    sent = [permute(np.arange(n), n, key) for key in keys]
    for a, b in itertools.combinations(sent, 2):
        assert (a == b).sum() < 10  # Poisson of mean 1
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
