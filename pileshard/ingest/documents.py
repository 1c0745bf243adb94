"""Lines -> documents: the text of each as UTF-8 and its source, or why there is none.

Almost every line takes a few operations beside `orjson.loads`; whatever is not plain sailing raises and goes to
`_examine`, which is slow, follows the order of the reasons to the letter, and is the one place where a line is
rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from pileshard.ingest import lenient
from pileshard.ingest.containers import BOM
from pileshard.ingest.lines import MAX_LINE_BYTES, LineBlock
from pileshard.ingest.reasons import Reason, Rejection, excerpt

#: Source of a document that names none.
UNKNOWN_SOURCE = "unknown"

_JSON_SPACE = b" \t\r\n"
_ABSENT = object()


@dataclass
class ParsedBlock:
    """What became of the lines of a block.

    Attributes:
      texts: the text of each document, UTF-8; never empty.
      sources: the source of each document; never empty.
      lines: the 1-based line number of each document, ascending.
      rejections: the rejected lines, in order.
      blank: lines of nothing but JSON whitespace; they are neither accepted nor rejected.
      total: all lines: `len(texts) + len(rejections) + blank`.
    """

    texts: list[bytes]
    sources: list[str]
    lines: list[int]
    rejections: list[Rejection]
    blank: int
    total: int


class _BlankLineError(Exception):
    pass


class _RejectedLineError(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def parse_lines(block: LineBlock, text_path: tuple[str, ...], source_path: tuple[str, ...]) -> ParsedBlock:
    r"""Take the documents out of a block of lines.

    A document's text is the string at `text_path`, kept to the last character (one blank is a text); its source is
    the string at `source_path`, or "unknown" if that is absent, empty or anything else. Of equal keys the last one
    counts. A byte-order mark before a line and a `\r` after it are passed over.

    Args:
      block: lines from `line_blocks`; left as it is.
      text_path: keys that lead to the text, ("text",) for the Pile.
      source_path: keys that lead to the source, ("meta", "pile_set_name") for the Pile; () for none.

    Returns:
      Texts, sources and line numbers of the documents, and the rejections.
    """
    if not text_path:
        raise ValueError("text_path needs at least one key")
    loads = orjson.loads
    text_root, text_rest = text_path[0], text_path[1:]
    texts: list[bytes] = []
    sources: list[str] = []
    # Indexes in the block of the lines that are no documents: they are few, so that the many need no list of their own.
    others: list[int] = []
    rejections: list[Rejection] = []
    offset, offset_of = (
        block.first_offset,
        0,
    )  # the offset of the line with that index, moved only when a rejection asks for one

    for index, line in enumerate(block.lines):
        try:
            document = loads(line)
            text = document[text_root]
            for key in text_rest:
                text = text[key]
            data = text.encode()
            source: Any = UNKNOWN_SOURCE
            if source_path:
                try:
                    source = document
                    for key in source_path:
                        source = source[key]
                except (KeyError, TypeError):
                    source = UNKNOWN_SOURCE
                if type(source) is not str or not source:
                    source = UNKNOWN_SOURCE
            plain = data != b""
        except (ValueError, KeyError, TypeError, AttributeError):
            plain = False
        if not plain:
            document = text = None  # a refused line may be large
            try:
                if index in block.oversize:
                    raise _RejectedLineError(
                        Reason.LINE_TOO_LONG,
                        f"{block.line_size(index):,} bytes; lines of up to {MAX_LINE_BYTES:,} bytes are read",
                    )
                data, source = _examine(line, text_path, source_path)
            except _BlankLineError:
                others.append(index)
                continue
            except _RejectedLineError as rejected:
                others.append(index)
                offset += sum(block.line_size(i) + 1 for i in range(offset_of, index))
                offset_of = index
                head = block.oversize[index].head if index in block.oversize else line
                rejections.append(
                    Rejection(block.first_line + index, offset, rejected.reason, rejected.detail, excerpt(head))
                )
                continue
        texts.append(data)
        sources.append(source)

    first, total = block.first_line, len(block.lines)
    if others:
        absent = set(others)
        numbers = [first + index for index in range(total) if index not in absent]
    else:
        numbers = list(range(first, first + total))
    return ParsedBlock(texts, sources, numbers, rejections, len(others) - len(rejections), total)


def _examine(line: bytes, text_path: tuple[str, ...], source_path: tuple[str, ...]) -> tuple[bytes, str]:
    """Read a line with all its rules.

    Returns:
      The text as UTF-8 and the source.

    Raises:
      _BlankLineError: there is nothing on the line.
      _RejectedLineError: it is no document; with the first reason in the order of `Reason`.
    """
    line = line.removeprefix(BOM)
    if not line.strip(_JSON_SPACE):
        raise _BlankLineError
    try:
        document = twin = orjson.loads(line)
    except orjson.JSONDecodeError:
        document, twin = _read_refused(line)
    if not isinstance(document, dict):
        raise _RejectedLineError(Reason.NOT_OBJECT, f"the line holds {_kind(document)}, not an object")
    text = _at(document, text_path)
    name = ".".join(text_path)
    if text is _ABSENT:
        raise _RejectedLineError(Reason.NO_TEXT, f"there is no key {name!r}")
    if not isinstance(text, str):
        raise _RejectedLineError(Reason.TEXT_NOT_STRING, f"the value of {name!r} is {_kind(text)}, not a string")
    if not text:
        raise _RejectedLineError(Reason.EMPTY_TEXT, f"the value of {name!r} is empty")
    if twin is not document and text != _at(twin, text_path):
        raise _RejectedLineError(Reason.LONE_SURROGATE, f"the value of {name!r} holds half of a surrogate pair")
    source = _at(document, source_path) if source_path else _ABSENT
    if not isinstance(source, str) or not source or (twin is not document and source != _at(twin, source_path)):
        source = UNKNOWN_SOURCE
    return text.encode("utf-8"), source


def _read_refused(line: bytes) -> tuple[Any, Any]:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _RejectedLineError(
            Reason.INVALID_UTF8, f"{error.reason}, 0x{line[error.start]:02x}, at byte {error.start:,} of the line"
        ) from None
    try:
        return lenient.loads(line)
    except orjson.JSONDecodeError as error:
        # The parser's own words, without its position: that is in the rewritten line.
        raise _RejectedLineError(Reason.INVALID_JSON, str(error).partition(": line ")[0]) from None


def _at(document: object, path: tuple[str, ...]) -> object:
    value = document
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _ABSENT
        value = value[key]
    return value


def _kind(value: object) -> str:
    kinds = {
        type(None): "null",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
    }
    return kinds.get(type(value), "an object")
