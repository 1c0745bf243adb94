"""One self-contained page of a dataset's statistics: tables and plots, no script, nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

from pileshard.audit import figures
from pileshard.audit.amounts import large, percent, several, size
from pileshard.audit.figures import Figure, by_source, shown
from pileshard.audit.statistics_report import Counted, InputStatistics, Spread, Statistics, Vocabulary

#: Rows of a table; what is beyond stands in the JSON.
MOST_TABLE_ROWS = 1000
MOST_INPUT_ROWS = 300
_TALL_ROWS = 16
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Column(NamedTuple):
    """A column of a table: its title, and whether it holds numbers, names or plain words."""

    title: str
    kind: str = "number"

    @property
    def mark(self) -> str:
        """The attribute of its cells; numbers are what has none."""
        return "" if self.kind == "number" else f' class="{self.kind}"'


def page(statistics: Statistics) -> str:
    """The page as HTML. The same statistics give the same page.

    Raises:
      MissingExtraError: the package that draws the plots is not installed.
    """
    name = figures.last_of(statistics.url)
    parts = [_head(statistics, name), *_sources(statistics), *_lengths(statistics), *_shards(statistics)]
    parts += _account(statistics)
    if statistics.vocabulary is not None:
        parts += _vocabulary(statistics.vocabulary, statistics)
    style = files("pileshard.audit").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{escape(name)} – dataset statistics</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
<footer>Dataset <code>{escape(statistics.dataset_id)}</code>, format {statistics.format_version}, built by
{_text(statistics.writer)}. Made by <code>pileshard stats</code>;
<code>pileshard verify</code> proves the files.</footer>
</main>
</body>
</html>
"""


def _text(text: str) -> str:
    """A text of foreign origin, whatever it holds."""
    return f"<bdi>{escape(shown(text))}</bdi>"


def _head(statistics: Statistics, name: str) -> str:
    counted = statistics.counted
    names = {entry.name for entry in statistics.sources}
    per_token = "-" if counted.bytes_per_token is None else f"{counted.bytes_per_token:.2f}"
    mean = f"{counted.lengths.mean:,.0f} tokens on average" if counted.lengths else ""
    facts = [
        ("Documents", large(counted.documents), f"{counted.documents:,}"),
        ("Tokens", large(counted.tokens), f"{counted.tokens:,}"),
        ("Text", size(counted.text_bytes), f"{counted.text_bytes:,} bytes of UTF-8"),
        ("Bytes a token", per_token, mean),
        ("Sources", f"{len(names):,}", " and ".join(sorted(statistics.splits))),
        ("Shards", f"{statistics.shards.count:,}", f"{size(statistics.shards.bytes)}, {statistics.dtype}"),
    ]
    tiles = "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for title, value, note in facts
    )
    return f"""<h1>{_text(name)}</h1>
<p class="sub"><code>{_text(statistics.url)}</code> · tokenizer <code>{statistics.tokenizer_sha256[:16]}</code> of
{statistics.vocab_size:,} ids, documents end with <code>{_text(statistics.eod_token)}</code> ({statistics.eod_id:,})</p>
<dl class="facts">{tiles}</dl>"""


def _plots(chosen: Iterable[Figure | None]) -> list[str]:
    drawn = [
        f"<figure><h3>{escape(figure.title)}</h3><figcaption>{escape(figure.caption)}</figcaption>{figure.svg}</figure>"
        for figure in chosen
        if figure is not None
    ]
    return [f'<div class="plots">{"".join(drawn)}</div>'] if drawn else []


def _table(
    label: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], foot: Sequence[str] | None = None
) -> list[str]:
    """A table in a box of its own; cells are HTML, the first of a row is its head."""

    def cells(row: Sequence[str], first: str) -> str:
        out = []
        for at, (cell, column) in enumerate(zip(row, columns, strict=True)):
            tag = first if at == 0 else "td"
            scope = ' scope="row"' if tag == "th" else ""
            out.append(f"<{tag}{scope}{column.mark}>{cell}</{tag}>")
        return f"<tr>{''.join(out)}</tr>"

    head = "".join(f'<th scope="col"{column.mark}>{escape(column.title)}</th>' for column in columns)
    body = "\n".join(cells(row, "th") for row in rows[:MOST_TABLE_ROWS])
    tail = f"<tfoot>{cells(foot, 'th')}</tfoot>" if foot else ""
    tall = " tall" if len(rows) > _TALL_ROWS else ""
    out = [
        f'<div class="scroll{tall}" role="region" tabindex="0" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{tail}</table></div>"
    ]
    return out + _more(len(rows) - MOST_TABLE_ROWS)


