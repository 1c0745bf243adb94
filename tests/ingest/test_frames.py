"""Containers: told by their first bytes; what is cut, damaged or appended is an error and never a shorter stream."""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import io
import lzma
import random
import zipfile
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.errors import InputError
from pileshard.ingest import decompressed, line_blocks
from pileshard.ingest.frames import OUT_BYTES
from pileshard.ingest.stored import StoredBytes
from tests.ingest.samples import THREE, ShortReads, gzip_member, lines_of, read, skippable, zstd_frame

LINES = THREE.rstrip(b"\n").split(b"\n")
EMPTY = zstd_frame(b"")


def content(stored, sizes=()):
    return b"".join(decompressed(ShortReads(stored, sizes), "input"))


def frames_between(parts):
    """The parts joined, and the offsets at which one ends and the next begins."""
    ends, at = set(), 0
    for part in parts:
        at += len(part)
        ends.add(at)
    return b"".join(parts), ends


ZSTD_PARTS = [
    skippable(b"index", 3),
    zstd_frame(THREE[:50]),
    EMPTY,
    skippable(),
    zstd_frame(THREE[50:], sized=False),
    zstd_frame(THREE, checksum=False),
    skippable(b"end", 15),
]
GZIP_PARTS = [gzip_member(THREE[:50]), gzip_member(b""), gzip_member(THREE[50:])]


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(THREE, id="plain"),
        pytest.param(b"\xef\xbb\xbf" + THREE, id="plain with BOM"),
        pytest.param(b"\n \r\n" + THREE, id="plain after blank lines"),
        pytest.param(zstd_frame(THREE), id="zstd"),
        pytest.param(zstd_frame(THREE, checksum=False), id="zstd without checksum"),
        pytest.param(zstd_frame(THREE, sized=False), id="zstd without size"),
        pytest.param(zstd_frame(THREE, level=19), id="zstd level 19"),
        pytest.param(zstd_frame(THREE, window_log=27, sized=False), id="zstd window 2^27"),
        pytest.param(zstd_frame(THREE, window_log=31, sized=False), id="zstd window 2^31"),
        pytest.param(b"".join(zstd_frame(line + b"\n") for line in LINES), id="zstd frame per line"),
        pytest.param(b"".join(zstd_frame(bytes([c])) for c in THREE), id="zstd frame per byte"),
        pytest.param(EMPTY + EMPTY + zstd_frame(THREE) + EMPTY, id="empty zstd frames"),
        pytest.param(skippable(b"x" * 3_000_000) + zstd_frame(THREE), id="long skippable frame"),
        pytest.param(gzip_member(THREE), id="gzip"),
        pytest.param(b"".join(gzip_member(line + b"\n") for line in LINES), id="gzip member per line"),
        pytest.param(gzip_member(THREE) + bytes(10_000), id="gzip padded with zeros"),
        pytest.param(gzip_member(THREE[:50]) + bytes(7) + gzip_member(THREE[50:]), id="gzip, zeros between"),
    ],
)
@pytest.mark.parametrize("sizes", [(1 << 20,), (1,), (3, 1, 7)])
def test_every_container_gives_the_same_documents(stored, sizes):
    if len(stored) > 1_000_000 and sizes != (1 << 20,):
        sizes = (1000, 1)
    got = read(stored, sizes)
    assert [text.decode() for text in got.texts] == [
        "first document",
        "second\nwith two lines",
        "third: café 日本語 😀",
    ]
    assert got.rejections == []


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (b"", "empty (0 bytes)"),
        (lzma.compress(THREE), "xz"),
        (lzma.compress(THREE, lzma.FORMAT_ALONE), "lzma"),
        (bz2.compress(THREE), "bzip2"),
        (b"\x04\x22\x4d\x18" + THREE, "lz4"),
        (b"\x27\xb5\x2f\xfd" + THREE, "before version 0.8"),
        (b"\x1e\xb5\x2f\xfd" + THREE, "before version 0.8"),
        (THREE.decode().encode("utf-16"), "UTF-16"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\n<?xml version='1.0'?><Error/>", "XML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"PAR1" + THREE, "Parquet"),
        (bytes(5000), "zero bytes"),
        (random.Random(1).randbytes(5000), "binary data"),
        (b"no json here\x00\x01", "binary data"),
        (b"garbage\n" + THREE, "not JSON"),
        (b"this is no input", "not JSON"),
        (b"not JSON\n" + THREE, "not JSON"),
        (b"12 lines follow\n" + THREE, "not JSON"),
        (b"garbage" + zstd_frame(THREE), "binary data"),
        (b"\x28", "first 1 bytes of a compressed file"),
        (b"\x28\xb5\x2f", "first 3 bytes of a compressed file"),
        (b"\x1f", "first 1 bytes of a compressed file"),
    ],
)
def test_what_is_no_input_is_named(stored, named):
    with pytest.raises(InputError) as raised:
        read(stored)
    assert named in str(raised.value)
    assert (raised.value.url, raised.value.offset) == ("memory://input.jsonl.zst", 0)


