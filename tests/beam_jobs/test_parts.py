"""Parts of inputs: the same dataset whatever the number of parts, and parts that keep workers at work."""

from __future__ import annotations

import json
import os
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs import build as driver
from beam_jobs import items
from beam_jobs.in_turn import InTurn
from beam_jobs.job import TokenizeReceipt
from beam_jobs.parts import LEAST_TEXT, InputParts, Kind, PartsPlan, choose_counts, cut, makespan, part_cost
from beam_jobs.work_share import at_once, stage_time
from pileshard.errors import BuildError
from tests.built import document, run_build, shard_hashes, write_input
from tests.ingest.samples import gzip_member, skippable, zstd_frame
from tests.paths import SHARED, needs_shared

GB = 10**9


def odd_text(rng: random.Random, lines: int) -> bytes:
    """Lines of every kind: documents short and long, rejected ones, blanks, other line ends, no newline at the end."""
    out = []
    for _ in range(lines):
        kind = rng.random()
        text = rng.choice(["word ", "日本語 ", "😀", "\u2028", "a\nb "]) * rng.choice([1, 1, 3, 40, 400])
        line = json.dumps(document(text, rng.choice(["ArXiv", "Pile-CC", None])), ensure_ascii=rng.random() < 0.5)
        data = line.encode()
        if kind < 0.03:
            data = rng.choice([b"", b"  \r", b"{", b'{"text": 3}', b"\xff\xfe", b'{"text": ""}'])
        elif kind < 0.06:
            data = b"\xef\xbb\xbf" + data
        out.append(data + rng.choice([b"\n", b"\n", b"\r\n"]))
    return b"".join(out)[: None if rng.random() < 0.5 else -1]


def frames_of(rng: random.Random, text: bytes, most: int) -> list[bytes]:
    places = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(most)))
    return [text[begin:end] for begin, end in pairwise([0, *places, len(text)])]


def make_inputs(folder: Path, seed: int) -> list[str]:
    """Inputs in every container, of one frame and of many, cut inside lines and characters."""
    rng = random.Random(seed)
    folder.mkdir()
    made = []
    for number in range(14):
        text = odd_text(rng, rng.choice([1, 40, 400, 2500]))
        pieces = frames_of(rng, text, rng.choice([1, 3, 30]))
        if number % 4 == 0:
            data = text if text[:1] == b"{" else b"{}\n" + text
        elif number % 4 == 1:
            data = b"".join(map(gzip_member, pieces))
        else:
            data = b"".join(
                rng.choice([b"", b"", skippable(b"index"), zstd_frame(b"")])
                + zstd_frame(piece, checksum=rng.random() < 0.7, sized=rng.random() < 0.5)
                for piece in pieces
            )
        path = folder / f"{number:02d}.jsonl"
        path.write_bytes(data)
        made.append(str(path))
    return made


def dataset(output: Path) -> dict[str, Any]:
    """All of a manifest that must not depend on the parts, and the lists of rejected lines."""
    manifest = json.loads((output / "manifest.json").read_text())
    for entry in manifest["inputs"]:
        entry["skipped"] = entry["skipped"] is not None  # where damage was met differs by some bytes
    lists = {path.name: path.read_text() for path in sorted((output / "rejected").glob("*"))}
    kept = ("inputs", "sources", "shards", "documents", "tokens", "text_bytes", "dataset_id")
    return {"rejected": lists, **{key: manifest[key] for key in kept}}


def receipts(output: Path) -> list[TokenizeReceipt]:
    paths = sorted((output / "_build" / "receipts").glob("tokenize-*"))
    return [msgspec.json.decode(path.read_bytes(), type=TokenizeReceipt) for path in paths]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    root = tmp_path_factory.mktemp("odd")
    inputs = make_inputs(root / "in", 1)
    run_build(root / "one", inputs, parts_per_input=1)
    return inputs, dataset(root / "one")


@pytest.mark.parametrize("parts", [2, 3, 25])
def test_any_number_of_parts_gives_the_same_dataset(odd, tmp_path: Path, parts: int) -> None:
    inputs, whole = odd
    run_build(tmp_path / "parts", inputs, parts_per_input=parts, keep_runs=True, run_bytes=70_000)
    assert dataset(tmp_path / "parts") == whole
    entered = {receipt.item.input for receipt in receipts(tmp_path / "parts") if receipt.item.entry is not None}
    through = {receipt.item.input for receipt in receipts(tmp_path / "parts") if receipt.item.entry is None}
    assert len(entered) >= 6
    assert len(through) >= 4
    assert not entered & through


