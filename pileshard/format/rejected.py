"""A rejected line, as `rejected/<input>.jsonl` lists it: one JSON object a line, in the order of the input."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pileshard.format.manifest import Count


class RejectedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line of an input that became no document.

    Attributes:
      input: URL of the input.
      line: number of the line, from 1.
      reason: why, in a word that the manifest counts by.
      offset: of the line's first byte in the decompressed input.
      detail: why, in words.
      excerpt: the line's beginning, at most 200 characters, whatever is no printable UTF-8 replaced.
    """

    input: str
    line: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    reason: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
    offset: Count
    detail: str
    excerpt: Annotated[str, msgspec.Meta(max_length=200)]