@pytest.mark.parametrize(
    "first", [b"true", b"null \r", b"-1.5e3", b"NaN", b"9" * 10_000, b"[]", b'"', b"{'a': 1}", b"{\0"]
)
def test_a_plain_input_may_begin_with_any_line_of_json_or_near_it(first):
    got = read(first + b"\n" + THREE)
    assert (got.lines, len(got.rejections)) == ([2, 3, 4], 1)


def test_zip_is_named():
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("a.jsonl", THREE)
    with pytest.raises(InputError, match="a zip file"):
        read(archive.getvalue())


@pytest.mark.parametrize("parts", [ZSTD_PARTS, GZIP_PARTS], ids=["zstd", "gzip"])
@pytest.mark.parametrize("sizes", [(1 << 20,), (5,)])
def test_an_input_cut_anywhere_inside_a_frame_is_an_error(parts, sizes):
    stored, ends = frames_between(parts)
    for cut in range(len(stored)):
        if cut in ends:
            content(stored[:cut], sizes)
            continue
        with pytest.raises(InputError) as raised:
            content(stored[:cut], sizes)
        if cut > 3:
            assert "truncated" in str(raised.value)
            assert raised.value.offset == cut
            assert f"begins at byte {max(end for end in {0, *ends} if end <= cut):,}" in str(raised.value)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.sampled_from(["zstd", "gzip"]), st.data())
def test_any_cut_of_any_frames_is_an_error(pieces, kind, data):
    make = zstd_frame if kind == "zstd" else gzip_member
    stored, ends = frames_between([make(piece) for piece in pieces])
    cut = data.draw(st.integers(0, len(stored) - 1).filter(lambda cut: cut not in ends))
    with pytest.raises(InputError):
        content(stored[:cut])


