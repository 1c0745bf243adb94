"""A damaged dataset: a reader stops at the place, or leaves out exactly the rows that touch it, on every rank alike."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pileshard
from pileshard.errors import DatasetError
from pileshard.readers.relief import lost_rows
from tests.readers.damaging import KINDS, Damaged, damage
from tests.readers.made import Made, make_dataset

SEQ_LEN = 16
#: Shards of whole chunks of many rows, where documents are cut and where they are not.
TOKENS = 16 * 64
SHARDS = {("a", "train"): [6 * TOKENS + 1, 3 * TOKENS + 1], ("b", "train"): [4 * TOKENS + 1]}
FORMS: dict[str, dict[str, Any]] = {
    "pair": {},
    "segments": {"segment_ids": True},
    "best_fit": {"packing": "best_fit"},
    "document": {"packing": "document"},
    "fim": {"fim_rate": 0.5, "fim_ids": (70_000, 70_001, 70_002)},
    "mixture": {"weights": {"a": 1, "b": 2}},
}
SEED, SLOTS = 3, 12

Rows = dict[int, tuple[np.ndarray, ...]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_dataset(str(tmp_path_factory.mktemp("damage") / "sound"), SHARDS, mean_document={"a": 40, "b": 9})


@pytest.fixture(params=[True, False], ids=["resident", "by chunks"])
def resident(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr("pileshard.readers.rows.CHUNK_TOKENS", 1)
    return request.param


def options_of(form: str) -> dict[str, Any]:
    return {"seed": SEED, "seq_len": SEQ_LEN, "slots": SLOTS, "drop_remainder": False, **FORMS[form]}


def parts(batch: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(part) for part in (batch.values() if isinstance(batch, dict) else batch))


def read(url: str, form: str, rank: int = 0, world: int = 1, batch: int = 5, **options: Any) -> tuple[Rows, Any, int]:
    """Every row by its position, the reader, and the number of steps."""
    reader = pileshard.numpy_dataset(
        rank, path=url, world_size=world, batch_size=batch, **{**options_of(form), **options}
    )
    rows: Rows = {}
    steps = 0
    for arrays in map(parts, reader):
        for number, position in enumerate(reader.schedule.positions(steps).tolist()):
            rows[position] = tuple(array[number] for array in arrays)
        steps += 1
    assert steps == reader.schedule.steps
    return rows, reader, steps


@cache
def sound(url: str, form: str) -> Rows:
    return read(url, form, on_damage="raise")[0]


@cache
def places(url: str, form: str) -> tuple[dict[int, tuple[int, list[tuple[int, int]]]], np.ndarray]:
    """Shard and tokens of each position's row, and its chunk, from the sound dataset alone."""
    options = options_of(form)
    del options["drop_remainder"]
    options.pop("segment_ids", None)
    corpus = pileshard.open(url)
    plan = corpus.plan(**options)
    every = np.arange(plan.samples_per_epoch)
    rows = plan.rows(every)
    if form not in ("best_fit", "document"):
        where = {
            p: (s, [(f, f + SEQ_LEN + 1)])
            for p, s, f in zip(every.tolist(), rows.shard.tolist(), rows.first_token.tolist(), strict=True)
        }
        return where, rows.chunk
    where = {}
    numbers = {entry.path: number for number, entry in enumerate(corpus.manifest.shards)}
    tables = {
        path: np.load(Path(url) / corpus.manifest.shards[n].index_path)[0].astype(int) for path, n in numbers.items()
    }
    for p in every.tolist():
        found = plan.locate(p)
        starts = tables[found.shard]
        tokens = [(starts[x.record] + x.record_tokens[0], starts[x.record] + x.record_tokens[1]) for x in found.pieces]
        where[p] = numbers[found.shard], [(int(a), int(b)) for a, b in tokens]
    return where, rows.chunk


def lost_positions(made: Made, damaged: Damaged, form: str) -> set[int]:
    where, _ = places(made.url, form)
    return {
        p
        for p, (shard, spans) in where.items()
        if shard in damaged.useless or any(damaged.tokens[shard][a:b].any() for a, b in spans)
    }


def assert_replaced(made: Made, form: str, position: int, row: tuple[np.ndarray, ...], lost: set[int]) -> None:
    """A lost row is empty where it can be told; else it is a sound one, of its own chunk if that has one."""
    if len(row) > 2:
        assert all(not array.any() for array in row)  # the end-of-document id is 0
        return
    if form == "fim":
        return
    _, chunk = places(made.url, form)
    others = [p for p in np.flatnonzero(chunk == chunk[position]).tolist() if p not in lost]
    if not others:
        others = [p for p in sound(made.url, form) if p not in lost]
    assert any(all(map(np.array_equal, row, sound(made.url, form)[p])) for p in others)


def assert_rows(made: Made, form: str, rows: Rows, lost: set[int]) -> None:
    whole = sound(made.url, form)
    for position, row in rows.items():
        if position in lost:
            assert_replaced(made, form, position, row, lost)
        else:
            assert all(map(np.array_equal, row, whole[position])), position


