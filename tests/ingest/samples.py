"""Makes stored inputs of every kind, and reads them through the whole of ingest."""

from __future__ import annotations

import gzip
import io
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pileshard.ingest import LineBlock, ParsedBlock, Rejection, line_blocks, parse_lines

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = ("text",)
SOURCE = ("meta", "pile_set_name")
THREE = b"".join(
    b'{"text": "%s", "meta": {"pile_set_name": "Pile-CC"}}\n' % text
    for text in (b"first document", b"second\\nwith two lines", "third: café 日本語 😀".encode())
)


def zstd_frame(data: bytes, *, checksum: bool = True, sized: bool = True, level: int = 3, window_log: int = 0) -> bytes:
    options = {
        zstd.CompressionParameter.checksum_flag: checksum,
        zstd.CompressionParameter.compression_level: level,
        zstd.CompressionParameter.content_size_flag: sized,
    }
    if window_log:
        options[zstd.CompressionParameter.enable_long_distance_matching] = 1
        options[zstd.CompressionParameter.window_log] = window_log
    compressor = zstd.ZstdCompressor(options=options)
    # Two calls leave the size out of the frame, as a compressor at the end of a pipe does.
    return compressor.compress(data) + compressor.flush()


def skippable(payload: bytes = b"", variant: int = 0) -> bytes:
    return bytes([0x50 + variant]) + b"\x2a\x4d\x18" + len(payload).to_bytes(4, "little") + payload


def gzip_member(data: bytes, level: int = 6) -> bytes:
    return gzip.compress(data, level, mtime=0)


class ShortReads(io.RawIOBase):
    """A file whose reads return as many bytes as the given sizes say, in turn, whatever is asked for."""

    def __init__(self, data: bytes, sizes: Iterable[int]) -> None:
        self._data = data
        self._sizes = list(sizes) or [1 << 20]
        self._reads = 0
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        want = self._sizes[self._reads % len(self._sizes)]
        self._reads += 1
        if size >= 0:
            want = min(want, size)
        data = self._data[self._at : self._at + want]
        self._at += len(data)
        return data


@dataclass
class Account:
    """All that came out of an input."""

    texts: list[bytes]
    sources: list[str]
    lines: list[int]
    rejections: list[Rejection]
    blank: int
    total: int

    @property
    def reasons(self) -> dict[str, int]:
        return dict(Counter(r.reason.value for r in self.rejections))


def blocks_of(stored: bytes, sizes: Iterable[int] = (), **options: int) -> list[LineBlock]:
    return list(line_blocks(ShortReads(stored, sizes), "memory://input.jsonl.zst", **options))  # type: ignore[arg-type]


def lines_of(stored: bytes, sizes: Iterable[int] = ()) -> list[bytes]:
    return [line for block in blocks_of(stored, sizes) for line in block.lines]


def parse(block: LineBlock) -> ParsedBlock:
    parsed = parse_lines(block, TEXT, SOURCE)
    assert parsed.total == len(block.lines) == len(parsed.texts) + len(parsed.rejections) + parsed.blank
    assert len(parsed.texts) == len(parsed.sources) == len(parsed.lines)
    return parsed


def account_of(blocks: Iterable[LineBlock]) -> Account:
    account = Account([], [], [], [], 0, 0)
    for block in blocks:
        parsed = parse(block)
        account.texts += parsed.texts
        account.sources += parsed.sources
        account.lines += parsed.lines
        account.rejections += parsed.rejections
        account.blank += parsed.blank
        account.total += parsed.total
    return account


def read(stored: bytes, sizes: Iterable[int] = ()) -> Account:
    return account_of(blocks_of(stored, sizes))


def parse_line(line: bytes) -> Account:
    return account_of([LineBlock(1, 0, [line])])
