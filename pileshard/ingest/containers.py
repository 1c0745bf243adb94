"""Which container an input is in, told by its first bytes and never by its name."""

from __future__ import annotations

import re
from enum import Enum

#: As many bytes as `tell` wants to see; fewer only where the input is shorter.
HEAD_BYTES = 4096

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"

# What people do have in place of an input, so that the error can name it.
_KNOWN = (
    (b"\xfd7zXZ\x00", "an xz file"),
    (b"BZh", "a bzip2 file"),
    (b"PK\x03\x04", "a zip file"),
    (b"PK\x05\x06", "an empty zip file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip file"),
    (b"Rar!\x1a\x07", "a RAR file"),
    (b"\x04\x22\x4d\x18", "an lz4 file"),
    (b"\x02\x21\x4c\x18", "a legacy lz4 file"),
    (b"\xff\x06\x00\x00sNaPpY", "a framed Snappy file"),
    (b"\x89LZO\x00", "an lzop file"),
    (b"LZIP", "an lzip file"),
    (b"\x5d\x00\x00", "an lzma file"),
    (b"\x1f\x9d", "a file of compress (.Z)"),
    (b"\x37\xa4\x30\xec", "a zstd dictionary"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"%PDF", "a PDF"),
    (b"\xff\xfe", "UTF-16 or UTF-32 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"version https://git-lfs", "a Git LFS pointer in place of the file itself"),
    (b"<", "an HTML or XML page (perhaps an error page saved under the input's name)"),
)
_BEFORE_JSON = b" \t\r\n" + BOM
_SCALAR_LINE = re.compile(rb"(?:true|false|null|NaN|-?Infinity|-?[0-9][0-9.eE+-]*)[ \t\r]*(?:\n|\Z)")
_TEXT_CONTROLS = b"\t\n\r\f"


class Container(Enum):
    """The containers that are read."""

    ZSTD = "zstd"
    GZIP = "gzip"
    PLAIN = "plain"


def is_skippable(magic: bytes) -> bool:
    """Whether 4 bytes are the magic number of a skippable zstd frame (RFC 8878, section 3.1.2)."""
    return len(magic) >= 4 and magic[0] & 0xF0 == 0x50 and magic[1:4] == b"\x2a\x4d\x18"


def tell(head: bytes) -> Container | None:
    """Tell the container from an input's first bytes.

    Args:
      head: the first `HEAD_BYTES` bytes of the input; fewer only where it is shorter.

    Returns:
      The container, or None if it is none that is read; `looks_like` then says what it may be.
    """
    if head.startswith(ZSTD_MAGIC) or is_skippable(head):
        return Container.ZSTD
    if head.startswith(GZIP_MAGIC):
        return Container.GZIP
    if any(head.startswith(magic) for magic, _ in _KNOWN):
        return None
    text = head.lstrip(_BEFORE_JSON)
    if not text or text[:1] in b'{["':
        return Container.PLAIN if head else None
    # A number or a word of JSON begins like much else, so it must have its line to itself.
    return Container.PLAIN if _SCALAR_LINE.match(text) else None


def looks_like(head: bytes) -> str:
    """Name what bytes that begin no known container look like, for an error.

    Example:
      >>> looks_like(b"BZh91AY")
      'a bzip2 file'
      >>> looks_like(b"hello")
      "text that is not JSON, b'hello'"
    """
    if not head.strip(b"\0"):
        return "zero bytes (perhaps a copy that was preallocated and not finished)"
    for magic, name in _KNOWN:
        if head.startswith(magic) or head.lstrip(_BEFORE_JSON).startswith(magic):
            return name
    # Versions 0.1 to 0.7 of zstd, before its format was fixed in 2016.
    if (head[1:4] == ZSTD_MAGIC[1:] and 0x22 <= head[0] <= 0x27) or head.startswith(b"\x1e\xb5\x2f\xfd"):
        return "a zstd file of before version 0.8"
    if len(head) < 4 and (ZSTD_MAGIC.startswith(head) or head == GZIP_MAGIC[:1]):
        return f"the first {len(head)} bytes of a compressed file"
    if tell(head) is Container.PLAIN:
        return "JSON lines"
    kind = "text that is not JSON" if _is_text(head) else "binary data"
    return f"{kind}, {head[:16]!r}"


def _is_text(head: bytes) -> bool:
    if any(c < 0x20 and c not in _TEXT_CONTROLS for c in head):
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3 and error.reason == "unexpected end of data"
    return True
