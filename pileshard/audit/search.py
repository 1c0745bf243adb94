"""`inspect --find`: documents by source and length, found through the indexes; of shards only the hits are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pileshard.audit.excerpts import Excerpts
from pileshard.audit.places import OFFSETS, TOKENS, Places, damaged, read_record
from pileshard.audit.tables import printable
from pileshard.audit.terminal import Display
from pileshard.corpus import Corpus
from pileshard.errors import OptionError
from pileshard.format.manifest import ShardEntry
from pileshard.tokenize import Tokenizer

Order = Literal["dataset", "longest", "shortest"]

#: Records of an index that are looked at together, and remote indexes that are read side by side.
_BLOCK = 1 << 18
_THREADS = 8


class FoundDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was searched for.

    Attributes:
      tokens: how many it has, the end-of-document id included.
      text_bytes: UTF-8 bytes of its text.
      source: it belongs to.
      split: it fell into.
      input: number of its input.
      url: of that input.
      line: its line there, from 1.
      shard: path of the shard that holds it.
      record: number of its first record there.
      first_token: number of its first token there.
      text: the begin of its text, decoded.
      whole: whether that is all of it.
    """

    tokens: int
    text_bytes: int
    source: str
    split: str
    input: int
    url: str
    line: int
    shard: str
    record: int
    first_token: int
    text: str
    whole: bool


class SearchView(msgspec.Struct, frozen=True, kw_only=True):
    """What a search gave; `schemas/inspect-search.schema.json` is the schema of its JSON.

    Attributes:
      search_version: of this form.
      matches: documents that fit, in all.
      shards: whose indexes were read.
      order: of the documents below: as the dataset has them, or by length.
      documents: the first of those that fit.
    """

    search_version: Literal[1] = 1
    matches: int
    shards: int
    order: Order
    documents: list[FoundDocument]


class _Hits(NamedTuple):
    """Documents that fit, one column each."""

    shard: npt.NDArray[np.int64]
    record: npt.NDArray[np.int64]
    first_token: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    text_bytes: npt.NDArray[np.int64]

    def first(self, order: Order, limit: int) -> _Hits:
        """The first ones by an order; equal lengths are in the dataset's."""
        if order == "dataset":
            return _Hits._make(column[:limit] for column in self)
        lengths = -self.tokens if order == "longest" else self.tokens
        chosen = np.argsort(lengths, kind="stable")[:limit]
        return _Hits._make(column[chosen] for column in self)


_NONE = _Hits._make(np.zeros(0, dtype=np.int64) for _ in range(5))


def search(
    corpus: Corpus,
    decoder: Tokenizer,
    *,
    sources: Collection[str] = (),
    split: str | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    order: Order = "dataset",
    limit: int = 10,
    characters: int = 200,
) -> SearchView:
    """Documents by source and length. Memory is that of a block of an index for each shard read at a time.

    Args:
      corpus: the dataset.
      decoder: its tokenizer.
      sources: names; none for all.
      split: `train` or `validation`; None for both.
      min_tokens: of a document, its end-of-document id counted; None for any.
      max_tokens: likewise.
      order: which of the documents that fit are shown first.
      limit: how many are shown.
      characters: of each text.

    Raises:
      OptionError: no such source or split, or lengths that no document can have.
      DatasetError: an index, or a record that was to be shown, is damaged.
    """
    low, high = min_tokens or 0, (1 << 62) if max_tokens is None else max_tokens
    if low > high:
        raise OptionError(f"no document has at least {low:,} and at most {high:,} tokens")
    chosen = _shards(corpus, sources, split)

    def look(number: int) -> tuple[int, _Hits]:
        return _search_shard(corpus, number, lambda tokens: (tokens >= low) & (tokens <= high), order, limit)

    if corpus.storage.is_local:
        matches, hits = _gather(map(look, chosen), order, limit)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            matches, hits = _gather(pool.map(look, chosen), order, limit)
    excerpts = Excerpts(corpus.manifest, decoder, characters)
    documents = [_document(corpus, excerpts, *row) for row in zip(*(column.tolist() for column in hits), strict=True)]
    return SearchView(matches=matches, shards=len(chosen), order=order, documents=documents)


