"""Plain tables of a dataset for a terminal."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

from pileshard.format.manifest import Manifest


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns: text to the left, numbers to the right with thousands apart.

    >>> print(table(["source", "tokens"], [["ArXiv", 1234567]]))
    source     tokens
    ArXiv   1,234,567
    """
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    numeric = [bool(rows) and all(isinstance(row[at], int) for row in rows) for at in range(len(head))]
    lines = [list(head), *cells]
    widths = [max(columns(line[at]) for line in lines) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            " " * (width - columns(cell)) + cell if right else cell + " " * (width - columns(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def columns(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters two, combining marks none.

    >>> columns("ab"), columns("日本"), columns("e\\u0301")
    (2, 4, 1)
    """
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def printable(name: str, most: int = 40) -> str:
    """A name fit for a terminal: characters that do not print are escaped, and a long one is cut."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def source_table(manifest: Manifest) -> str:
    """Documents, tokens, text bytes and shards by source and split, with totals."""
    rows: list[list[object]] = [
        [printable(entry.name), entry.split, entry.documents, entry.tokens, entry.text_bytes, entry.shards]
        for entry in manifest.sources
    ]
    rows.append(["all", "", manifest.documents, manifest.tokens, manifest.text_bytes, len(manifest.shards)])
    return table(["source", "split", "documents", "tokens", "text bytes", "shards"], rows)


def account_lines(manifest: Manifest) -> list[str]:
    """The account of all inputs in sentences: lines in, and what became of them."""
    rejected: Counter[str] = Counter()
    for entry in manifest.inputs:
        rejected.update(entry.rejected)
    lines = sum(entry.lines for entry in manifest.inputs)
    accepted = sum(entry.accepted for entry in manifest.inputs)
    blank = sum(entry.blank for entry in manifest.inputs)
    duplicates = sum(entry.duplicates for entry in manifest.inputs)
    out = [
        f"{lines:,} lines of {len(manifest.inputs):,} inputs = {accepted:,} accepted + {rejected.total():,} rejected "
        f"+ {blank:,} blank"
    ]
    if rejected:
        out.append("rejected: " + ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items())))
    if duplicates:
        out.append(f"duplicates dropped: {duplicates:,}; {accepted - duplicates:,} documents are in the shards")
    out += [f"left out: {entry.skipped}" for entry in manifest.inputs if entry.skipped]
    return out
