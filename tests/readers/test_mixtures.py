"""Mixtures through the readers: shares, epochs by source, sources left out, names and states."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.errors import OptionError
from pileshard.order.presets import PILE_EPOCHS
from tests.readers.made import Made, make_dataset

SHARDS = {
    ("a", "train"): [40_001, 30_000],
    ("b", "train"): [9000, 3, 2000],
    ("c", "train"): [25_000],
    ("d", "train"): [1700, 700],
    ("e", "validation"): [500],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_dataset(str(tmp_path_factory.mktemp("mixtures")), SHARDS, mean_document=40)


@pytest.fixture(scope="module")
def pile(tmp_path_factory: pytest.TempPathFactory) -> Made:
    names = ["ArXiv", "Wikipedia (en)", "Books3", "Enron Emails"]
    shards = {(name, "train"): [4000 * (number + 1)] for number, name in enumerate(names)}
    return make_dataset(str(tmp_path_factory.mktemp("pile")), shards, mean_document=40)


def chunks_in_order(plan: Any, count: int, first: int = 0) -> np.ndarray:
    """The chunks from the first on, as positions show them: each stands at the first sample of its slot."""
    samples, period, slots = plan.chunk_samples, plan.order.period, plan.slots
    places = np.arange(first, first + count)
    epochs, places = np.divmod(places, period)
    windows, slot = np.divmod(places, slots)
    rows = plan.rows(epochs * period * samples + windows * slots * samples + slot)
    assert not rows.sample.any()
    return rows.chunk


def sources_of(plan: Any, chunks: np.ndarray) -> np.ndarray:
    return np.array(plan.shard_sources)[plan.chunks.locate(chunks)[0]]


def source_by_tokens(made: Made, split: str, seq_len: int) -> dict[bytes, str]:
    """Of every row that can be cut, whose it is."""
    found = {}
    for number in made.split(split):
        stream = made.streams[number]
        for at in range(0, len(stream) - seq_len, seq_len):
            found[stream[at : at + seq_len].astype(np.int32).tobytes()] = made.manifest.shards[number].source
    return found


@given(
    weights=st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 100), min_size=1),
    seed=st.integers(0, 2**64 - 1),
    slots=st.sampled_from([1, 12, 96]),
    first=st.integers(0, 10**6),
)
@settings(max_examples=40)
def test_each_source_is_within_one_chunk_of_its_share_at_every_chunk(
    made: Made, weights: dict[str, float], seed: int, slots: int, first: int
) -> None:
    plan = pileshard.open(made.url).plan(seed, seq_len=32, slots=slots, weights=weights)
    count = 600
    for begin in (0, first):
        sources = sources_of(plan, chunks_in_order(plan, count, begin))
        places = np.arange(1, count + 1)
        for name, weight in weights.items():
            share = weight / sum(weights.values())
            taken = np.cumsum(sources == name)
            # From the run's begin within one; between any two places then within two.
            assert np.abs(taken - share * places).max() < (1 if begin == 0 else 2) + 1e-6
        assert set(sources) <= set(weights)


@given(epochs=st.sampled_from([1.5, 0.5, 2, 3.25]), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_epochs_by_source_give_each_chunk_as_often(made: Made, epochs: float, seed: int) -> None:
    plan = pileshard.open(made.url).plan(seed, seq_len=32, slots=12, epochs={"c": epochs})
    chunks = chunks_in_order(plan, plan.order.period)
    sources = sources_of(plan, chunks)
    for name in "abcd":
        numbers, times = np.unique(chunks[sources == name], return_counts=True)
        assert (sources_of(plan, numbers) == name).all()
        held = int((sources_of(plan, np.arange(plan.chunks.count)) == name).sum())
        asked = epochs if name == "c" else 1
        assert times.sum() == max(1, round(asked * held))
        whole = int(asked)
        assert set(times.tolist()) <= {whole, whole + 1} - {0}
        assert len(numbers) == (held if whole else round(asked * held))
        assert (times == whole + 1).sum() == round(asked * held) - whole * held


@pytest.mark.parametrize(
    "mixture",
    [
        {"weights": {"a": 1, "b": 2, "d": 1}},
        {"epochs": {"c": 1.5}},
        {"exclude": ["a", "c"]},
        {"exclude": ["d"], "epochs": {"b": 2}},
        {"exclude": ["b"], "weights": {"a": 1, "c": 1}},
    ],
)
def test_readers_agree_and_show_the_sources_asked_for(made: Made, mixture: dict[str, Any]) -> None:
    pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    of = source_by_tokens(made, "train", 32)
    options: dict[str, Any] = {"path": made.url, "seed": 4, "seq_len": 32, "batch_size": 8, "slots": 12, **mixture}
    numpys = list(pileshard.numpy_dataset(**options, rank=1, world_size=3))
    tfs = list(pileshard.dataset(**options, rank=1, world_size=3))
    torchs = list(pileshard.torch_dataset(**options, rank=1, world_size=3))
    for one, other, third in zip(numpys, tfs, torchs, strict=True):
        for x, y, z in zip(one, other, third, strict=True):
            assert np.array_equal(x, y.numpy())
            assert torch.equal(torch.from_numpy(x).long(), z)
    assert len(numpys) > 10
    shown = {of[row.tobytes()] for batch in pileshard.numpy_dataset(**options) for row in batch[0]}
    expected = set(mixture.get("weights", "abcd")) - set(mixture.get("exclude", ()))
    assert shown == expected


@given(scale=st.sampled_from([1e-6, 0.1, 3, 100, 2**40]), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_weights_in_any_unit_give_the_same_order(made: Made, scale: float, seed: int) -> None:
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    corpus = pileshard.open(made.url)
    one = corpus.plan(seed, seq_len=32, slots=12, weights=weights)
    other = corpus.plan(seed, seq_len=32, slots=12, weights={name: scale * w for name, w in weights.items()})
    positions = np.arange(2 * one.samples_per_epoch)
    assert np.array_equal(one.rows(positions).first_token, other.rows(positions).first_token)
    assert np.array_equal(one.rows(positions).shard, other.rows(positions).shard)


# Presets


def test_the_piles_own_epochs(pile: Made) -> None:
    corpus = pileshard.open(pile.url)
    plan = corpus.plan(1, seq_len=32, epochs="pile")
    sources = sources_of(plan, chunks_in_order(plan, plan.order.period))
    for name in ("ArXiv", "Wikipedia (en)", "Books3", "Enron Emails"):
        held = int((sources_of(plan, np.arange(plan.chunks.count)) == name).sum())
        assert (sources == name).sum() == round(PILE_EPOCHS[name] * held)
    assert len(list(pileshard.numpy_dataset(path=pile.url, seq_len=32, epochs="pile"))) == plan.steps(8)
    weighted = corpus.plan(1, seq_len=32, weights="pile")
    sources = sources_of(weighted, chunks_in_order(weighted, 2000))
    tokens = {entry.name: entry.tokens * PILE_EPOCHS[entry.name] for entry in corpus.sources}
    for name, count in tokens.items():
        assert abs((sources == name).sum() - 2000 * count / sum(tokens.values())) < 1.01


def test_a_preset_refuses_a_source_that_it_does_not_know(made: Made) -> None:
    for option in ("epochs", "weights"):
        with pytest.raises(OptionError, match=r"'a' is no component of the Pile; leave it out with exclude="):
            pileshard.numpy_dataset(path=made.url, seq_len=32, **{option: "pile"})
        with pytest.raises(OptionError, match="the only preset"):
            pileshard.numpy_dataset(path=made.url, seq_len=32, **{option: "heap"})


# Names and states


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        ({"weights": {"aa": 1}}, "weights: no source 'aa'; the sources are 'a', 'b', 'c', 'd'"),
        ({"epochs": {"e": 1}}, "epochs: no source 'e'; the sources are 'a', 'b', 'c', 'd'"),
        ({"exclude": ["A"]}, "exclude: no source 'A'; the sources are 'a', 'b', 'c', 'd'"),
        ({"exclude": "a"}, "it takes a list"),
        ({"exclude": ["a", "b", "c", "d"]}, "leaves no source"),
        ({"weights": {"a": 0}}, "a number above 0"),
        ({"epochs": {"a": -1}}, "a number above 0"),
        ({"weights": {}}, "names no source"),
        ({"weights": {"a": 1}, "epochs": {"a": 1}}, "contradict"),
        ({"weights": {"a": 1}, "exclude": ["a"]}, "both name 'a'"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(made: Made, mixture: dict[str, Any], words: str) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("torch")
    for reader in (pileshard.numpy_dataset, pileshard.dataset, pileshard.torch_dataset):
        with pytest.raises(OptionError, match=words):
            reader(path=made.url, seq_len=32, **mixture)


def test_a_state_refuses_another_mixture(made: Made) -> None:
    mixtures: list[dict[str, Any]] = [
        {},
        {"weights": {"a": 1, "b": 2}},
        {"weights": {"a": 1, "b": 3}},
        {"epochs": {"a": 2}},
        {"exclude": ["a"]},
    ]
    options: dict[str, Any] = {"path": made.url, "seq_len": 32}
    states = [pileshard.numpy_dataset(**options, **mixture).state() for mixture in mixtures]
    for number, state in enumerate(states):
        for other, mixture in enumerate(mixtures):
            if number == other:
                pileshard.numpy_dataset(**options, **mixture, start=state)
                continue
            with pytest.raises(OptionError, match=r"saved under other options.*(weights|epochs|exclude) was .* and is"):
                pileshard.numpy_dataset(**options, **mixture, start=state)


def shares(numbers: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(number, sum(numbers.values())) for name, number in numbers.items()}


NUMBERS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 5), min_size=1)


@given(
    saved=NUMBERS,
    now=NUMBERS,
    unit=st.sampled_from([1, 2, 3, 10, 0.1, 1e-6, 1 / 3, 2**40]),
    again=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=100)
def test_a_state_takes_weights_in_any_unit_if_and_only_if_the_order_is_the_same(
    made: Made, saved: dict[str, int], now: dict[str, int], unit: float, again: bool, seed: int
) -> None:
    corpus = pileshard.open(made.url)
    weights = {name: unit * number for name, number in reversed((saved if again else now).items())}
    before = corpus.plan(seed, seq_len=32, slots=12, weights=saved)
    plan = corpus.plan(seed, seq_len=32, slots=12, weights=weights)
    # Shares that differ do so by 1/400 at least, and so does the order of 1,000 chunks, each within one of its share.
    places = np.arange(1000)
    same = np.array_equal(before.order.chunks_at(places), plan.order.chunks_at(places))
    assert same == (shares(saved) == shares(saved if again else now))
    state = json.loads(json.dumps(before.state(5)))
    if same:
        assert plan.schedule(8, start=state).start == 5
        positions = np.arange(5, 5 + 3 * plan.samples_per_epoch)
        assert all(map(np.array_equal, before.rows(positions), plan.rows(positions)))
    else:
        with pytest.raises(OptionError, match=r"saved under other options.*weights was .* and is"):
            plan.schedule(8, start=state)


def test_weights_that_differ_by_little_are_others(made: Made) -> None:
    corpus = pileshard.open(made.url)
    state = corpus.plan(seq_len=32, weights={"a": 2, "b": 1}).state(0)
    for weights in ({"a": 2, "b": 1 + 1e-9}, {"a": 2, "b": 1, "c": 1e-9}):
        with pytest.raises(OptionError, match="weights was"):
            corpus.plan(seq_len=32, weights=weights).check_state(state)
    for strange in ({"a": "2", "b": 1}, {"a": 0, "b": 0}, {"a": True, "b": 1}, ["a", "b"], "pile", 3):
        with pytest.raises(OptionError, match="weights was"):
            corpus.plan(seq_len=32, weights={"a": 2, "b": 1}).check_state({**state, "weights": strange})