def draws(data: st.DataObject) -> Any:
    return lambda below: data.draw(st.integers(0, below - 1))


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=8)
def test_exactly_the_damaged_rows_are_left_out_on_every_rank(
    made: Made, tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    damaged = damage(made, tmp_path_factory.mktemp("copy"), draws(data), kinds)
    lost = lost_positions(made, damaged, form)
    if len(lost) == len(sound(made.url, form)) and form in ("pair", "fim", "mixture"):
        with pytest.raises(DatasetError, match="none of 100 chunks has a sound row"):
            read(damaged.url, form, on_damage="skip")
        return
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr("pileshard.readers.rows.CHUNK_TOKENS", 1)
        worlds = [1, data.draw(st.sampled_from([2, 3, 4] if form == "best_fit" else [2, 3, 5, 11]))]
        found: list[Rows] = []
        for world in worlds:
            batch = data.draw(st.integers(1, 9))
            ranks = [read(damaged.url, form, rank, world, batch, on_damage="skip") for rank in range(world)]
            assert len({steps for *_, steps in ranks}) == 1
            together: Rows = {}
            for rows, reader, _ in ranks:
                own = lost & rows.keys()
                left_out = reader.left_out.positions.tolist()
                if damaged.index_at_fault and form in ("best_fit", "document"):
                    # A wrong entry may cost the other rows of its chunk.
                    where, chunk = places(made.url, form)
                    assert own <= set(left_out)
                    touched = {int(chunk[p]) for p in lost if where[p][0] in damaged.index_at_fault}
                    assert {int(chunk[p]) for p in set(left_out) - own} <= touched
                else:
                    assert left_out == sorted(own)
                assert reader.left_out.rows == len(left_out)
                assert_rows(made, form, rows, set(left_out) | lost)
                together |= rows
            assert together.keys() == sound(made.url, form).keys()
            found.append(together)
        start = data.draw(st.integers(0, len(found[0])))
        found.append(read(damaged.url, form, start=start, on_damage="skip")[0])
        for position, row in itertools.chain(found[1].items(), found[2].items()):
            assert all(map(np.array_equal, row, found[0][position]))


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=12)
def test_damage_stops_a_reader_with_file_offset_and_command(
    made: Made, tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    damaged = damage(made, tmp_path_factory.mktemp("copy"), draws(data), [data.draw(st.sampled_from(KINDS))])
    lost = lost_positions(made, damaged, form)
    world = data.draw(st.sampled_from([1, 2, 5]))
    stopped = set()
    for rank in range(world):
        reader = pileshard.numpy_dataset(rank, path=damaged.url, world_size=world, **options_of(form))
        step = 0
        try:
            for arrays in map(parts, reader):
                for number, position in enumerate(reader.schedule.positions(step).tolist()):
                    assert position not in lost
                    row = tuple(array[number] for array in arrays)
                    assert all(map(np.array_equal, row, sound(made.url, form)[position]))
                step += 1
        except DatasetError as error:
            text = str(error)
            assert text.endswith(f"; run `pileshard repair {damaged.url}`")
            assert "\n" not in text
            [(path, offset)] = [place for found in damaged.files.values() for place in found]
            assert text.startswith(f"{damaged.url}/{path}: ")
            assert offset is None or f"at byte {offset:,}" in text
            stopped.add(rank)
    assert stopped or not lost


@pytest.mark.parametrize("world", [1, 3, 5])
def test_rows_that_share_but_one_token_with_damage_are_left_out(
    made: Made, tmp_path: Path, world: int, resident: bool
) -> None:
    """Records that begin, or end, where rows share a token: the last of one row is the first of the next."""
    target = tmp_path / "copy"
    damaged = damage(made, target, lambda below: 0, [])
    for number, entry in enumerate(made.manifest.shards):
        tokens, offsets = np.load(target / entry.index_path)[:2].astype(int)
        begins = np.flatnonzero(tokens[:-1] % SEQ_LEN == 0)[1::2].tolist()
        ends = np.flatnonzero(tokens[1:] % SEQ_LEN == 1)[1::2].tolist()
        assert begins
        assert ends
        data = bytearray((target / entry.path).read_bytes())
        for record in {*begins, *ends}:
            data[offsets[record + 1] - 5] ^= 1
            damaged.tokens[number][tokens[record] : tokens[record + 1]] = True
        (target / entry.path).write_bytes(data)
    lost = lost_positions(made, damaged, "pair")
    assert 20 < len(lost) < 400
    for rank in range(world):
        rows, reader, _ = read(damaged.url, "pair", rank, world, on_damage="skip")
        assert reader.left_out.positions.tolist() == sorted(lost & rows.keys())
        assert_rows(made, "pair", rows, lost)


@given(
    ranges=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), max_size=4),
    begin=st.integers(0, 60),
    rows=st.integers(1, 12),
    seq_len=st.integers(1, 9),
)
@settings(max_examples=300)
def test_lost_rows_are_those_that_touch_lost_tokens(
    ranges: list[tuple[int, int]], begin: int, rows: int, seq_len: int
) -> None:
    lost = {token for low, size in ranges for token in range(low, low + size)}
    expected = [
        not lost.isdisjoint(range(begin + row * seq_len, begin + (row + 1) * seq_len + 1)) for row in range(rows)
    ]
    assert lost_rows([(low, low + size) for low, size in ranges], begin, rows, seq_len).tolist() == expected
