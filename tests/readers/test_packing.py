"""Packed rows and their features: every token once, documents whole, the same for every reader, rank and resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.corpus import CorpusPlan, open_corpus
from pileshard.errors import DatasetError, OptionError
from pileshard.format.record import RECORD_TOKENS
from pileshard.readers.chunk import ShardReader
from pileshard.readers.remote_index import RemoteIndexes
from pileshard.readers.rows import RowReader
from tests.readers.made import Made, make_dataset
from tests.readers.packing_reference import concat_parts, documents_of, features_of, tokens_of

WORLDS = (1, 2, 3, 4, 6, 8, 12, 96)
PACKED = ("best_fit", "document")
FEATURES = ("input_ids", "labels", "segment_ids", "positions", "loss_mask")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    shards = {("a", "train"): [4001, 3000], ("b", "train"): [9000, 3, 2000], ("b", "validation"): [700]}
    return make_dataset(str(tmp_path_factory.mktemp("packing")), shards, mean_document={"a": 60, "b": 9})


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Documents of several records each among short ones."""
    shards = {("a", "train"): [7 * RECORD_TOKENS + 11, 90_000], ("b", "train"): [20_000]}
    return make_dataset(
        str(tmp_path_factory.mktemp("long")),
        shards,
        mean_document={"a": 1.5 * RECORD_TOKENS, "b": 200},
        vocab_size=100_000,
    )


def epoch_of_parts(plan: CorpusPlan, epoch: int = 0) -> list[list[tuple[int, int, int]]]:
    """The parts (shard, first token, end) of each row of an epoch."""
    size, packed = plan.samples_per_epoch, plan.packed(plan.reader())
    assert packed is not None
    made: dict[int, Any] = {}
    found = []
    where = plan.rows(np.arange(epoch * size, (epoch + 1) * size))
    for chunk, sample in zip(where.chunk.tolist(), where.sample.tolist(), strict=True):
        if chunk not in made:
            made[chunk] = packed.parts(chunk)
        shard, parts = made[chunk]
        row = parts.of(sample, sample + 1)
        assert row.place.tolist() == (np.cumsum(row.length) - row.length).tolist()
        assert row.length.sum() <= plan.seq_len + 1
        found.append([(shard, a, a + n) for a, n in zip(row.token.tolist(), row.length.tolist(), strict=True)])
    return found


def expected(made: Made, plan: CorpusPlan, positions: np.ndarray) -> dict[str, np.ndarray]:
    rows = []
    for position in positions.tolist():
        row, part, _ = tokens_of(made, plan, position)
        rows.append(features_of(row, concat_parts(row, made.manifest.eod_id) if plan.packing == "concat" else part))
    return {name: np.stack([row[name] for row in rows]) for name in FEATURES}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return set(found) == set(wanted) and all(
        found[name].dtype == np.int32 and np.array_equal(found[name], wanted[name]) for name in wanted
    )


def tf_batches(**options: Any) -> list[dict[str, np.ndarray]]:
    pytest.importorskip("tensorflow")
    return [{name: part.numpy() for name, part in batch.items()} for batch in pileshard.dataset(**options)]


# What stands in rows


@given(seq_len=st.sampled_from([1, 7, 16, 31, 100]), seed=st.integers(0, 9), epoch=st.integers(0, 1))
@settings(max_examples=12)
def test_best_fit_holds_every_token_once_and_splits_few_documents(
    made: Made, seq_len: int, seed: int, epoch: int
) -> None:
    plan = open_corpus(made.url).plan(seed, seq_len=seq_len, packing="best_fit")
    parts = [part for row in epoch_of_parts(plan, epoch) for part in row]
    for shard, length in enumerate(plan.shard_tokens.tolist()):
        own = sorted((begin, end) for s, begin, end in parts if s == shard)
        assert [begin for begin, _ in own] == [0, *(end for _, end in own)][:-1]
        assert own[-1][1] == length
    rows_of = Counter()
    begins = {(shard, begin): end for shard, begin, end in parts}
    fitting = [d for d in documents_of(made) if d[2] <= seq_len + 1]
    for shard, begin, tokens in fitting:
        rows_of[begins.get((shard, begin)) == begin + tokens] += 1
    assert rows_of[False] <= 0.02 * len(fitting) + 3
    for shard, begin, tokens in documents_of(made):
        if tokens > seq_len + 1:
            # Full rows from the begin on, unless one was split to fill holes.
            cuts = sorted(b - begin for (s, b) in begins if s == shard and begin <= b < begin + tokens)
            assert set(range(0, tokens, seq_len + 1)) <= set(cuts)