def _shards(corpus: Corpus, sources: Collection[str], split: str | None) -> list[int]:
    """Numbers of the shards that may hold what is searched for."""
    shards = corpus.manifest.shards
    names = sorted({entry.name for entry in corpus.sources})
    for source in sources:
        if source not in names:
            raise OptionError(f"{source!r} is none of the sources: {', '.join(map(repr, names))}")
    splits = sorted({shard.split for shard in shards})
    if split is not None and split not in splits:
        raise OptionError(f"{corpus.storage.url}: no split {split!r}; it has {', '.join(splits)}")
    return [
        number
        for number, shard in enumerate(shards)
        if (not sources or shard.source in sources) and (split is None or shard.split == split)
    ]


def _gather(results: Iterable[tuple[int, _Hits]], order: Order, limit: int) -> tuple[int, _Hits]:
    matches, hits = 0, _NONE
    for count, found in results:
        matches += count
        if len(found.shard) and (order != "dataset" or len(hits.shard) < limit):
            hits = _joined(hits, found).first(order, limit)
    return matches, hits


def _joined(one: _Hits, other: _Hits) -> _Hits:
    return _Hits._make(np.concatenate(columns) for columns in zip(one, other, strict=True))


def _search_shard(
    corpus: Corpus,
    number: int,
    fits: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]],
    order: Order,
    limit: int,
) -> tuple[int, _Hits]:
    """How many documents of a shard fit, and the first of them."""
    shard = corpus.manifest.shards[number]
    if not shard.records:
        return 0, _NONE
    places = Places(corpus.storage, shard)
    matches, hits = 0, _NONE
    record = first_token = text_bytes = np.zeros(0, dtype=np.int64)  # of the document that a block ends in
    for begin in range(0, shard.records, _BLOCK):
        end = min(begin + _BLOCK, shard.records)
        tokens = places.row(TOKENS, begin, end + 1).astype(np.int64)
        heads, sizes = places.documents(begin, end)
        record = np.concatenate([record, heads])
        first_token = np.concatenate([first_token, tokens[heads - begin]])
        text_bytes = np.concatenate([text_bytes, sizes.astype(np.int64)])
        if end == shard.records:
            record, first_token = np.append(record, end), np.append(first_token, tokens[-1])
        lengths = np.diff(first_token)
        if (lengths <= 0).any() or (begin == 0 and (not len(record) or record[0] != 0)):
            raise damaged(corpus.storage, shard.index_path, f"its records {begin:,} to {end:,} cannot be")
        chosen = np.flatnonzero(fits(lengths))
        matches += len(chosen)
        found = _Hits(
            np.full(len(chosen), number), record[chosen], first_token[chosen], lengths[chosen], text_bytes[chosen]
        )
        hits = _joined(hits, found).first(order, limit)
        record, first_token, text_bytes = record[-1:], first_token[-1:], text_bytes[-1:]
    return matches, hits


def _document(
    corpus: Corpus, excerpts: Excerpts, number: int, record: int, first_token: int, tokens: int, text_bytes: int
) -> FoundDocument:
    shard: ShardEntry = corpus.manifest.shards[number]
    begin, end = Places(corpus.storage, shard).row(OFFSETS, record, record + 2).tolist()
    stored = read_record(corpus.storage, corpus.manifest, shard, begin, end, excerpts.tokens)
    text, whole = excerpts.of(stored.ids, stored.tokens)
    return FoundDocument(
        tokens=tokens,
        text_bytes=text_bytes,
        source=shard.source,
        split=shard.split,
        input=stored.input,
        url=corpus.manifest.inputs[stored.input].url,
        line=stored.line,
        shard=shard.path,
        record=record,
        first_token=first_token,
        text=text,
        whole=whole and stored.tokens == tokens,
    )


def search_text(view: SearchView, display: Display) -> str:
    """What a search gave, for a person: two lines a document, then how many there are."""
    lines = []
    for found in view.documents:
        place = f"{found.url} line {found.line:,}, {found.shard} record {found.record:,}"
        lines.append(
            display.head(f"--- {found.tokens:,} tokens, source {found.source!r}, split {found.split}: {place}")
        )
        lines.append(printable(found.text, len(found.text) * 10) + ("" if found.whole else display.mark(" [...]")))
    shown = {"dataset": "first", "longest": "longest", "shortest": "shortest"}[view.order]
    told = f"{view.matches:,} {'document fits' if view.matches == 1 else 'documents fit'}, of {view.shards:,} "
    told += "shard" if view.shards == 1 else "shards"
    if view.matches > len(view.documents):
        told += f"; the {shown} {len(view.documents):,} are shown"
    lines.append(told)
    return "\n".join(lines)