def test_a_long_input_cut_in_its_middle_is_an_error():
    rng = random.Random(2)
    stored = zstd_frame(b"".join(b'{"text": "%d"}\n' % rng.getrandbits(200) for _ in range(60_000)))
    for cut in (len(stored) // 2, len(stored) - 4, len(stored) - 1):
        with pytest.raises(InputError, match="truncated") as raised:
            content(stored[:cut])
        assert raised.value.offset == cut


@pytest.mark.parametrize("flip", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_a_flipped_byte_of_checksummed_frames_never_gives_other_text(flip):
    stored = zstd_frame(THREE) + EMPTY + zstd_frame(THREE * 30, sized=False) + zstd_frame(bytes(range(256)))
    whole = content(stored)
    found = 0
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= flip
        try:
            assert content(bytes(damaged)) == whole
        except InputError:
            found += 1
    assert found > 0.9 * len(stored)


@pytest.mark.parametrize("flip", [1, 16, 255])
def test_a_flipped_byte_of_gzip_never_gives_other_text(flip):
    stored = gzip_member(THREE) + gzip_member(THREE)
    whole = content(stored)
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= flip
        with contextlib.suppress(InputError):
            assert content(bytes(damaged)) == whole


def test_damage_deep_in_an_input_is_placed_within_one_piece():
    stored = bytearray(zstd_frame(random.Random(3).randbytes(8_000_000)))
    # Incompressible data is stored in raw blocks of 128 KiB, whose 3-byte headers can be found by counting.
    first = len(stored) - 4 - 8_000_000 - 3 * -(-8_000_000 // (128 << 10))
    at = first + 40 * ((128 << 10) + 3)
    stored[at] |= 0b110  # a reserved type of block
    with pytest.raises(InputError, match="damaged zstd frame") as raised:
        content(bytes(stored))
    assert at - (256 << 10) <= raised.value.offset <= at


def test_a_wrong_checksum_is_an_error():
    stored = bytearray(zstd_frame(THREE))
    stored[-1] ^= 1
    with pytest.raises(InputError, match="checksum"):
        content(bytes(stored))


@pytest.mark.parametrize(
    "tail",
    [b"garbage", b"\n", bytes(4), bytes(3), b"\0", THREE, gzip_member(THREE), b"\x28\xb5\x2f\xfc....", b"PK\x03\x04"],
)
def test_what_follows_the_last_zstd_frame_must_be_a_frame(tail):
    stored = zstd_frame(THREE) + skippable(b"x")
    with pytest.raises(InputError, match="what follows") as raised:
        content(stored + tail)
    assert raised.value.offset == len(stored)


@pytest.mark.parametrize(
    "tail", [b"garbage", b"\n", bytes(5) + b"x", THREE, zstd_frame(THREE), bytes(100_000) + b"\x1e"]
)
def test_what_follows_the_last_gzip_member_must_be_a_member_or_zeros(tail):
    stored = gzip_member(THREE)
    with pytest.raises(InputError, match="what follows") as raised:
        content(stored + tail)
    assert raised.value.offset == len(stored) + len(tail) - len(tail.lstrip(b"\0"))


def test_an_input_of_frames_that_hold_nothing_has_no_lines():
    for stored in (EMPTY, skippable(), skippable(b"abc") + EMPTY, gzip_member(b"")):
        assert lines_of(stored) == []


@given(
    st.binary(max_size=2000),
    st.lists(st.integers(0, 2000), max_size=6),
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.sampled_from(["zstd", "zstd with skippable frames", "gzip"]),
)
def test_any_bytes_cut_into_any_frames_come_back(data, cuts, sizes, kind):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(bounds)]
    if kind == "gzip":
        stored = b"".join(gzip_member(piece) for piece in pieces)
    else:
        fill = skippable(b"between", 5) if "skippable" in kind else b""
        stored = fill + fill.join(zstd_frame(piece) for piece in pieces) + fill
    assert content(stored, sizes) == data


@pytest.mark.parametrize("make", [zstd_frame, gzip_member], ids=["zstd", "gzip"])
def test_a_well_compressed_input_comes_in_small_pieces(make):
    data = bytes(40 << 20)
    pieces = [len(piece) for piece in decompressed(io.BytesIO(make(data)), "bomb")]
    assert sum(pieces) == len(data)
    assert min(pieces) > 0
    assert max(pieces) <= OUT_BYTES


@pytest.mark.parametrize("size", [OUT_BYTES - 1, OUT_BYTES, OUT_BYTES + 1, 2 * OUT_BYTES])
@pytest.mark.parametrize("make", [zstd_frame, gzip_member], ids=["zstd", "gzip"])
def test_output_of_exactly_a_piece_is_whole(make, size):
    data = random.Random(4).randbytes(size)
    assert content(make(data) + make(b"end")) == data + b"end"
    assert content(make(bytes(size)) + make(b"end")) == bytes(size) + b"end"


@pytest.mark.parametrize("make", [zstd_frame, gzip_member], ids=["zstd", "gzip"])
def test_many_small_frames_are_not_copied_over_and_over(make, monkeypatch):
    handed_back = []
    hand_back = StoredBytes.hand_back
    monkeypatch.setattr(StoredBytes, "hand_back", lambda self, size: (handed_back.append(size), hand_back(self, size)))
    frames = 20_000
    stored = make(b'{"text": "a"}\n') * frames
    assert len(content(stored)) == 14 * frames
    assert len(handed_back) == frames
    assert max(handed_back) <= 4 << 10


@pytest.mark.parametrize("stored", [THREE, zstd_frame(THREE) + skippable(b"x" * 99), gzip_member(THREE) + bytes(77)])
def test_all_stored_bytes_are_seen_in_order(stored):
    digest = hashlib.sha256()
    list(line_blocks(ShortReads(stored, (13, 1)), "input", on_bytes=digest.update))
    assert digest.hexdigest() == hashlib.sha256(stored).hexdigest()
