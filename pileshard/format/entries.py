"""What the manifest lists: options, inputs, sources and shards."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
Split = Literal["train", "validation"]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options that the shards' bytes depend on.

    Attributes:
      seed: of the order of documents.
      shard_bytes: target size of a shard, in bytes.
      validation: share of the documents held out, 0 <= share < 1.
      dedup: `exact` drops texts that occurred before; then keys are hashes of texts, else of identities.
      special_tokens: what becomes of special tokens that a text holds literally.
      text_key: dotted path of the text in a line's JSON object.
      source_key: dotted path of the name of the source.
    """

    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    shard_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    dedup: Literal["none", "exact"]
    special_tokens: Literal["text", "token", "reject"]
    text_key: str
    source_key: str


class InputEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The account of one input: lines = accepted + blank + all of rejected.

    Attributes:
      url: what opened it. Documents name it by its number in the list, from 0.
      size: stored (compressed) bytes.
      sha256: of the stored bytes; empty where it was left out.
      lines: in it.
      accepted: lines that became documents.
      rejected: lines that did not, by reason.
      blank: lines of white space alone.
      duplicates: accepted documents that exact deduplication dropped.
      tokens: of the accepted documents, with an end-of-document id each.
      text_bytes: UTF-8 bytes of their texts.
      identity_sum: sum of their identity hashes modulo 2^64.
      rejected_path: the file below the root that lists the rejected lines, null where there are none.
      rejected_sha256: of that file, where it was taken.
      skipped: why the input was left out whole (then its counts are 0), else null.
    """

    url: str
    size: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]
    lines: Count = 0
    accepted: Count = 0
    rejected: dict[str, Count] = {}
    blank: Count = 0
    duplicates: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    identity_sum: Hex64 = "0" * 16
    rejected_path: str | None = None
    rejected_sha256: Sha256 | None = None
    skipped: str | None = None


class SourceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Totals of one source and split.

    Attributes:
      name: of the source.
      split: of it.
      documents: in its shards.
      tokens: in its shards, with end-of-document ids.
      text_bytes: UTF-8 bytes of the documents' texts.
      shards: how many it has.
    """

    name: str
    split: Split
    documents: Count
    tokens: Count
    text_bytes: Count
    shards: Count


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shard: documents of `source` and `split` with `key_first` <= key <= `key_last`, in key order.

    Attributes:
      path: of the shard below the root.
      source: of its documents.
      split: of its documents.
      number: its place among the shards of its source and split, from 0.
      count: how many those are.
      size: bytes of the shard.
      sha256: of the shard.
      index_path: of its index below the root.
      index_size: bytes of the index.
      index_sha256: of the index.
      records: in it; each part of a long document is one.
      documents: in it; the parts of one count once.
      tokens: in it, with end-of-document ids.
      text_bytes: UTF-8 bytes of its documents' texts.
      key_first: the lowest key that would belong to it.
      key_last: the highest key that would belong to it.
      identity_sum: sum of its documents' identity hashes modulo 2^64.
    """

    path: Path
    source: str
    split: Split
    number: Count
    count: Count
    size: Count
    sha256: Sha256
    index_path: Path
    index_size: Count
    index_sha256: Sha256
    records: Count
    documents: Count
    tokens: Count
    text_bytes: Count
    key_first: Hex64
    key_last: Hex64
    identity_sum: Hex64