def test_damaged_inputs_are_left_out_whole_whatever_the_parts(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "in", 2)
    rng = random.Random(3)
    for path in inputs[1::2]:
        data = bytearray(Path(path).read_bytes())
        at = rng.randrange(len(data) * 2 // 3, len(data))
        if rng.random() < 0.5:
            del data[at:]
        else:
            data[at] ^= 0x55
        Path(path).write_bytes(data)
    for parts in (1, 6):
        run_build(tmp_path / str(parts), inputs, parts_per_input=parts, on_bad_input="skip")
    found = dataset(tmp_path / "6")
    assert found == dataset(tmp_path / "1")
    assert sum(entry["skipped"] for entry in found["inputs"]) >= 4


@pytest.mark.parametrize("frames", [1, 20])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.97])
def test_damage_stops_a_build_with_name_and_offset_whichever_part_meets_it(
    tmp_path: Path, frames: int, place: float
) -> None:
    rng = random.Random(4)
    text = b"".join(json.dumps(document(f"{rng.random()}")).encode() + b"\n" for _ in range(4000))
    step = -(-len(text) // frames)
    data = bytearray(b"".join(zstd_frame(text[at : at + step]) for at in range(0, len(text), step)))
    data[int(place * len(data))] ^= 0xFF
    bad = tmp_path / "bad.jsonl.zst"
    bad.write_bytes(data)
    with pytest.raises(BuildError, match=r"bad.jsonl.zst: .* at byte [\d,]+") as raised:
        run_build(tmp_path / "dataset", [str(bad)], parts_per_input=5)
    said = int(str(raised.value).split("at byte ")[-1].split(";")[0].split()[0].replace(",", ""))
    assert abs(said - place * len(data)) <= max(len(data) / frames, 256 << 10)
    assert not (tmp_path / "dataset" / "manifest.json").exists()


def test_what_only_looks_like_a_frame_is_read_through(tmp_path: Path) -> None:
    """A whole frame inside a skippable one deceives the search; the seam does not fit, and nothing is lost."""
    lines = [json.dumps(document("text " * 50)).encode() + b"\n" for _ in range(200)]
    bait = skippable(b"".join(zstd_frame(line) for line in lines[:20]))
    path = tmp_path / "bait.jsonl.zst"
    path.write_bytes(b"".join(bait + zstd_frame(line) for line in lines))
    for parts in (1, 4):
        run_build(tmp_path / str(parts), [str(path)], parts_per_input=parts, keep_runs=True)
    assert dataset(tmp_path / "4") == dataset(tmp_path / "1")
    assert [receipt.item.entry for receipt in receipts(tmp_path / "4")] == [None] * 4


@needs_shared
def test_nasty_inputs_give_the_same_dataset_in_parts(tmp_path: Path) -> None:
    assert SHARED
    large = {"one_line_64MB_words.jsonl.zst", "rep_hex1M.jsonl.zst", "rep_spaces1M.jsonl.zst", "long31.jsonl.zst"}
    inputs = [str(path) for path in sorted((SHARED / "nasty").glob("*.zst")) if path.name not in large]
    for parts in (1, 5):
        run_build(tmp_path / str(parts), inputs, parts_per_input=parts, on_bad_input="skip")
    assert dataset(tmp_path / "5") == dataset(tmp_path / "1")


def test_a_build_goes_on_with_another_number_of_parts(odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, whole = odd
    output = tmp_path / "dataset"
    with monkeypatch.context() as patched:
        patched.setattr(driver, "plan_groups", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            run_build(output, inputs, parts_per_input=3)
    run_build(output, inputs, parts_per_input=4)
    assert dataset(output) == whole


def test_auto_keeps_to_the_parts_that_a_build_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [write_input(tmp_path / f"{n}.zst", [document(f"text {n} {k}") for k in range(300)]) for n in range(2)]
    output = tmp_path / "dataset"
    asked: list[int] = []

    def three(sizes: list[int], kinds: list[Kind], workers: int) -> list[int]:
        asked.append(workers)
        return [3] * len(sizes)

    monkeypatch.setattr("beam_jobs.parts.choose_counts", three)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "plan_groups", lambda *_: (_ for _ in ()).throw(BuildError("stopped")))
        with pytest.raises(BuildError, match="stopped"):
            run_build(output, inputs)
    before = {path.name: path.stat().st_mtime_ns for path in (output / "_build" / "receipts").glob("tokenize-*")}
    run_build(output, inputs, workers=2, keep_runs=True)
    after = {path.name: path.stat().st_mtime_ns for path in (output / "_build" / "receipts").glob("tokenize-*")}
    assert asked == [1]
    assert before == after
    assert len(before) == 6


@pytest.mark.parametrize("container", ["plain", "gzip"])
def test_an_input_that_changes_while_it_is_read_in_parts_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: str
) -> None:
    """The parts see it by their seams, though each one's bytes are sound."""
    path = tmp_path / "changing.jsonl"
    text = b"".join(json.dumps(document(f"text {n:06d}")).encode() + b"\n" for n in range(5000))
    times = os.stat(tmp_path).st_atime_ns, os.stat(tmp_path).st_mtime_ns

    def write(data: bytes) -> None:
        path.write_bytes(gzip_member(data, level=0) if container == "gzip" else data)
        os.utime(path, ns=times)

    write(text)
    size = path.stat().st_size
    tokenize_item = items.tokenize_item

    def then_change(job, item, retries=None):
        receipt = tokenize_item(job, item, retries)
        write(text.replace(b"text 000007", b"text 00000x").replace(b"text 004990", b"text 00499x"))
        assert path.stat().st_size == size
        return receipt

    monkeypatch.setattr(items, "tokenize_item", then_change)
    with pytest.raises(BuildError, match="an input must not change"):
        run_build(tmp_path / "dataset", [str(path)], parts_per_input=3)


kinds = st.sampled_from([Kind("zstd", False), Kind("zstd", True), Kind("gzip", False), Kind("plain", True)])


@given(st.integers(0, 10**12), kinds, st.integers(1, 1000))
def test_cuts_cover_the_input(size: int, kind: Kind, parts: int) -> None:
    made = cut(size, kind, parts)
    assert made.parts == parts
    assert made.cuts[0] == 0
    assert made.cuts[-1] == size
    assert made.cuts == sorted(made.cuts)


@given(st.lists(st.tuples(st.integers(0, 50 * GB), kinds), max_size=40), st.integers(1, 300))
@settings(max_examples=40)
def test_parts_never_make_it_longer_and_are_not_too_small(made: list[tuple[int, Kind]], workers: int) -> None:
    sizes, of_kind = [size for size, _ in made], [kind for _, kind in made]
    counts = choose_counts(sizes, of_kind, workers)
    assert makespan(sizes, of_kind, counts, workers) <= makespan(sizes, of_kind, [1] * len(sizes), workers)
    for size, count in zip(sizes, counts, strict=True):
        assert count == 1 or size * 3 / count >= LEAST_TEXT


def share_at_work(inputs: int, kind: Kind, workers: int) -> tuple[float, float]:
    """The share of time at work, and the time as a multiple of what perfect parts would take."""
    text = 43 * GB // (1 if kind.container == "plain" else 3)
    sizes, of_kind = [text + n * text // 300 for n in range(inputs)], [kind] * inputs
    counts = choose_counts(sizes, of_kind, workers)
    time = makespan(sizes, of_kind, counts, workers)
    work = sum(count * part_cost(size, kind, count) for size, count in zip(sizes, counts, strict=True))
    ideal = sum(part_cost(size, kind, 1) for size in sizes) / workers
    return work / time / workers, time / ideal


def test_thirty_large_inputs_leave_no_worker_idle_on_200() -> None:
    for kind in (Kind("zstd", True), Kind("plain", True)):
        at_work, time = share_at_work(30, kind, 200)
        assert at_work > 0.95
        assert time < 1.2
    at_work, time = share_at_work(30, Kind("zstd", False), 200)
    assert at_work > 0.88
    assert time < 1.65
    assert share_at_work(30, Kind("zstd", False), 16)[0] > 0.93


def test_small_inputs_are_not_cut() -> None:
    plan = InputParts(way="whole", container="", cuts=[0, 1000])
    assert cut(1000, Kind("zstd", True), 1) == plan
    assert choose_counts([20_000_000] * 4, [Kind("zstd", True)] * 4, 2) == [1] * 4
    assert PartsPlan(asked="auto", inputs=[plan]).inputs[0].parts == 1


def test_time_at_work_is_told_from_receipts(odd, tmp_path: Path) -> None:
    result = run_build(tmp_path / "dataset", odd[0], parts_per_input=2)
    assert set(result.times) == {"count", "tokenize", "merge"}
    kept = json.loads((tmp_path / "dataset" / "manifest.json").read_text())["build"]["stages"]
    for name, time in result.times.items():
        assert kept[name] == msgspec.to_builtins(time)
        assert time.processes == time.workers == 1
        assert time.at_work is not None
        assert 0 < time.at_work <= 1
        assert time.item_seconds <= time.seconds + 0.01


def test_workers_are_counted_by_items_at_once() -> None:
    class Receipt(msgspec.Struct):
        began: float
        seconds: float
        worker: str

    made = [Receipt(0.0, 10.0, "a"), Receipt(1.0, 4.0, "b"), Receipt(5.5, 3.0, "b"), Receipt(8.6, 1.0, "c")]
    assert at_once(made) == 2
    time = stage_time(-2.0, 10.0, made, None)
    assert (time.workers, time.processes, time.at_work, time.start_seconds) == (2, 3, 0.9, 2.0)
    assert stage_time(0.0, 10.0, made, 4).at_work == 0.45
    assert stage_time(0.0, 10.0, [], 4).at_work is None


def test_shards_are_whole_files(odd, tmp_path: Path) -> None:
    run_build(tmp_path / "a", odd[0], parts_per_input=3, workers=2)
    assert {entry["path"]: entry["sha256"] for entry in odd[1]["shards"]} == {
        path: digest for path, digest in shard_hashes(tmp_path / "a").items() if path.endswith(".tfrecord")
    }


class Names(beam.DoFn):
    """Gives back its element."""

    def process(self, element: str) -> list[str]:
        return [element]


def test_a_process_that_is_free_takes_what_a_busy_one_has_not_begun(tmp_path: Path) -> None:
    busy, free = (InTurn(Names(), ["a", "b", "c", "d"], str(tmp_path)) for _ in range(2))
    long = busy.process(0)
    assert next(long) == "a"
    assert list(free.process(1)) == ["b", "c", "d"]
    assert list(long) == []
