"""Records: one serialization, the same for TensorFlow and for a reader written from the page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.format.record import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORD_TOKENS,
    example_head,
    frame,
    masked_crc,
    parse_example,
    varint,
)
from tests.format import mini_reader

needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")

numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**24 - 1), st.integers(0, 2**63 - 1))


@st.composite
def records(draw: st.DrawFn) -> tuple[int, int, int, bytes]:
    # Lengths at which a varint somewhere in the head takes one byte more.
    size = draw(st.one_of(st.integers(0, 200), st.integers(8100, 8300), st.sampled_from([2 * RECORD_TOKENS])))
    seed = draw(st.integers(0, 255))
    return draw(numbers), draw(numbers), draw(numbers), bytes([seed]) * (2 * size)


def test_crc_is_the_page_s() -> None:
    assert masked_crc(b"123456789") == 0xC78AB0E5
    assert mini_reader.crc32c(b"123456789") == 0xE3069283


def test_worked_example_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "schemas/FORMAT.md").read_text()
    block = next(part for part in page.split("```") if "length 71" in part)
    hexes = [word for line in block.strip().splitlines() for word in line[:48].split()]
    assert bytes.fromhex("".join(hexes)) == frame(1, 300, 0, np.array([17, 300, 0], "<u2").tobytes())


@given(records())
def test_frame_is_the_serialization_of_the_page(entry: tuple[int, int, int, bytes]) -> None:
    if len(entry[3]) < 1000:  # its CRC is in plain Python
        assert frame(*entry) == mini_reader.record(*entry)
    else:
        assert frame(*entry)[HEADER_BYTES:-FOOTER_BYTES] == mini_reader.example(*entry)


@given(records())
def test_parse_gives_back_what_was_framed(entry: tuple[int, int, int, bytes]) -> None:
    data = frame(*entry)[HEADER_BYTES:-FOOTER_BYTES]
    parsed = parse_example(data)
    assert parsed[:3] == entry[:3]
    assert data[parsed.tokens_at :] == entry[3]
    assert data[: parsed.tokens_at] == example_head(*entry[:3], len(entry[3]))


@given(records(), st.data())
def test_parse_takes_nothing_but_the_one_form(entry: tuple[int, int, int, bytes], data: st.DataObject) -> None:
    raw = bytearray(frame(*entry)[HEADER_BYTES:-FOOTER_BYTES])
    change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    head = len(raw) - len(entry[3])
    at = data.draw(st.integers(0, head - 1))
    if change == "flip":
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "cut":
        del raw[at]
    else:
        raw.insert(at, data.draw(st.integers(0, 255)))
    try:
        parsed = parse_example(bytes(raw))
    except ValueError:
        return
    assert bytes(raw) == frame(*parsed[:3], bytes(raw[parsed.tokens_at :]))[HEADER_BYTES:-FOOTER_BYTES]


@given(st.binary(max_size=120))
def test_parse_of_any_bytes_is_an_example_or_a_value_error(raw: bytes) -> None:
    try:
        parsed = parse_example(raw)
    except ValueError:
        return
    assert example_head(*parsed[:3], len(raw) - parsed.tokens_at) == raw[: parsed.tokens_at]


def test_varint_is_the_shortest() -> None:
    for value in (0, 1, 127, 128, 300, 16383, 16384, 2**32, 2**63 - 1):
        assert varint(value) == mini_reader.varint(value)


@needs_tensorflow
def test_tensorflow_reads_what_was_framed(tmp_path: Path) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(1)
    wanted: list[tuple[int, int, int, bytes]] = []
    for size in [1, 2, 15, 16, 17, 63, 64, 100, 8150, 8191, 8192, RECORD_TOKENS]:
        tokens = rng.integers(0, 65536, size).astype("<u2").tobytes()
        wanted.append((int(rng.integers(0, 2**24)), int(rng.integers(1, 2**40)), int(rng.integers(0, 300)), tokens))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(frame(*entry) for entry in wanted))
    spec: dict[str, Any] = {name: tf.io.FixedLenFeature([], tf.int64) for name in ("input", "line", "part")}
    spec["tokens"] = tf.io.FixedLenFeature([], tf.string)
    found = []
    for raw in tf.data.TFRecordDataset(str(path)):
        got = tf.io.parse_single_example(raw, spec)
        found.append((*(int(got[name]) for name in ("input", "line", "part")), got["tokens"].numpy()))
    assert found == wanted


@needs_tensorflow
def test_tensorflow_writes_records_that_parse(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for line in (1, 127, 128, 70000):
            writer.write(frame(3, line, 0, b"\x01\x00" * line)[HEADER_BYTES:-FOOTER_BYTES])
    assert path.read_bytes() == b"".join(frame(3, line, 0, b"\x01\x00" * line) for line in (1, 127, 128, 70000))
    example = tf.train.Example.FromString(frame(3, 128, 2, b"ab")[HEADER_BYTES:-FOOTER_BYTES])
    assert set(example.features.feature) == {"input", "line", "part", "tokens"}
    assert list(example.features.feature["line"].int64_list.value) == [128]