def _more(rows: int) -> list[str]:
    if rows <= 0:
        return []
    told = several(rows, "row")
    return [f'<p class="note">{told} more: <code>pileshard stats --json</code> writes all.</p>']


def _sources(statistics: Statistics) -> list[str]:
    columns = [Column("source", "name"), Column("split", "word")]
    columns += [Column(title) for title in ("documents", "tokens", "share", "text bytes", "bytes a token", "shards")]

    def row(name: str, split: str, counted: Counted, share: float | None, shards: int) -> list[str]:
        density = "-" if counted.bytes_per_token is None else f"{counted.bytes_per_token:.3f}"
        numbers = [f"{counted.documents:,}", f"{counted.tokens:,}", percent(share), f"{counted.text_bytes:,}", density]
        return [name, split, *numbers, f"{shards:,}"]

    rows = [
        row(_text(part.name), part.split, part.counted, part.token_share, part.shards.count)
        for parts in by_source(statistics)
        for part in parts
    ]
    share = 1.0 if statistics.counted.tokens else None
    foot = row("all", "", statistics.counted, share, statistics.shards.count)
    out = ["<h2>Sources</h2>"]
    if not rows:
        return [*out, "<p>The dataset holds no document.</p>"]
    account = statistics.account
    out += _plots([figures.tokens_by_source(statistics), figures.density(statistics)])
    out += _table("Sources", columns, rows, foot)
    if account.unknown_documents:
        out.append(
            f'<p class="note">{account.unknown_documents:,} documents ({percent(account.unknown_share)}) name no '
            "source: they are <code>unknown</code>.</p>"
        )
    return out


def _lengths(statistics: Statistics) -> list[str]:
    if statistics.counted.lengths is None:
        return []
    columns = [Column("source", "name"), Column("split", "word")]
    columns += [Column(title) for title in ("mean", "min", "5%", "25%", "median", "75%", "95%", "99%", "max")]

    def row(name: str, split: str, spread: Spread | None) -> list[str]:
        if spread is None:
            return [name, split, *["-"] * 9]
        values = (spread.min, spread.p05, spread.p25, spread.p50, spread.p75, spread.p95, spread.p99, spread.max)
        return [name, split, f"{spread.mean:,.1f}", *(f"{value:,.0f}" for value in values)]

    rows = [
        row(_text(part.name), part.split, part.counted.lengths) for parts in by_source(statistics) for part in parts
    ]
    return [
        "<h2>Documents</h2>",
        *_plots([figures.lengths(statistics), figures.lengths_by_source(statistics)]),
        *_table("Document lengths", columns, rows, row("all", "", statistics.counted.lengths)),
        '<p class="note">Tokens of a document, its end-of-document id counted. Quantiles are exact below 16,384 '
        "tokens, and within 0.05% above.</p>",
    ]


def _shards(statistics: Statistics) -> list[str]:
    if not statistics.shards.count:
        return []
    columns = [Column("source", "name"), Column("split", "word")]
    columns += [Column(title) for title in ("shards", "bytes", "smallest", "median", "largest", "indexes")]
    rows = [
        [
            *(_text(part.name), part.split, f"{part.shards.count:,}", size(part.shards.bytes)),
            *(size(part.shards.min or 0), size(part.shards.median or 0), size(part.shards.max or 0)),
            size(part.shards.index_bytes),
        ]
        for parts in by_source(statistics)
        for part in parts
    ]
    drawn = _plots([figures.shard_sizes(statistics)])
    return ["<h2>Shards</h2>", *drawn, *_table("Shards", columns, rows)]


