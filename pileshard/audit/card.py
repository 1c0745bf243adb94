"""A dataset's card: a README.md in the form of the Hugging Face Hub, from the manifest and what was counted."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from importlib.resources import files

from pileshard.audit.amounts import large, percent, size
from pileshard.audit.figures import by_source, last_of, shown
from pileshard.audit.redact import public_text, public_url
from pileshard.audit.statistics_report import Statistics
from pileshard.format.manifest import Manifest

#: Rows of a table; what is beyond stands in the manifest.
MOST_ROWS = 500

#: The Hub's classes of sizes: the documents below which each holds.
_SIZES = (
    *((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M")),
    *((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B")),
    (10**12, "100B<n<1T"),
)
_ESCAPED = set(string.punctuation) - set("-.,/ ()'%")


def markdown(text: str) -> str:
    """A text of foreign origin as plain text of a table's cell or a heading, whatever it holds.

    >>> markdown("<b>*x*|y")
    '\\\\<b\\\\>\\\\*x\\\\*\\\\|y'
    """
    escaped = "".join(f"\\{c}" if c in _ESCAPED else c for c in shown(text))
    return escaped.replace("www.", "www\\.")


def _yaml(text: str) -> str:
    """A text as a scalar of YAML in double quotes."""
    return json.dumps(shown(text), ensure_ascii=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers_from: int) -> list[str]:
    """A table of cells that are Markdown already, numbers to the right."""
    rule = [":--" if at < numbers_from else "--:" for at in range(len(columns))]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows[:MOST_ROWS])]
    if len(rows) > MOST_ROWS:
        lines += ["", f"{len(rows) - MOST_ROWS:,} more are in `manifest.json`."]
    return [*lines, ""]


def card(manifest: Manifest, statistics: Statistics) -> str:
    """The card. What only the owner can say is marked with FILL IN.

    URLs of inputs are written without user, password and query. The same dataset gives the same card.
    """
    name = last_of(statistics.url)
    template = files("pileshard.audit").joinpath("card.md").read_text(encoding="utf-8")
    counted = statistics.counted
    lengths = counted.lengths
    spread = (
        f"{lengths.mean:,.0f} tokens on average, {lengths.p50:,.0f} in the middle, {lengths.p95:,.0f} for the longest "
        f"twentieth, {lengths.max:,.0f} at most"
        if lengths
        else "none"
    )
    values = {
        "yaml_name": _yaml(name),
        "size_category": next((label for below, label in _SIZES if counted.documents < below), "n>1T"),
        "name": markdown(name),
        "documents": f"{counted.documents:,}",
        "tokens": f"{counted.tokens:,}",
        "tokens_short": large(counted.tokens),
        "text": size(counted.text_bytes),
        "source_count": f"{len({entry.name for entry in statistics.sources}):,}",
        "splits": _splits(statistics),
        "bytes_per_token": f"{counted.bytes_per_token:.3f}" if counted.bytes_per_token else "-",
        "lengths": spread,
        "sources": "\n".join(_sources(statistics)),
        "vocab_size": f"{manifest.vocab_size:,}",
        "dtype": manifest.dtype,
        "tf_dtype": "uint16" if manifest.dtype == "uint16" else "int32",  # decode_raw knows no uint32
        "width": str(manifest.token_dtype.itemsize),
        "eod": markdown(manifest.eod_token),
        "eod_id": str(manifest.eod_id),
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "special_tokens": manifest.options.special_tokens,
        "shards": f"{len(manifest.shards):,}",
        "shard_bytes": size(statistics.shards.bytes),
        "format_version": str(manifest.format_version),
        "dataset_id": manifest.dataset_id,
        "writer": markdown(manifest.writer),
        "seed": str(manifest.options.seed),
        "account": "\n".join(_account(manifest, statistics)),
        "inputs": "\n".join(_inputs(manifest)),
    }
    return string.Template(template).substitute(values)


def _splits(statistics: Statistics) -> str:
    parts = [f"{counted.documents:,} documents in `{name}`" for name, counted in sorted(statistics.splits.items())]
    return " and ".join(parts) or "no documents"


def _sources(statistics: Statistics) -> list[str]:
    rows = []
    for parts in by_source(statistics):
        for part in parts:
            counted = part.counted
            density = "-" if counted.bytes_per_token is None else f"{counted.bytes_per_token:.2f}"
            median = "-" if counted.lengths is None else f"{counted.lengths.p50:,.0f}"
            numbers = [f"{counted.documents:,}", f"{counted.tokens:,}", percent(part.token_share)]
            rows.append([markdown(part.name), part.split, *numbers, f"{counted.text_bytes:,}", density, median])
    columns = ["source", "split", "documents", "tokens", "share", "bytes of text", "bytes a token", "median length"]
    return _table(columns, rows, 2) if rows else ["The dataset holds no document.", ""]


def _account(manifest: Manifest, statistics: Statistics) -> list[str]:
    account = statistics.account
    rejected = sum(account.rejected.values())
    out = [
        f"{account.lines:,} lines of {len(manifest.inputs):,} inputs = {account.accepted:,} accepted + {rejected:,} "
        f"rejected ({percent(account.rejected_share)}) + {account.blank:,} blank.",
        "",
    ]
    if rejected:
        rows = [
            [markdown(reason), f"{count:,}", percent(count / rejected)]
            for reason, count in sorted(account.rejected.items(), key=lambda item: -item[1])
        ]
        out += _table(["reason", "lines", "share"], rows, 1)
        out += ["`rejected/` lists each of these lines with its input, line, byte offset, reason and an excerpt.", ""]
    if account.duplicates is None:
        out.append("Duplicates were not looked for.")
    else:
        out.append(
            f"Exact deduplication dropped {account.duplicates:,} of the accepted documents "
            f"({account.duplicate_tokens or 0:,} tokens): of equal texts the first one stays."
        )
    if account.unknown_documents:
        out.append(
            f"{account.unknown_documents:,} documents ({percent(account.unknown_share)}) name no source and are listed "
            "as `unknown`."
        )
    return out


def _inputs(manifest: Manifest) -> list[str]:
    rows = []
    for number, entry in enumerate(manifest.inputs):
        digest = f"`{entry.sha256}`" if entry.sha256 else f"left out: {markdown(public_text(entry.skipped or ''))}"
        rows.append([str(number), markdown(public_url(entry.url)), f"{entry.size:,}", f"{entry.lines:,}", digest])
    return _table(["number", "input", "bytes", "lines", "sha256"], rows, 2) if rows else ["There were none.", ""]
