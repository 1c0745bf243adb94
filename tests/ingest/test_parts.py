"""Parts of an input: however many and wherever they are cut, together they are the whole, line by line."""

from __future__ import annotations

import io
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pileshard.errors import BuildError, InputError
from pileshard.ingest import count, lines
from pileshard.ingest.containers import Container
from pileshard.ingest.count import NoEntryError, count_range, enterable, find_frame, frame_end, join
from pileshard.ingest.frames import decompressed
from pileshard.ingest.parts import START, Entry, PartReader, Seam
from tests.ingest.samples import ShortReads, blocks_of, gzip_member, skippable, zstd_frame

# Each line: number, offset, bytes (or the size of one that was too long).
Lines = list[tuple[int, int, bytes | int]]

text_pieces = st.one_of(
    st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\xef\xbb\xbf", "日本".encode(), "😀".encode(), b"\xe2\x80", b" "]),
    st.binary(max_size=40),
    st.builds(lambda n, end: b"x" * n + end, st.integers(0, 3000), st.sampled_from([b"", b"\n"])),
)


def lines_in(blocks) -> Lines:
    out: Lines = []
    for block in blocks:
        assert (block.first_line - 1) // 1024 == (block.first_line + len(block.lines) - 2) // 1024
        for index, (line, offset) in enumerate(zip(block.lines, block.offsets(), strict=True)):
            out.append(
                (block.first_line + index, offset, block.oversize[index].size if index in block.oversize else line)
            )
    return out


def read_through(stored: bytes, cuts: list[int], sizes=()) -> Lines:
    """Reads every part on its own through what comes before it, and holds the seams against each other."""
    out: Lines = []
    before: Seam | None = START
    for number, (begin, end) in enumerate(pairwise(cuts)):
        last = number == len(cuts) - 2
        reader = PartReader(ShortReads(stored, sizes), "input", begin=begin, end=None if last else end)
        out += lines_in(reader.blocks())
        assert before.is_same(reader.begin)
        before = reader.end
    assert before is not None
    return out


def count_parts(stored: bytes, container: Container, cuts: list[int]) -> list[Entry] | None:
    """The parts that begin at frames, or None where their ranges do not join."""
    raw, size = io.BytesIO(stored), len(stored)
    try:
        counted = [count_range(raw, "input", container, begin, end, size) for begin, end in pairwise(cuts)]
    except (NoEntryError, InputError):
        return None
    return join(counted, container, size)


def read_entered(stored: bytes, parts: list[Entry], sizes=()) -> Lines:
    out: Lines = []
    for entry in parts:
        out += lines_in(PartReader(ShortReads(stored[entry.at :], sizes), "input", entry=entry).blocks())
    return out