def _account(statistics: Statistics) -> list[str]:
    account = statistics.account
    rejected = sum(account.rejected.values())
    sentences = [
        f"{several(account.lines, 'line')} of {several(len(statistics.inputs), 'input')}: {account.accepted:,} "
        f"accepted, {rejected:,} rejected ({percent(account.rejected_share)}), {account.blank:,} blank."
    ]
    if account.duplicates is None:
        sentences.append("Duplicates were not looked for.")
    else:
        sentences.append(
            f"Of the accepted ones {account.duplicates:,} repeated a text and were dropped, with "
            f"{account.duplicate_tokens or 0:,} tokens."
        )
    if account.skipped_inputs:
        sentences.append(f"Left out whole: {several(account.skipped_inputs, 'input')}.")
    if not rejected:
        sentences.append("No line was rejected.")
    columns = [Column("input", "name"), *(Column(title) for title in ("stored", "lines", "accepted", "rejected"))]
    columns += [Column("share"), Column("blank"), Column("duplicates"), Column("tokens"), Column("reasons", "name")]
    inputs = sorted(statistics.inputs, key=lambda entry: -sum(entry.rejected.values()))
    rows = [_input_row(entry) for entry in inputs[:MOST_INPUT_ROWS]]
    return [
        "<h2>Lines of the inputs</h2>",
        f"<p>{escape(' '.join(sentences))}</p>",
        *_plots([figures.rejects_by_reason(statistics), figures.rejects_by_input(statistics)]),
        *(_table("Inputs", columns, rows) if rows else []),
        *_more(len(inputs) - MOST_INPUT_ROWS),
    ]


def _input_row(entry: InputStatistics) -> list[str]:
    reasons = ", ".join(f"{escape(reason)} {count:,}" for reason, count in sorted(entry.rejected.items()))
    if entry.skipped is not None:
        reasons = f"left out: {_text(entry.skipped)}"
    duplicates = "-" if entry.duplicates is None else f"{entry.duplicates:,}"
    return [
        *(_text(entry.url), size(entry.size), f"{entry.lines:,}", f"{entry.accepted:,}"),
        *(f"{sum(entry.rejected.values()):,}", percent(entry.rejected_share), f"{entry.blank:,}", duplicates),
        *(f"{entry.tokens:,}", reasons),
    ]


def _vocabulary(found: Vocabulary, statistics: Statistics) -> list[str]:
    sentences = [f"{found.used:,} of the tokenizer's {found.ids:,} ids occur ({percent(found.used_share)})."]
    sentences += [f"{share:.0%} of the tokens are of {count:,} ids." for share, count in found.coverage[:3]]
    if found.unknown_id is None:
        sentences.append("The tokenizer has no id for the unknown.")
    else:
        sentences.append(
            f"The id for the unknown ({found.unknown_id:,}) occurs {found.unknown_tokens or 0:,} times "
            f"({percent(found.unknown_token_share)})."
        )
    if found.used_holes:
        sentences.append(f"{found.used_holes:,} tokens have an id that the tokenizer does not know.")
    if found.above:
        sentences.append(f"{found.above:,} tokens have an id above the vocabulary: run pileshard verify.")
    total = max(1, statistics.counted.tokens)
    columns = [Column("id"), Column("token", "word"), Column("text", "word"), Column("occurrences"), Column("share")]
    rows = [
        [
            *(f"{entry.id:,}", f"<code>{_text(entry.token or '-')}</code>", f"<code>{_text(repr(entry.text))}</code>"),
            *(f"{entry.count:,}", percent(entry.count / total)),
        ]
        for entry in found.top
    ]
    unused = ", ".join(f"{first:,}" if first == last else f"{first:,}–{last:,}" for first, last in found.unused[:100])
    more = len(found.unused) - 100
    tail = f" and {more:,} more ranges" if more > 0 else ""
    never = f'<p class="note">Never used: {unused}{tail}.</p>' if unused else ""
    return [
        "<h2>Vocabulary</h2>",
        f"<p>{escape(' '.join(sentences))}</p>",
        *_plots(figures.vocabulary(found)),
        *_table("Most frequent ids", columns, rows),
        never,
    ]
