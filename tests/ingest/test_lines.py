r"""Lines: ended by `\n` alone, joined across frames, handed out in blocks that never straddle 1024 lines."""

from __future__ import annotations

import random
import time
import weakref
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pileshard.ingest import LINES_PER_BLOCK, Reason, lines
from pileshard.ingest.lines import LineCutter, line_blocks
from tests.ingest.samples import (
    ShortReads,
    account_of,
    blocks_of,
    gzip_member,
    lines_of,
    parse,
    read,
    skippable,
    zstd_frame,
)

LINE = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"\r"))


def cut(stream, sizes, block_bytes=1 << 20):
    """The blocks of a stream that is fed in pieces of the given sizes, in turn."""
    cutter = LineCutter(block_bytes)
    ready, at, turn = [], 0, 0
    while at < len(stream):
        ready += cutter.feed(stream[at : at + sizes[turn % len(sizes)]])
        at += sizes[turn % len(sizes)]
        turn += 1
    return ready + cutter.finish()


@given(
    st.lists(LINE, max_size=30),
    st.booleans(),
    st.lists(st.integers(0, 1300), max_size=6),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
    st.sampled_from(["plain", "zstd", "gzip"]),
)
def test_any_lines_in_any_frames_come_back_exactly(wanted, ended, cuts, sizes, kind):
    stream = b"\n".join(wanted) + (b"\n" if ended and wanted else b"")
    wanted = stream.removesuffix(b"\n").split(b"\n") if stream else []
    if kind == "plain":
        stream = b"{}\n" + stream
        wanted = [b"{}", *wanted]
        stored = stream
    else:
        bounds = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
        make = zstd_frame if kind == "zstd" else gzip_member
        fill = skippable(b"\n") if kind == "zstd" else b""
        stored = fill.join(make(stream[a:b]) for a, b in pairwise(bounds))
    assert lines_of(stored, sizes) == wanted


@given(
    st.lists(st.integers(0, 30), max_size=4000).map(lambda sizes: [b"x" * size for size in sizes]),
    st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    st.integers(1, 20_000),
)
@example([b""] * 3000, [1], 1)
@example([b"x"] * 2048, [5000], 20_000)
@example([b"x" * 30] * 1024, [1], 10)
def test_blocks_number_their_lines_and_never_straddle_a_group(wanted, sizes, block_bytes):
    stream = b"".join(line + b"\n" for line in wanted)
    blocks = cut(stream, sizes, block_bytes)
    line, offset = 1, 0
    for block in blocks:
        assert (block.first_line, block.first_offset) == (line, offset)
        assert block.group == (line - 1) // LINES_PER_BLOCK == (line + len(block.lines) - 2) // LINES_PER_BLOCK
        line += len(block.lines)
        offset += sum(len(text) + 1 for text in block.lines)
        full = sum(map(len, block.lines)) >= block_bytes
        assert full or (line - 1) % LINES_PER_BLOCK == 0 or block is blocks[-1]
        assert sum(map(len, block.lines[:-1])) < block_bytes
    assert [text for block in blocks for text in block.lines] == wanted
    assert offset == len(stream)


@given(st.lists(LINE, max_size=300), st.lists(st.integers(1, 50), min_size=1, max_size=3), st.integers(1, 100))
def test_blocks_depend_on_the_lines_alone(wanted, sizes, block_bytes):
    stream = b"\n".join(wanted)
    assert cut(stream, sizes, block_bytes) == cut(stream, [1 << 20], block_bytes)


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_only_a_newline_ends_a_line(separator):
    line = f'{{"te{separator}xt": 1}}'.encode()
    assert lines_of(zstd_frame(line + b"\n" + line)) == [line, line]


def test_a_last_line_without_newline_is_a_line():
    for tail in (b"", b"\n"):
        got = read(zstd_frame(b'{"text": "a"}\n{"text": "b"}' + tail))
        assert (got.texts, got.lines, got.total) == ([b"a", b"b"], [1, 2], 2)


def test_blank_lines_are_counted_apart():
    got = read(zstd_frame(b'\n{"text": "a"}\n \t\r\n\r\n\xef\xbb\xbf\n\xef\xbb\xbf \r\n{"text": "b"}\n\n  '))
    assert (got.texts, got.lines) == ([b"a", b"b"], [2, 7])
    assert (got.blank, got.total, got.rejections) == (7, 9, [])


