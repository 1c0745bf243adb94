"""`inspect`: what stands at a position of the order, and where a document went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pileshard.audit.terminal import Display
from pileshard.corpus import Corpus, CorpusPlan, Location
from pileshard.errors import DatasetError, OptionError
from pileshard.format.identity import document_keys, text_keys
from pileshard.format.index import load_index
from pileshard.format.manifest import ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, parse_example
from pileshard.format.storage import open_url
from pileshard.ingest import line_blocks, parse_lines
from pileshard.readers.features import Features


class RowView(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the order; `schemas/inspect-row.schema.json` is the schema of its JSON.

    Attributes:
      row_version: of this form.
      location: where it comes from.
      ids: its tokens as the dataset has them, seq_len + 1 of them.
      texts: the decoded text of each piece of a document, in order.
      trained_ids: its tokens as training sees them, where documents are filled in the middle.
      trained_text: these decoded.
    """

    row_version: Literal[1] = 1
    location: Location
    ids: list[int]
    texts: list[str]
    trained_ids: list[int] | None = None
    trained_text: str | None = None


class DocumentView(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the dataset; `schemas/inspect-document.schema.json` is the schema of its JSON.

    Attributes:
      document_version: of this form.
      input: number of its input.
      url: of the input.
      line: its line, from 1.
      source: it belongs to.
      split: it fell into.
      shard: path of the shard that holds it.
      first_token: number of its first token in the shard.
      tokens: how many it has, the end-of-document id included.
      key: its key, 16 hexadecimal digits.
      text: decoded from its tokens.
    """

    document_version: Literal[1] = 1
    input: int
    url: str
    line: int
    source: str
    split: str
    shard: str
    first_token: int
    tokens: int
    key: str
    text: str


def load_decoder(corpus: Corpus) -> Any:
    """The dataset's tokenizer, to decode with."""
    from pileshard.tokenize import load

    manifest = corpus.manifest
    data = corpus.storage.read_bytes(manifest.tokenizer_path)
    return load(data, eod=manifest.eod_token, special_tokens="text", engine="reference")


def inspect_position(plan: CorpusPlan, position: int, decoder: Any) -> RowView:
    """The row at a position, traced back and decoded."""
    location = plan.locate(position)
    words = plan.words(position)
    ids = words[: plan.seq_len + 1]
    trained = None
    if plan.fim is not None:
        inputs, labels, *_ = Features(plan).make(words[None], np.array([position], dtype=np.int64))
        trained = [*inputs[0].tolist(), int(labels[0, -1])]
    spans = [piece.row_tokens for piece in location.pieces]
    return RowView(
        location=location,
        ids=ids.tolist(),
        texts=[decoder.decode(ids[begin:end].tolist()) for begin, end in spans],
        trained_ids=trained,
        trained_text=None if trained is None else decoder.decode(trained),
    )


def inspect_document(corpus: Corpus, input_name: str, line: int, decoder: Any) -> DocumentView:
    """A document by its input (number, URL or the end of it) and line.

    Raises:
      OptionError: no input, or more than one, has that name.
      DatasetError: the dataset holds no document of that line (it was rejected, blank or a duplicate).
    """
    number = _input_number(corpus, input_name)
    url = corpus.manifest.inputs[number].url
    lines = corpus.manifest.inputs[number].lines
    if not 1 <= line <= lines:
        raise DatasetError(f"{corpus.storage.url}: no line {line:,}: {url} has {lines:,}, counted from 1")
    key = _key(corpus, number, line)
    for shard in corpus.manifest.shards:
        if not int(shard.key_first, 16) <= key <= int(shard.key_last, 16):
            continue
        index = load_index(corpus.storage, shard.index_path)
        keys = index.keys[:-1]
        first, last = (int(np.searchsorted(keys, np.uint64(key), side)) for side in ("left", "right"))
        if first == last:
            continue
        found, ids = _read(corpus, shard, index.offsets[first : last + 1].astype(np.int64))
        if found != (number, line):
            continue
        return DocumentView(
            input=number,
            url=url,
            line=line,
            source=shard.source,
            split=shard.split,
            shard=shard.path,
            first_token=int(index.tokens[first]),
            tokens=len(ids),
            key=f"{key:016x}",
            text=decoder.decode(ids[:-1].tolist()),
        )
    raise DatasetError(
        f"{corpus.storage.url}: holds no document of line {line:,} of {url}: the line was rejected (see rejected/), is "
        "blank, a duplicate, or not there"
    )


def _input_number(corpus: Corpus, name: str) -> int:
    inputs = corpus.manifest.inputs
    if name.isdecimal() and int(name) < len(inputs):
        return int(name)
    found = [number for number, entry in enumerate(inputs) if entry.url == name or entry.url.endswith("/" + name)]
    if len(found) != 1:
        problem = "no input" if not found else f"{len(found)} inputs"
        raise OptionError(f"{problem} named {name!r}; give a number below {len(inputs)} or more of the URL")
    return found[0]


def _key(corpus: Corpus, number: int, line: int) -> int:
    """The document's key: from its identity, or with exact deduplication from its text, read from the input again."""
    options = corpus.manifest.options
    if options.dedup == "none":
        return int(document_keys(options.seed, number, np.array([line]))[0])
    text = _text(corpus, number, line)
    return int(text_keys(options.seed, [text])[0][0])


def _text(corpus: Corpus, number: int, line: int) -> bytes:
    options = corpus.manifest.options
    url = corpus.manifest.inputs[number].url
    text_path, source_path = tuple(options.text_key.split(".")), tuple(options.source_key.split("."))
    with open_url(url, corpus.storage.options) as raw:
        for block in line_blocks(raw, url):
            if block.first_line <= line < block.first_line + len(block.lines):
                parsed = parse_lines(block, text_path, source_path)
                if line in parsed.lines:
                    return parsed.texts[parsed.lines.index(line)]
                break
    raise DatasetError(f"{url}: line {line:,} is no document")


def _read(corpus: Corpus, shard: ShardEntry, offsets: npt.NDArray[Any]) -> tuple[tuple[int, int], npt.NDArray[Any]]:
    """Identity and tokens of the document whose records lie between these offsets."""
    begin, end = int(offsets[0]), int(offsets[-1])
    data = corpus.storage.read_range(shard.path, begin, end)
    parts = []
    identity = (-1, -1)
    for low, high in zip((offsets[:-1] - begin).tolist(), (offsets[1:] - begin).tolist(), strict=True):
        record = data[low + HEADER_BYTES : high - FOOTER_BYTES]
        try:
            example = parse_example(record)
        except ValueError as error:
            raise DatasetError(
                f"{corpus.storage.url_of(shard.path)}: damaged at byte {begin + low:,} ({error}); run `pileshard "
                f"verify {corpus.storage.url}`"
            ) from None
        identity = (example.input, example.line)
        parts.append(np.frombuffer(record[example.tokens_at :], dtype=corpus.manifest.token_dtype))
    return identity, np.concatenate(parts)


def row_text(view: RowView, display: Display, eod: tuple[int, str]) -> str:
    """A row for a person: a line about each piece, then its text; ends of documents are drawn.

    Args:
      view: of the row.
      display: where it goes.
      eod: the end-of-document id and its text.
    """
    place = view.location
    lines = [
        display.text(
            f"position {place.position:,}: epoch {place.epoch}, source {place.source!r}, {place.shard} tokens "
            f"{place.tokens[0]:,} to {place.tokens[1]:,}, chunk {place.chunk:,}, sample {place.sample}"
        )
    ]
    for piece, text in zip(place.pieces, view.texts, strict=True):
        begin, end = piece.row_tokens
        head = f"--- tokens {begin:,} to {end:,}: {piece.url} line {piece.line:,}"
        if piece.part:
            head += f" (part {piece.part})"
        ends = end > begin and view.ids[end - 1] == eod[0]
        lines += [display.head(head), display.text(text.removesuffix(eod[1]) if ends else text)]
        if ends:
            lines.append(display.mark("=== end of document"))
    if view.trained_text is not None:
        head = "--- as training sees it, filled in the middle"
        lines += [display.head(head), display.text(view.trained_text)]
    return "\n".join(lines)


def document_text(view: DocumentView, display: Display) -> str:
    """A document for a person."""
    head = (
        f"{view.url} line {view.line:,}: source {view.source!r}, split {view.split}, {view.tokens:,} tokens in "
        f"{view.shard} from token {view.first_token:,}, key {view.key}"
    )
    return f"{display.head(head)}\n{display.text(view.text)}"


def plan_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, without those left at None."""
    return {name: value for name, value in options.items() if value is not None}
