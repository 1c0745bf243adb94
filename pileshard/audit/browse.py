"""`inspect --shard`: consecutive records of a shard."""

from __future__ import annotations

from typing import Literal

import msgspec

from pileshard.audit.excerpts import Excerpts
from pileshard.audit.places import OFFSETS, TEXT_BYTES, TOKENS, Places, read_record
from pileshard.audit.terminal import Display
from pileshard.corpus import Corpus
from pileshard.errors import OptionError
from pileshard.format.manifest import ShardEntry
from pileshard.tokenize import Tokenizer


class RecordView(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a shard.

    Attributes:
      record: its number, from 0.
      offset: of it in the shard, in bytes.
      input: number of its document's input.
      url: of that input.
      line: the document's line there, from 1.
      part: the record's number in its document, from 0.
      first_token: number of its first token in the shard.
      tokens: how many it has.
      ends_document: whether it is the last one of its document.
      text: the begin of its text, decoded.
      whole: whether that is all of it.
    """

    record: int
    offset: int
    input: int
    url: str
    line: int
    part: int
    first_token: int
    tokens: int
    ends_document: bool
    text: str
    whole: bool


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """A shard and some of its records; `schemas/inspect-shard.schema.json` is the schema of its JSON.

    Attributes:
      shard_view_version: of this form.
      path: of the shard below the dataset's root.
      source: of its documents.
      split: of its documents.
      size: in bytes.
      records: how many it has.
      documents: how many it has.
      tokens: how many it has.
      listed: the records asked for.
    """

    shard_view_version: Literal[1] = 1
    path: str
    source: str
    split: str
    size: int
    records: int
    documents: int
    tokens: int
    listed: list[RecordView]


def find_shard(corpus: Corpus, name: str) -> ShardEntry:
    """A shard by its path, the end of it, the index's path, or its number in the manifest's list.

    Raises:
      OptionError: none or more than one is meant.
    """
    shards = corpus.manifest.shards
    if name.isdecimal() and int(name) < len(shards):
        return shards[int(name)]
    plain = name.removesuffix(".index.npy") + ".tfrecord" if name.endswith(".index.npy") else name
    whole = [shard for shard in shards if plain == shard.path or plain.endswith("/" + shard.path)]
    found = whole or [shard for shard in shards if shard.path.endswith("/" + plain)]
    if len(found) != 1:
        problem = "no shard" if not found else f"{len(found)} shards"
        raise OptionError(
            f"{problem} named {name!r}; give a path such as {shards[0].path if shards else 'shards/...'}, more of it, "
            f"or a number below {len(shards)}"
        )
    return found[0]


def inspect_shard(
    corpus: Corpus, name: str, decoder: Tokenizer, *, first: int = 0, count: int = 5, characters: int = 200
) -> ShardView:
    """Records of a shard, found by its index; nothing else of the shard is read.

    Args:
      corpus: the dataset.
      name: of the shard, as in `find_shard`.
      decoder: the dataset's tokenizer.
      first: record to begin with.
      count: how many, or as many as there are.
      characters: of each text.

    Raises:
      OptionError: no such shard or record.
      DatasetError: the shard or its index is damaged.
    """
    shard = find_shard(corpus, name)
    if not 0 <= first < max(1, shard.records):
        raise OptionError(f"{shard.path} has {shard.records:,} records, counted from 0; there is no record {first:,}")
    places = Places(corpus.storage, shard)
    last = min(shard.records, first + count)
    offsets, tokens = (places.row(row, first, last + 1).tolist() for row in (OFFSETS, TOKENS))
    text_bytes = places.row(TEXT_BYTES, first, last + 1).tolist()  # the last column's is 0, and ends a document
    excerpts = Excerpts(corpus.manifest, decoder, characters)
    listed = []
    for at in range(last - first):
        stored = read_record(corpus.storage, corpus.manifest, shard, offsets[at], offsets[at + 1], excerpts.tokens)
        text, whole = excerpts.of(stored.ids, stored.tokens)
        listed.append(
            RecordView(
                record=first + at,
                offset=offsets[at],
                input=stored.input,
                url=corpus.manifest.inputs[stored.input].url,
                line=stored.line,
                part=stored.part,
                first_token=tokens[at],
                tokens=stored.tokens,
                ends_document=text_bytes[at + 1] > 0 or first + at + 1 == shard.records,
                text=text,
                whole=whole,
            )
        )
    return ShardView(
        path=shard.path,
        source=shard.source,
        split=shard.split,
        size=shard.size,
        records=shard.records,
        documents=shard.documents,
        tokens=shard.tokens,
        listed=listed,
    )


def shard_text(view: ShardView, display: Display) -> str:
    """A shard's records for a person; ends of documents are drawn."""
    lines = [
        display.text(
            f"{view.path}: source {view.source!r}, split {view.split}, {view.records:,} records, {view.documents:,} "
            f"documents, {view.tokens:,} tokens, {view.size:,} bytes"
        )
    ]
    for record in view.listed:
        part = f" (part {record.part})" if record.part or not record.ends_document else ""
        lines.append(
            display.head(
                f"--- record {record.record:,} at byte {record.offset:,}: {record.url} line {record.line:,}{part}, "
                f"{record.tokens:,} tokens from {record.first_token:,}"
            )
        )
        lines.append(display.text(record.text) + ("" if record.whole else display.mark(" [...]")))
        if record.ends_document:
            lines.append(display.mark("=== end of document"))
    return "\n".join(lines)
