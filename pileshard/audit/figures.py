"""The plots of a page of statistics, each from the numbers it shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pileshard.audit import plots
from pileshard.audit.amounts import large, percent, size
from pileshard.audit.plots import FIRST, MOST_ROWS, SECOND, Row, Spec, Variant
from pileshard.audit.statistics_report import SourceStatistics, Spread, Statistics, Vocabulary
from pileshard.audit.tables import printable

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Figure:
    """A plot on the page.

    Attributes:
      title: above it.
      caption: what it shows.
      svg: the drawings.
    """

    title: str
    caption: str
    svg: str


def _figure(title: str, caption: str, make: Callable[[Variant], Spec]) -> Figure:
    return Figure(title, caption, plots.draw(title, make))


def shown(name: str) -> str:
    """A name of foreign origin as it is shown: what does not print is escaped, and a very long one is cut."""
    if not name.strip():
        return "(blank)" if name else "(no name)"
    return printable(name, _LONGEST_NAME)


def last_of(url: str) -> str:
    """The last component of a URL, as it is shown."""
    return shown(url.rstrip("/").rsplit("/", 1)[-1])


def by_source(statistics: Statistics) -> list[list[SourceStatistics]]:
    """The parts (splits) of each source, sources with most tokens first."""
    groups: dict[str, list[SourceStatistics]] = {}
    for entry in statistics.sources:
        groups.setdefault(entry.name, []).append(entry)
    return sorted(groups.values(), key=lambda parts: (-sum(part.counted.tokens for part in parts), parts[0].name))


def _beyond(count: int, what: str) -> str:
    return f" The {MOST_ROWS} largest of {count:,} {what}; the table has all." if count > MOST_ROWS else ""


def tokens_by_source(statistics: Statistics) -> Figure | None:
    """Bars of tokens, stacked by split."""
    total = statistics.counted.tokens
    if not total:
        return None
    splits = sorted(statistics.splits)
    groups = by_source(statistics)
    rows = [Row(shown(parts[0].name), {part.split: part.counted.tokens for part in parts}) for parts in groups]
    if rest := rows[MOST_ROWS:]:
        sums = {split: sum(row.values.get(split, 0) for row in rest) for split in splits}
        rows = [*rows[:MOST_ROWS], Row(f"{len(rest):,} others", sums)]

    def make(variant: Variant) -> Spec:
        data = []
        for entry in plots.names(rows, variant):
            present = [split for split in splits if split in entry]
            whole = sum(entry[split] for split in present)
            for at, split in enumerate(present):
                value = {"value": entry[split], "series": split, "order": at, "end": whole}
                told = f"{entry['name']}, {split}: {entry[split]:,} tokens"
                label = f"{large(whole)} · {percent(whole / total)}" if at == 0 else None
                data.append({"row": entry["row"], "told": told, "label": label, **value})
        return plots.bars(data, "tokens", variant, dict(zip(splits, (FIRST, SECOND), strict=False)))

    return _figure("Tokens by source", "With end-of-document ids, and the share of all tokens.", make)


def lengths(statistics: Statistics) -> Figure | None:
    """Documents and their tokens by length."""
    counted = statistics.counted
    if counted.lengths is None:
        return None
    data = [
        {
            **{"first": bin.first, "end": bin.end},
            **{"value": bin.documents / counted.documents, "other": bin.tokens / counted.tokens},
            "told": f"{bin.first:,} to {bin.end - 1:,} tokens: {bin.documents:,} documents with {bin.tokens:,} tokens",
        }
        for bin in counted.histogram
    ]
    median = counted.lengths.p50
    rule = {"at": median, "told": f"half of the documents have at most {median:,.0f} tokens"}
    caption = (
        "Bars: share of the documents of a length. Line: share of all tokens that they hold. Dashed: the median, "
        f"{median:,.0f} tokens."
    )
    return _figure(
        "Document lengths", caption, lambda _: plots.bins(data, "tokens of a document", "share", log=True, rules=[rule])
    )


def _spans(
    statistics: Statistics,
    spread: Callable[[SourceStatistics], Spread | None],
    middle: Callable[[Any], float],
    unit: str,
) -> list[Row]:
    """A row for each source, of the split that has most of its tokens."""
    rows = []
    for parts in by_source(statistics)[:MOST_ROWS]:
        part = max(parts, key=lambda part: part.counted.tokens)
        if (found := spread(part)) is None:
            continue
        digits = 0 if unit == "tokens" else 2
        told = (
            f"{shown(part.name)} ({part.split}), {unit}: {middle(part):,.{digits}f}; 5% below {found.p05:,.{digits}f}, "
            f"a quarter below {found.p25:,.{digits}f}, a quarter above {found.p75:,.{digits}f}, "
            f"5% above {found.p95:,.{digits}f}"
        )
        ends = {"p05": found.p05, "p25": found.p25, "p75": found.p75, "p95": found.p95}
        rows.append(Row(shown(part.name), {**ends, "middle": middle(part), "told": told}))
    return rows


def lengths_by_source(statistics: Statistics) -> Figure | None:
    """Quantiles of the lengths of each source."""

    def median(part: SourceStatistics) -> float:
        return part.counted.lengths.p50 if part.counted.lengths else 0

    rows = _spans(statistics, lambda part: part.counted.lengths, median, "tokens")
    caption = "Dot: the median. Thick line: the middle half of the documents. Thin line: 5% to 95%."
    caption += _beyond(len(by_source(statistics)), "sources")
    return _spans_figure("Document lengths by source", caption, rows, "tokens of a document", log=True)


def density(statistics: Statistics) -> Figure | None:
    """Text bytes a token of each source."""
    rows = _spans(
        statistics, lambda part: part.counted.density, lambda part: part.counted.bytes_per_token or 0, "bytes a token"
    )
    caption = (
        "Bytes of text (UTF-8) that one token stands for. Dot: the whole source. Lines: its documents, as for lengths."
    )
    return _spans_figure("Tokenization density", caption, rows, "bytes a token", log=False)


def _spans_figure(title: str, caption: str, rows: Sequence[Row], axis: str, *, log: bool) -> Figure | None:
    if not rows:
        return None
    return _figure(title, caption, lambda variant: plots.spans(plots.names(rows, variant), axis, log=log))


def shard_sizes(statistics: Statistics) -> Figure | None:
    """Shards by size."""
    if not (bins := statistics.shard_histogram):
        return None
    data = [
        {"first": first, "end": end, "value": count, "told": f"{size(first)} to {size(end - 1)}: {count:,} shards"}
        for first, end, count in bins
        if count
    ]
    if len(data) == 1:  # all of about one size: a bar that can be seen
        data[0].update(first=bins[0][0] * 0.99, end=bins[0][1] * 1.01)
    rules = []
    target = statistics.shard_bytes
    caption = f"{statistics.shards.count:,} shards of {size(statistics.shards.bytes)} in all, without their indexes."
    if statistics.shards.max and target <= 2 * statistics.shards.max:
        rules = [{"at": target, "told": f"the build aimed at {size(target)}"}]
        caption += f" Dashed: what the build aimed at, {size(target)}; a source that fills no shard has a smaller one."
    return _figure("Shard sizes", caption, lambda _: plots.bins(data, "bytes", "shards", log=False, rules=rules))


def _plain_bars(title: str, caption: str, axis: str, rows: Sequence[Row]) -> Figure | None:
    if not rows:
        return None

    def make(variant: Variant) -> Spec:
        data = [{**entry, "end": entry["value"], "order": 0} for entry in plots.names(rows, variant)]
        return plots.bars(data, axis, variant)

    return _figure(title, caption, make)


def rejects_by_reason(statistics: Statistics) -> Figure | None:
    """Rejected lines by reason."""
    total = sum(statistics.account.rejected.values())
    rows = [
        Row(
            reason,
            {"value": count, "label": f"{large(count)} · {percent(count / total)}", "told": f"{reason}: {count:,}"},
        )
        for reason, count in sorted(statistics.account.rejected.items(), key=lambda item: -item[1])
        if count
    ]
    return _plain_bars("Rejected lines by reason", "And the share of all rejected lines.", "lines", rows)


def rejects_by_input(statistics: Statistics) -> Figure | None:
    """Rejected lines by input."""
    inputs = sorted(
        (entry for entry in statistics.inputs if any(entry.rejected.values())),
        key=lambda entry: -sum(entry.rejected.values()),
    )
    rows = []
    for entry in inputs[:MOST_ROWS]:
        count = sum(entry.rejected.values())
        told = f"{shown(entry.url)}: {count:,} of {entry.lines:,} lines"
        label = f"{large(count)} · {percent(entry.rejected_share)}"
        rows.append(Row(last_of(entry.url), {"value": count, "label": label, "told": told}))
    caption = "And the share of the input's lines." + _beyond(len(inputs), "inputs with rejected lines")
    return _plain_bars("Rejected lines by input", caption, "lines", rows)


def vocabulary(found: Vocabulary) -> list[Figure]:
    """How the vocabulary is used."""
    data = [{"x": rank, "y": count, "told": f"rank {rank:,}: {count:,} times"} for rank, count in found.ranks]
    figures = []
    if data:
        caption = "How often the most frequent id occurs, the next, and so on."
        figures.append(_figure("Ids by rank", caption, lambda _: plots.curve(data, "rank of the id", "occurrences")))
    rows = [
        Row(
            _often(bin.first, bin.end),
            {
                "value": bin.ids,
                "label": f"{large(bin.ids)} · {percent(bin.ids / max(1, found.ids))}",
                "told": f"{bin.ids:,} ids occur {_often(bin.first, bin.end)}: {bin.tokens:,} tokens",
            },
        )
        for bin in found.frequencies
    ]
    sources = sorted(found.sources, key=lambda entry: -entry.used)
    used = [
        Row(
            shown(entry.name),
            {
                "value": entry.used,
                "label": f"{large(entry.used)} · {percent(entry.used_share)}",
                "told": f"{shown(entry.name)}: {entry.used:,} ids, {entry.only_here:,} of them in no other source",
            },
        )
        for entry in sources[:MOST_ROWS]
    ]
    often = _plain_bars("Ids by how often they occur", "And the share of the tokenizer's ids.", "ids", rows)
    caption = "Ids that occur in a source, and their share of the tokenizer's." + _beyond(len(sources), "sources")
    by_name = _plain_bars("Vocabulary by source", caption, "ids", used)
    return [*figures, *(figure for figure in (often, by_name) if figure)]


def _often(first: int, end: int) -> str:
    if end - first > 1:
        return f"{_power(first)} to {_power(end - 1) if end <= 100 else f'<{_power(end)}'}"
    return {0: "never", 1: "once"}[first]


def _power(count: int) -> str:
    return re.sub(r"\.0+(?=\D|$)", "", large(count))