@pytest.mark.parametrize("stored", [b"\n", b"\r\n\r\n", b" ", b"\xef\xbb\xbf", b"\n" * 5000, zstd_frame(b"\n \n")])
def test_an_input_of_blank_lines_alone_has_no_documents(stored):
    got = read(stored)
    assert (got.texts, got.rejections) == ([], [])
    assert got.blank == got.total > 0


def test_crlf_and_byte_order_marks_are_passed_over():
    got = read(
        zstd_frame(b'\xef\xbb\xbf{"text": "a\\r"}\r\n{"text": "b"}\r\n\xef\xbb\xbf{"text": "\xef\xbb\xbfc"}\r\n')
    )
    assert got.texts == [b"a\r", b"b", b"\xef\xbb\xbfc"]


def test_offsets_of_rejections_lead_to_their_lines():
    rng = random.Random(5)
    good = ['{"text": "ok"}', "", "  \r", '{"text": "日本語"}']
    stream = "".join(rng.choice([*good, "{bad", "[]", '{"text": 1}']) + "\n" for _ in range(5000)).encode()
    wanted = stream.split(b"\n")[:-1]
    got = read(zstd_frame(stream), (777,))
    assert len(got.rejections) > 1000
    for rejection in got.rejections:
        line = wanted[rejection.line - 1]
        assert stream[rejection.offset : rejection.offset + len(line) + 1] == line + b"\n"
        assert rejection.excerpt == line.decode()
    accepted = [number for number, line in enumerate(wanted, 1) if line.decode() in (good[0], good[3])]
    assert got.lines == accepted


def test_parts_of_whole_groups_share_out_every_line_once():
    stored = zstd_frame(b"".join(b'{"text": "%d"}\n' % number for number in range(10_000)))
    parts = [[], [], []]
    for block in blocks_of(stored, block_bytes=3000):
        parts[block.group % 3] += parse(block).lines
    assert sorted(line for part in parts for line in part) == list(range(1, 10_001))
    for k, part in enumerate(parts):
        assert all((line - 1) // 1024 % 3 == k for line in part)


@pytest.mark.parametrize("sizes", [[1], [7], [64, 1], [1 << 20]])
@pytest.mark.parametrize("over", [1, 2, 63, 100_000])
@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_a_line_that_is_too_long_is_rejected_and_passed_over(monkeypatch, sizes, over, block_bytes):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 64)
    long = b'{"text": "' + b"x" * (64 + over - 10)
    most = b'{"text": "' + b"y" * 52 + b'"}'
    assert (len(long), len(most)) == (64 + over, 64)
    stream = b"\n".join([most, long, b"{}", most, long + b"z", most])
    blocks = cut(stream, sizes, block_bytes)
    got = account_of(blocks)
    assert got.texts == [b"y" * 52] * 3
    assert got.lines == [1, 4, 6]
    assert [(r.line, r.offset, r.reason) for r in got.rejections] == [
        (2, 65, Reason.LINE_TOO_LONG),
        (3, 65 + len(long) + 1, Reason.NO_TEXT),
        (5, 65 + len(long) + 4 + 65, Reason.LINE_TOO_LONG),
    ]
    assert got.rejections[0].detail.startswith(f"{64 + over:,} bytes")
    assert got.rejections[0].excerpt == long[:200].decode()
    assert blocks == cut(stream, [1 << 20], block_bytes)


def test_a_whole_object_followed_by_too_many_blanks_is_too_long(monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    [rejection] = account_of(cut(b'{"text": "a"}' + b" " * 5000, [100])).rejections
    assert rejection.reason is Reason.LINE_TOO_LONG


def test_a_line_of_many_pieces_is_joined_once():
    def seconds(pieces):
        cutter = LineCutter()
        begin = time.perf_counter()
        for _ in range(pieces):
            cutter.feed(b"x" * 64)
        [block] = cutter.finish()
        assert len(block.lines[0]) == 64 * pieces
        return time.perf_counter() - begin

    few = min(seconds(20_000) for _ in range(3))
    assert seconds(200_000) < 10 * few * 5


def test_a_block_lives_only_as_long_as_its_consumer_holds_it():
    stored = zstd_frame(b'{"text": "a"}\n' * 5000)
    blocks = line_blocks(ShortReads(stored, ()), "input")
    for _ in range(3):
        block = next(blocks)
        alive = weakref.ref(block)
        del block
        assert alive() is None
