r"""bytes -> frames -> lines -> documents, and an account of every line that became none.

```
stored bytes ----------> decompressed bytes ----> LineBlock ----------> ParsedBlock
zstd | gzip | plain      frames.py                lines.py              documents.py
  (containers.py)                                 cut at \n alone,      texts, sources, line numbers,
      |                                           <= 1024 lines         blank, and for each rejected line
      +-> on_bytes (hash, count)                                        line, offset, reason, detail, excerpt
```

An input may be read in parts, side by side: `parts.py` finds each part's lines and their numbers, and `count.py` counts
frames so that a part can begin in the middle.

Two kinds of faults are kept apart. A fault of the *input* (cut off, damaged, an unknown container, something after
the last frame) raises `InputError` with the input's name and the offset in its stored bytes: what was read so far
must not pass for all of it. A fault of a *line* is a `Rejection`, and reading goes on.

What is not told: a file that ends exactly between two frames or members, and a plain file that ends anywhere, may
have been cut off. Compare the size or hash that `on_bytes` sees with the origin's.

Example:
  >>> import io, pileshard.ingest as ingest
  >>> raw = io.BytesIO(b'{"text": "one", "meta": {"pile_set_name": "ArXiv"}}\n\n{"txt": "two"}\n')
  >>> [block] = ingest.line_blocks(raw, "example.jsonl")
  >>> parsed = ingest.parse_lines(block, ("text",), ("meta", "pile_set_name"))
  >>> parsed.texts, parsed.sources, parsed.lines, parsed.blank
  ([b'one'], ['ArXiv'], [1], 1)
  >>> [(r.line, r.offset, r.reason.value, r.detail) for r in parsed.rejections]
  [(3, 53, 'no_text', "there is no key 'text'")]
"""

from pileshard.ingest.documents import UNKNOWN_SOURCE, ParsedBlock, parse_lines
from pileshard.ingest.frames import decompressed
from pileshard.ingest.lines import LINES_PER_BLOCK, MAX_LINE_BYTES, LineBlock, OversizeLine, line_blocks
from pileshard.ingest.reasons import Reason, Rejection

__all__ = [
    "LINES_PER_BLOCK",
    "MAX_LINE_BYTES",
    "UNKNOWN_SOURCE",
    "LineBlock",
    "OversizeLine",
    "ParsedBlock",
    "Reason",
    "Rejection",
    "decompressed",
    "line_blocks",
    "parse_lines",
]