@given(seq_len=st.sampled_from([1, 7, 16, 31, 100]), seed=st.integers(0, 9))
@settings(max_examples=10)
def test_document_holds_the_begin_of_each_document_once(made: Made, seq_len: int, seed: int) -> None:
    plan = open_corpus(made.url).plan(seed, seq_len=seq_len, packing="document")
    rows = epoch_of_parts(plan)
    assert {len(parts) for parts in rows} <= {0, 1}
    found = sorted(parts[0] for parts in rows if parts)
    assert found == sorted((s, begin, begin + min(n, seq_len + 1)) for s, begin, n in documents_of(made))


@pytest.mark.parametrize("packing", PACKED)
def test_documents_of_many_records_are_told_apart_by_their_keys(long: Made, packing: str) -> None:
    plan = open_corpus(long.url).plan(1, seq_len=50_000, packing=packing)
    parts = sorted(part for parts in epoch_of_parts(plan) for part in parts)
    lengths = {(shard, begin): n for shard, begin, n in documents_of(long)}
    assert max(lengths.values()) > 2 * RECORD_TOKENS
    if packing == "document":
        assert parts == sorted((s, b, b + min(n, 50_001)) for (s, b), n in lengths.items())
    else:
        assert sum(end - begin for _, begin, end in parts) == sum(plan.shard_tokens)
        for (shard, begin), n in lengths.items():
            for at in range(begin, begin + n, 50_001):
                assert any(part[:2] == (shard, at) for part in parts)


def test_rows_of_a_chunk_stand_in_no_order_of_length(made: Made) -> None:
    plan = open_corpus(made.url).plan(0, seq_len=31, packing="best_fit")
    rows = plan.rows(np.arange(plan.samples_per_epoch))
    assert plan.chunk_samples >= 8
    longest = [max((end - begin for _, begin, end in row), default=0) for row in epoch_of_parts(plan)]
    by_sample = np.array(longest)[np.lexsort((rows.chunk, rows.sample))].reshape(plan.chunk_samples, -1).mean(axis=1)
    assert abs(np.corrcoef(np.arange(plan.chunk_samples), by_sample)[0, 1]) < 0.7


# Readers


@given(
    packing=st.sampled_from(["concat", *PACKED]),
    world=st.sampled_from(WORLDS),
    per_rank=st.integers(1, 4),
    seed=st.integers(0, 5),
    seq_len=st.sampled_from([5, 16, 31]),
    slots=st.sampled_from([2, 12, 96, 768]),
    mixture=st.sampled_from([{}, {"weights": {"a": 1, "b": 2}}, {"exclude": ["a"]}]),
    drop=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40)
def test_ranks_together_are_the_global_order_with_the_features_of_the_reference(
    made: Made,
    packing: str,
    world: int,
    per_rank: int,
    seed: int,
    seq_len: int,
    slots: int,
    mixture: dict[str, Any],
    drop: bool,
    data: st.DataObject,
) -> None:
    order = {"seq_len": seq_len, "slots": slots, "packing": packing, **mixture}
    plan = open_corpus(made.url).plan(seed, **order)
    end, batch = 2 * plan.samples_per_epoch, world * per_rank
    start = data.draw(st.integers(max(0, end - 3 * batch - 7), end))
    for rank in {0, world - 1, data.draw(st.integers(0, world - 1))}:
        found = list(
            pileshard.numpy_dataset(
                rank,
                seed,
                path=made.url,
                world_size=world,
                batch_size=per_rank,
                epochs=2,
                start=start,
                segment_ids=True,
                drop_remainder=drop,
                **order,
            )
        )
        schedule = plan.schedule(batch, rank=rank, world_size=world, start=start, epochs=2, drop_remainder=drop)
        assert len(found) == schedule.steps
        for step, features in enumerate(found):
            positions = schedule.positions(step)
            if len(positions):
                assert same(features, expected(made, plan, positions))
            else:
                assert {part.shape for part in features.values()} == {(0, seq_len)}


