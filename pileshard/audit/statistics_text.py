"""Statistics as tables for a terminal."""

from __future__ import annotations

from pileshard.audit.amounts import percent, several, size
from pileshard.audit.statistics_report import Counted, Statistics, Vocabulary
from pileshard.audit.tables import printable, table

_COLUMNS = ["source", "split", "documents", "tokens", "share", "bytes/token", "mean", "median", "95%", "max", "shards"]


def statistics_text(statistics: Statistics) -> str:
    """The statistics for a person: sources, shards, the account of the inputs, and the vocabulary."""
    rows = [
        _row(printable(entry.name), entry.split, entry.counted, entry.token_share, entry.shards.count)
        for entry in statistics.sources
    ]
    whole = 1.0 if statistics.counted.tokens else None
    rows.append(_row("all", "", statistics.counted, whole, statistics.shards.count))
    out = [table(_COLUMNS, rows), "lengths (mean, median, 95%, max) are tokens of a document, its last id counted", ""]
    shards = statistics.shards
    if shards.count:
        out.append(
            f"{shards.count:,} shards of {size(shards.min or 0)} to {size(shards.max or 0)}, "
            f"{size(shards.median or 0)} in the middle, {size(shards.bytes)} in all; indexes {size(shards.index_bytes)}"
        )
    out += _account(statistics)
    if statistics.vocabulary is not None:
        out += ["", *_vocabulary(statistics.vocabulary, statistics.counted.tokens)]
    return "\n".join(out)


def _row(name: str, split: str, counted: Counted, share: float | None, shards: int) -> list[object]:
    density = "-" if counted.bytes_per_token is None else f"{counted.bytes_per_token:.3f}"
    lengths: list[object] = ["-"] * 4
    if (spread := counted.lengths) is not None:
        lengths = [round(value) for value in (spread.mean, spread.p50, spread.p95, spread.max)]
    return [name, split, counted.documents, counted.tokens, percent(share), density, *lengths, shards]


def _account(statistics: Statistics) -> list[str]:
    account = statistics.account
    rejected = sum(account.rejected.values())
    out = [
        f"{several(account.lines, 'line')} of {several(len(statistics.inputs), 'input')} = {account.accepted:,} "
        f"accepted + {rejected:,} rejected ({percent(account.rejected_share)}) + {account.blank:,} blank"
    ]
    if rejected:
        out.append("rejected: " + ", ".join(f"{reason} {count:,}" for reason, count in account.rejected.items()))
        worst = max(statistics.inputs, key=lambda entry: (entry.rejected_share or 0, sum(entry.rejected.values())))
        out.append(f"most for its lines: {printable(worst.url, 120)}, {percent(worst.rejected_share)}")
    if account.duplicates is None:
        out.append("duplicates: not looked for")
    else:
        out.append(f"duplicates dropped: {account.duplicates:,} with {account.duplicate_tokens or 0:,} tokens")
    if account.unknown_documents:
        out.append(f"without a source: {account.unknown_documents:,} documents ({percent(account.unknown_share)})")
    if account.skipped_inputs:
        out.append(f"inputs left out: {account.skipped_inputs:,}")
    return out


def _vocabulary(found: Vocabulary, tokens: int) -> list[str]:
    out = [f"vocabulary: {found.used:,} of {found.ids:,} ids occur ({percent(found.used_share)})"]
    if found.coverage:
        shares = ", ".join(f"{share:.1%} of {count:,}".replace(".0%", "%") for share, count in found.coverage)
        out.append(f"tokens by how many ids make them up: {shares}")
    if found.unknown_id is not None:
        share = percent(found.unknown_token_share)
        out.append(f"the id for the unknown, {found.unknown_id:,}: {found.unknown_tokens or 0:,} times ({share})")
    if found.used_holes:
        out.append(f"ids that the tokenizer does not know: {found.used_holes:,} tokens")
    if found.above:
        first = ", ".join(f"{at:,}" for at in found.above_ids)
        out.append(f"ids above the vocabulary: {found.above:,} tokens ({first}); run `pileshard verify`")
    rows = [
        [entry.id, printable(repr(entry.text)), entry.count, percent(entry.count / max(1, tokens))]
        for entry in found.top[:20]
    ]
    return [*out, "", table(["id", "text", "count", "share"], rows)] if rows else out
