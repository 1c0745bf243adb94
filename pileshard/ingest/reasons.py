"""Why a line did not become a document, and the record that is kept of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

EXCERPT_CHARS = 200


class Reason(str, Enum):
    """Why a line is rejected; the values are what `rejected/` and the manifest hold.

    Where several hold, the first in this order is given: `line_too_long`, `invalid_utf8`, `invalid_json`,
    `not_object`, `no_text`, `text_not_string`, `empty_text`, `lone_surrogate`, `special_token`.
    """

    INVALID_JSON = "invalid_json"
    INVALID_UTF8 = "invalid_utf8"
    LONE_SURROGATE = "lone_surrogate"
    NO_TEXT = "no_text"
    TEXT_NOT_STRING = "text_not_string"
    EMPTY_TEXT = "empty_text"
    NOT_OBJECT = "not_object"
    LINE_TOO_LONG = "line_too_long"
    SPECIAL_TOKEN = "special_token"


@dataclass(frozen=True)
class Rejection:
    """One rejected line.

    Attributes:
      line: 1-based number of the line in its input.
      offset: byte offset of the line's first byte in the decompressed input.
      reason: why it was rejected.
      detail: one phrase for a person, with the place in the line where there is one.
      excerpt: how the line begins: at most 200 printable characters.
    """

    line: int
    offset: int
    reason: Reason
    detail: str
    excerpt: str


def excerpt(line: bytes) -> str:
    r"""Show how a line begins, in at most 200 printable characters.

    Example:
      >>> excerpt(b"\xff caf\xc3\xa9\x00")
      '� café\\x00'
    """
    # A character takes at most 4 bytes, so one cut in two at the end of the slice is never among the first 200.
    head = line[: 4 * EXCERPT_CHARS].decode("utf-8", "replace")[:EXCERPT_CHARS]
    if not head.isprintable():
        head = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in head)
    return head[:EXCERPT_CHARS]