@given(
    packing=st.sampled_from(PACKED),
    world=st.sampled_from([1, 3, 4, 5, 7]),
    slots=st.sampled_from([4, 12, 768]),
    data=st.data(),
)
@settings(max_examples=25)
def test_blocks_of_any_size_hold_a_ranks_rows(
    made: Made, packing: str, world: int, slots: int, data: st.DataObject
) -> None:
    plan = open_corpus(made.url).plan(data.draw(st.integers(0, 9)), seq_len=16, slots=slots, packing=packing)
    start = data.draw(st.integers(0, 2 * plan.samples_per_epoch))
    rank = data.draw(st.integers(0, world - 1))
    shards = plan.reader()
    reader = RowReader(plan, shards, rank=rank, world_size=world, start=start, packed=plan.packed(shards))
    for size in data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=3)):
        positions = reader.position + world * np.arange(size)
        out = np.empty((size, reader.words), dtype=np.uint16)
        reader.fill(out)
        assert np.array_equal(out[:, :17], np.stack([plan.row(position) for position in positions.tolist()]))


@pytest.mark.parametrize("packing", ["concat", *PACKED])
def test_tf_and_numpy_agree_and_resume_at_every_step(made: Made, packing: str) -> None:
    options: dict[str, Any] = {
        "path": made.url,
        "seq_len": 48,
        "batch_size": 31,
        "packing": packing,
        "segment_ids": True,
    }
    reader = pileshard.numpy_dataset(1, 3, world_size=2, drop_remainder=False, **options)
    whole, states = [], [reader.state()]
    for batch in reader:
        whole.append(batch)
        states.append(json.loads(json.dumps(reader.state())))
    assert len(whole) > 5
    read = tf_batches(rank=1, seed=3, world_size=2, drop_remainder=False, **options)
    assert len(read) == len(whole)
    assert all(same(a, b) for a, b in zip(read, whole, strict=True))
    for step, state in enumerate(states):
        rest = list(pileshard.numpy_dataset(1, 3, world_size=2, drop_remainder=False, start=state, **options))
        assert len(rest) == len(whole) - step
        assert all(same(a, b) for a, b in zip(rest, whole[step:], strict=True))


def test_the_tf_dataset_knows_its_shapes(made: Made) -> None:
    tf = pytest.importorskip("tensorflow")
    ds = pileshard.dataset(0, 1, path=made.url, seq_len=16, batch_size=4, packing="best_fit")
    assert ds.element_spec == {name: tf.TensorSpec((4, 16), tf.int32) for name in FEATURES}
    assert int(ds.cardinality()) == open_corpus(made.url).plan(1, seq_len=16, packing="best_fit").samples_per_epoch // 4


def test_inputs_and_labels_are_those_of_the_pair(made: Made) -> None:
    options: dict[str, Any] = {"path": made.url, "seq_len": 31, "batch_size": 7}
    pairs = pileshard.numpy_dataset(0, 2, **options)
    for (inputs, labels), features in zip(
        pairs, pileshard.numpy_dataset(0, 2, segment_ids=True, **options), strict=True
    ):
        assert np.array_equal(inputs, features["input_ids"])
        assert np.array_equal(labels, features["labels"])


def test_skipped_positions_are_left_out(made: Made) -> None:
    plan = open_corpus(made.url).plan(4, seq_len=31, packing="best_fit")
    found = list(
        pileshard.numpy_dataset(0, 4, path=made.url, seq_len=31, packing="best_fit", batch_size=5, skip=[(12, 33)])
    )
    taken = np.delete(np.arange(plan.samples_per_epoch), np.arange(12, 33))
    for step, features in enumerate(found):
        assert same(features, expected(made, plan, taken[5 * step : 5 * step + 5]))