def cuts_of(size: int, parts: int) -> list[int]:
    return [size * part // parts for part in range(parts + 1)]


@st.composite
def stored_inputs(draw) -> tuple[str, bytes]:
    texts = draw(st.lists(st.lists(text_pieces, max_size=8).map(b"".join), min_size=1, max_size=6))
    kind = draw(st.sampled_from(["zstd", "gzip", "plain"]))
    if kind == "plain":
        return kind, b"{}\n" + b"".join(texts)
    if kind == "gzip":
        return kind, b"".join(gzip_member(text) for text in texts)
    stored = b""
    for text in texts:
        stored += draw(
            st.sampled_from([b"", b"", skippable(b"abc"), skippable(b"\x28\xb5\x2f\xfd" * 3), zstd_frame(b"")])
        )
        stored += zstd_frame(text, checksum=draw(st.booleans()), sized=draw(st.booleans()))
    return kind, stored + draw(st.sampled_from([b"", skippable(b"end")]))


def whole(stored: bytes) -> Lines:
    return lines_in(blocks_of(stored))


@settings(max_examples=150)
@given(stored_inputs(), st.integers(1, 9), st.sampled_from([(), (1,), (7, 3)]))
def test_parts_read_through_are_the_whole(made, parts, sizes):
    _, stored = made
    assert read_through(stored, cuts_of(len(stored), parts), sizes) == whole(stored)


@settings(max_examples=100)
@given(stored_inputs(), st.lists(st.integers(0, 10**6), max_size=6), st.sampled_from([(), (5,)]))
def test_cuts_may_lie_anywhere(made, places, sizes):
    _, stored = made
    cuts = [0, *sorted(place % (len(stored) + 1) for place in places), len(stored)]
    assert read_through(stored, cuts, sizes) == whole(stored)


@settings(max_examples=150)
@given(stored_inputs(), st.integers(1, 9), st.sampled_from([(), (1,), (7, 3)]))
def test_parts_entered_at_frames_are_the_whole(made, parts, sizes):
    kind, stored = made
    if kind == "gzip":
        return
    container = Container(kind)
    entries = count_parts(stored, container, cuts_of(len(stored), parts))
    if entries is None:  # a magic number that is none, in a skippable frame: told apart, and read through
        assert b"\x28\xb5\x2f\xfd" * 3 in stored
        return
    assert read_entered(stored, entries, sizes) == whole(stored)


def many_frames(seed: int, frames: int) -> bytes:
    rng = random.Random(seed)
    text = b"".join(b'{"text": "%s"}\n' % (b"w" * rng.randrange(300)) for _ in range(40 * frames))
    places = sorted(rng.randrange(len(text)) for _ in range(frames - 1))
    stored = b""
    for begin, end in pairwise([0, *places, len(text)]):
        stored += zstd_frame(text[begin:end]) + (skippable(b"x" * rng.randrange(50)) if rng.random() < 0.2 else b"")
    return stored


@pytest.mark.parametrize("parts", [2, 5, 16])
def test_frames_are_found_and_each_is_decompressed_once(parts):
    stored = many_frames(1, 60)
    entries = count_parts(stored, Container.ZSTD, cuts_of(len(stored), parts))
    assert entries is not None
    assert entries[-1].end.text == sum(map(len, decompressed(io.BytesIO(stored), "input")))
    for entry in entries:
        read = 0

        def seen(chunk):
            nonlocal read
            read += len(chunk)

        raw = ShortReads(stored[entry.at :], (500,))
        list(PartReader(raw, "input", entry=entry, on_bytes=seen).blocks())
        assert read < len(stored) / parts + 6000  # its own frames, and one more for the line that is open


def test_lines_have_their_numbers_in_groups_of_1024_and_over(monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5000)
    text = b"".join(b"%d\n" % n for n in range(5000)) + b"y" * 9000 + b"\nlast"
    stored = b"".join(zstd_frame(text[at : at + 777]) for at in range(0, len(text), 777))
    for parts in (1, 3, 7):
        cuts = cuts_of(len(stored), parts)
        assert read_through(stored, cuts) == whole(stored)
        entries = count_parts(stored, Container.ZSTD, cuts)
        assert entries is not None
        assert read_entered(stored, entries) == whole(stored)


def test_a_line_over_many_parts_belongs_to_the_one_that_it_begins_in():
    stored = b"".join(zstd_frame(piece) for piece in (b"a\nb", *[b"b" * 100] * 9, b"b\nc\n"))
    cuts = cuts_of(len(stored), 11)
    entries = count_parts(stored, Container.ZSTD, cuts)
    assert entries is not None
    found = [lines_in(PartReader(io.BytesIO(stored[entry.at :]), "input", entry=entry).blocks()) for entry in entries]
    assert [line for part in found for line in part] == [(1, 0, b"a"), (2, 2, b"b" * 902), (3, 905, b"c")]
    assert [len(part) for part in found].count(0) >= 8
    assert read_through(stored, cuts) == whole(stored)


@pytest.mark.parametrize("make", [zstd_frame, gzip_member])
def test_a_part_reads_no_further_than_its_last_line(make):
    rng = random.Random(3)
    stored = make(b"".join(b"%d\n" % rng.getrandbits(60) for _ in range(300_000)))
    read = 0

    def seen(chunk):
        nonlocal read
        read += len(chunk)

    half = len(stored) // 2
    list(PartReader(ShortReads(stored, (4096,)), "input", end=half, on_bytes=seen).blocks())
    assert half <= read < half + (200 << 10)


@pytest.mark.parametrize("make", [zstd_frame, gzip_member])
def test_damage_is_named_by_whoever_reads_over_it(make):
    rng = random.Random(4)
    stored = make(b"".join(b"%d\n" % rng.getrandbits(60) for _ in range(100_000)))
    damaged = stored[: len(stored) * 2 // 3]
    size = len(stored)
    list(PartReader(io.BytesIO(damaged), "input", begin=0, end=size // 3).blocks())
    with pytest.raises(InputError, match="truncated") as raised:
        list(PartReader(io.BytesIO(damaged), "input", begin=size // 3, end=None).blocks())
    assert raised.value.offset == len(damaged)


def test_an_input_that_changed_after_it_was_counted_is_refused():
    stored = many_frames(2, 8)
    entries = count_parts(stored, Container.ZSTD, cuts_of(len(stored), 2))
    assert entries is not None
    [_, entry] = entries
    text = b"".join(decompressed(io.BytesIO(stored[entry.at :]), "input"))
    changed = text.replace(b"w", b"v", 1)
    for other in (changed, text[:-1], text.replace(b"\n", b" ", 1)):
        with pytest.raises(BuildError, match="must not change"):
            list(PartReader(io.BytesIO(zstd_frame(other)), "input", entry=entry).blocks())


def test_what_can_be_entered():
    one, several = zstd_frame(b"a\n" * 1000), many_frames(5, 3)
    assert enterable(several) is Container.ZSTD
    assert enterable(skippable(b"x") + several) is Container.ZSTD
    assert enterable(b'{"text": "a"}\n') is Container.PLAIN
    for stored in (b"", one, one[:-1], gzip_member(b"a\n"), b"BZh91AY", skippable(b"x"), several[:20]):
        assert enterable(stored) is None


@given(st.binary(max_size=2000), st.booleans(), st.booleans(), st.integers(1, 19))
def test_the_end_of_a_frame_is_told_by_its_headers(data, checksum, sized, level):
    frame = zstd_frame(data, checksum=checksum, sized=sized, level=level)
    assert frame_end(frame + b"more", 0) == len(frame)
    assert frame_end(frame[:-1], 0) is None


def test_large_frames_end_where_their_headers_say():
    rng = random.Random(6)
    for data in (rng.randbytes(1 << 20), bytes(1 << 20), b"".join(b"%d " % rng.getrandbits(40) for _ in range(90_000))):
        frame = zstd_frame(data)
        assert frame_end(b"ab" + frame + frame, 2) == 2 + len(frame)
        assert find_frame(io.BytesIO(frame + frame), 1, 2 * len(frame)) == len(frame)


def test_a_magic_number_in_the_middle_of_a_frame_is_not_a_frame(monkeypatch):
    rng = random.Random(7)
    # Many of the numbers come out of the compressor as they are, with what is no header or no block behind them.
    inner = b"".join(rng.randbytes(50) + b"\x28\xb5\x2f\xfd" for _ in range(2000))
    stored = zstd_frame(inner) * 3
    size = len(stored) // 3
    assert stored.count(b"\x28\xb5\x2f\xfd") > 500
    for at in range(1, len(stored), 997):
        assert find_frame(io.BytesIO(stored), at, len(stored)) == -(-at // size) * size
    monkeypatch.setattr(count, "LONGEST_FRAME", 1000)
    monkeypatch.setattr(count, "_WINDOW_BYTES", 900)
    monkeypatch.setattr(count, "_LOOK_AHEAD", size // 2)
    with pytest.raises(NoEntryError):
        find_frame(io.BytesIO(stored), 1, len(stored))


def test_both_sides_of_each_seam_see_the_same_of_a_line_over_many_parts() -> None:
    """One that is damaged after a part that lies wholly inside of it is told by the seams."""
    texts = [b"{}\n" + b"b" * 40_000 + end for end in (b"b\nc\n", b"X\nc\n")]
    cuts = cuts_of(len(texts[0]), 7)
    sides = []
    for text in texts:
        readers = [PartReader(io.BytesIO(text), "input", begin=a, end=b) for a, b in pairwise(cuts)]
        for reader in readers:
            lines_in(reader.blocks())
        sides.append(readers)
        for before, after in pairwise(readers):
            assert before.end is not None
            assert after.begin is not None
            assert before.end.tail == after.begin.tail != ""
    for one, two in zip(*sides, strict=True):
        assert one.begin.text == 0 or not one.begin.is_same(two.begin)
