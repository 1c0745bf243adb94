"""What `pileshard stats` tells, as structs; `schemas/statistics.schema.json` is the schema of their JSON."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from pileshard.format.entries import Split

#: Shares of the documents whose quantiles are told.
QUANTILES = {
    "p01": 0.01,
    "p05": 0.05,
    "p10": 0.1,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How values are spread. A quantile is the least value that at least this share of them does not exceed.

    Attributes:
      min: the least.
      p01: quantile 1%.
      p05: quantile 5%.
      p10: quantile 10%.
      p25: quantile 25%.
      p50: quantile 50%.
      p75: quantile 75%.
      p90: quantile 90%.
      p95: quantile 95%.
      p99: quantile 99%.
      p999: quantile 99.9%.
      max: the largest.
      mean: of all.
    """

    min: float
    p01: float
    p05: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float
    mean: float


class LengthBin(NamedTuple):
    """Documents of a length of `first` to `end` - 1 tokens, and all their tokens."""

    first: int
    end: int
    documents: int
    tokens: int


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Documents counted from the indexes: of a source and split, of a split, or all.

    Attributes:
      documents: how many.
      records: that hold them; a document of more than 65,536 tokens has several.
      tokens: of them, with end-of-document ids.
      text_bytes: UTF-8 bytes of their texts.
      bytes_per_token: text_bytes / tokens; null without tokens.
      lengths: tokens of a document, its end-of-document id counted; exact below 16,384, quantiles above within 0.05%;
        null without documents.
      density: text bytes a token of each document; quantiles within 0.001 (cut to it, and so is each document's value);
        null without documents.
      histogram: of the lengths, as arrays [first length, end, documents, their tokens]; the edges are powers of the
        root of 2, rounded, bins without documents are left out; exact.
    """

    documents: int
    records: int
    tokens: int
    text_bytes: int
    bytes_per_token: float | None
    lengths: Spread | None
    density: Spread | None
    histogram: list[LengthBin]


class ShardSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Shards of a source and split, or all.

    Attributes:
      count: how many.
      bytes: of all, without indexes.
      index_bytes: of their indexes.
      min: bytes of the smallest; null without shards.
      median: of their sizes, the lower of two in the middle.
      max: bytes of the largest.
    """

    count: int
    bytes: int
    index_bytes: int
    min: int | None
    median: int | None
    max: int | None


class SourceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One source and split.

    Attributes:
      name: of the source.
      split: of it.
      token_share: of all tokens of the dataset, 0 to 1; null without tokens.
      counted: its documents.
      shards: their sizes.
    """

    name: str
    split: Split
    token_share: float | None
    counted: Counted
    shards: ShardSizes


class InputStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one input's lines.

    Attributes:
      url: of the input, without user, password and query.
      size: stored bytes.
      lines: in it.
      accepted: lines that became documents.
      rejected: lines that did not, by reason.
      rejected_share: of its lines; null without lines.
      blank: lines of white space alone.
      duplicates: accepted documents that deduplication dropped; null where none was asked for.
      tokens: of the accepted documents.
      text_bytes: of their texts.
      skipped: why it was left out whole, else null.
    """

    url: str
    size: int
    lines: int
    accepted: int
    rejected: dict[str, int]
    rejected_share: float | None
    blank: int
    duplicates: int | None
    tokens: int
    text_bytes: int
    skipped: str | None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all lines: lines = accepted + blank + all of rejected.

    Attributes:
      lines: of all inputs.
      accepted: lines that became documents.
      rejected: lines that did not, by reason.
      rejected_share: of the lines; null without lines.
      blank: lines of white space alone.
      duplicates: documents that deduplication dropped; null where none was asked for: then it is not known.
      duplicate_tokens: of these documents.
      unknown_documents: documents whose line names no source.
      unknown_share: of the documents; null without documents.
      skipped_inputs: inputs that were left out whole.
    """

    lines: int
    accepted: int
    rejected: dict[str, int]
    rejected_share: float | None
    blank: int
    duplicates: int | None
    duplicate_tokens: int | None
    unknown_documents: int
    unknown_share: float | None
    skipped_inputs: int


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often an id occurs.

    Attributes:
      id: of the token.
      token: its entry in the vocabulary; null where the tokenizer has none.
      text: what it decodes to alone; bytes that are no UTF-8 are replaced.
      count: of its occurrences.
    """

    id: int
    token: str | None
    text: str
    count: int


class FrequencyBin(NamedTuple):
    """Ids that occur `first` to `end` - 1 times, and all their occurrences."""

    first: int
    end: int
    ids: int
    tokens: int


class SourceVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What one source uses of the vocabulary.

    Attributes:
      name: of the source, all its splits.
      used: ids that occur in it.
      used_share: of the tokenizer's ids; null where that has none.
      only_here: ids that occur in no other source.
      unknown_tokens: occurrences of the tokenizer's id for the unknown; null where it has none.
    """

    name: str
    used: int
    used_share: float | None
    only_here: int
    unknown_tokens: int | None


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What the tokens use of the vocabulary.

    Attributes:
      ids: that the tokenizer has.
      used: of these, how many occur.
      used_share: used / ids; null where the tokenizer has none.
      holes: ids below the vocabulary's size that the tokenizer has no token for.
      used_holes: occurrences of these.
      unused: the tokenizer's ids that never occur, as ranges [first, last].
      unknown_id: the tokenizer's id for the unknown; null where it has none.
      unknown_tokens: its occurrences.
      unknown_token_share: of all tokens; null without tokens, or without such an id.
      above: tokens with an id at or above the vocabulary's size: a sound dataset has none.
      above_ids: up to 20 of their ids, the lowest.
      coverage: how many of the most frequent ids make up a share of all tokens, as pairs [share, ids].
      frequencies: ids by how often they occur (never, once, 2 to 9, 10 to 99, ...), as arrays [least count, end, ids,
        occurrences].
      ranks: counts of the most frequent id, the next, ..., at ranks that grow by a tenth, as pairs [rank, count].
      top: the 100 most frequent.
      sources: by source.
    """

    ids: int
    used: int
    used_share: float | None
    holes: int
    used_holes: int
    unused: list[tuple[int, int]]
    unknown_id: int | None
    unknown_tokens: int | None
    unknown_token_share: float | None
    above: int
    above_ids: list[int]
    coverage: list[tuple[float, int]]
    frequencies: list[FrequencyBin]
    ranks: list[tuple[int, int]]
    top: list[TokenCount]
    sources: list[SourceVocabulary]


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset in numbers.

    Attributes:
      statistics_version: of this form.
      url: the dataset's root, without user, password and query.
      dataset_id: names the content.
      format_version: of the dataset's files.
      writer: program and release that built it.
      dtype: of a token on disk.
      vocab_size: highest id + 1.
      eod_id: the id that closes every document.
      eod_token: its string.
      tokenizer_sha256: of the tokenizer's file.
      shard_bytes: size that the build aimed at for a shard.
      counted: all documents.
      splits: documents by split.
      sources: by name and split.
      shards: all sizes.
      shard_histogram: shards by size, as arrays [first size, end, shards]; at most 24 bins of one width.
      account: of all inputs.
      inputs: each one's account, in the order of their numbers.
      vocabulary: where every token was read, else null.
    """

    statistics_version: Literal[1] = 1
    url: str
    dataset_id: str
    format_version: int
    writer: str
    dtype: str
    vocab_size: int
    eod_id: int
    eod_token: str
    tokenizer_sha256: str
    shard_bytes: int
    counted: Counted
    splits: dict[str, Counted]
    sources: list[SourceStatistics]
    shards: ShardSizes
    shard_histogram: list[tuple[int, int, int]]
    account: Account
    inputs: list[InputStatistics]
    vocabulary: Vocabulary | None = None

    def to_json(self) -> bytes:
        """The statistics as indented JSON; the same dataset gives the same bytes."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"