@pytest.mark.parametrize("blocks", [False, True])
def test_other_file_systems_and_uint32(monkeypatch: pytest.MonkeyPatch, blocks: bool) -> None:
    if blocks:  # indexes too large to be fetched whole
        monkeypatch.setattr(RemoteIndexes.__init__, "__kwdefaults__", {"limit": 2000, "block_records": 8})
    shards = {("a", "train"): [5000, 2000]}
    remote = make_dataset("memory://test-packing", shards, vocab_size=120_000)
    for packing in PACKED:
        plan = open_corpus(remote.url).plan(0, seq_len=40, packing=packing)
        found = list(pileshard.numpy_dataset(0, 0, path=remote.url, seq_len=40, packing=packing, batch_size=10))
        for step, features in enumerate(found):
            assert same(features, expected(remote, plan, 10 * step + np.arange(10)))


@pytest.mark.parametrize("packing", PACKED)
def test_of_remote_indexes_only_blocks_are_read(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With documents of several records; row by row and by chunks."""
    shards = {("a", "train"): [4 * RECORD_TOKENS, 60_000], ("b", "train"): [50_000]}
    means = {"a": 0.7 * RECORD_TOKENS, "b": 60}
    remote = make_dataset("memory://test-packing-long", shards, mean_document=means)
    monkeypatch.setattr(RemoteIndexes.__init__, "__kwdefaults__", {"limit": 8000, "block_records": 64})
    steps = 0
    for world, slots in ((1, 768), (7, 4)):
        options: dict[str, Any] = {"path": remote.url, "seq_len": 500, "packing": packing, "slots": slots}
        plan = open_corpus(remote.url).plan(3, seq_len=500, packing=packing, slots=slots)
        with monkeypatch.context() as patch:
            patch.setattr(ShardReader, "index", None)  # a whole index in memory
            found = list(pileshard.numpy_dataset(0, 3, world_size=world, batch_size=6, **options))
        for step, features in enumerate(found):
            assert same(features, expected(remote, plan, world * 6 * step + world * np.arange(6)))
            steps += 1
    assert steps > 10


def test_the_rest_of_long_documents_is_not_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pileshard.order.even.MAX_CUT", 0.5)
    monkeypatch.setattr("pileshard.readers.document_rows._READ_THROUGH", 5)
    plan = open_corpus(made.url).plan(0, seq_len=15, packing="document")
    assert plan.chunk_samples > 32
    shards = plan.reader()
    read, wanted = 0, 0

    def counted(shard: int, first: int, out: np.ndarray) -> None:
        nonlocal read
        read += len(out)
        type(shards).read(shards, shard, first, out)

    monkeypatch.setattr(shards, "read", counted)
    packed = plan.packed(shards)
    assert packed is not None
    rows = np.empty((plan.chunk_samples, packed.words), dtype=np.uint16)
    where = plan.rows(np.arange(plan.samples_per_epoch))
    for chunk in range(plan.chunks.count):
        packed.fill(chunk, 0, rows)
        wanted += int(packed.parts(chunk)[1].length.sum())
        for position in np.flatnonzero(where.chunk == chunk)[::5].tolist():
            assert np.array_equal(rows[where.sample[position], :16], plan.row(position))
    assert wanted <= read <= wanted + 5 * sum(plan.shard_documents)
    assert read < 0.7 * sum(plan.shard_tokens)


def test_an_index_of_other_documents_is_refused(tmp_path: Path) -> None:
    made = make_dataset(str(tmp_path), {("a", "train"): [2 * RECORD_TOKENS]}, mean_document=1e9)
    index = tmp_path / made.manifest.shards[0].index_path
    table = np.load(index)
    assert made.manifest.shards[0].records == 2
    table[3, 1] += 1
    np.save(index, table)
    with pytest.raises(DatasetError, match=r"index.npy: tells of 2 documents where the manifest has 1"):
        next(pileshard.numpy_dataset(path=made.url, seq_len=100, packing="document", batch_size=1))


@pytest.mark.parametrize("packing", PACKED)
def test_a_state_of_another_packing_is_refused(made: Made, packing: str) -> None:
    state = pileshard.numpy_dataset(path=made.url, seq_len=16).state()
    for function in (pileshard.dataset, pileshard.numpy_dataset):
        with pytest.raises(OptionError, match=f"packing was 'concat' and is '{packing}'"):
            function(path=made.url, seq_len=16, packing=packing, start=state)
