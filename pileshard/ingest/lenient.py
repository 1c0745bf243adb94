r"""JSON that orjson refuses although Python's `json` and much of the web write it.

The Pile was written by Python's `json`, so lines may hold `NaN`, `Infinity`, `1e999`, integers of thousands of digits
and escapes of lone surrogates. The standard parser takes them, but how deeply it can recurse depends on the version
of Python and on the depth of the caller's stack, and it does not read integers of more than 4,300 digits. So there is
one parser, orjson, and a line that it refuses is rewritten once into one that it may take: numbers out of range
become 0 and lone surrogates a stand-in. What is no JSON stays no JSON.

One rule for depth follows: a line nested more than 1024 deep, which is orjson's limit, is no JSON here, whatever else
it holds.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

# Only whole JSON numbers that stand alone: what a number may not touch is left for the parser to refuse. In range or
# not makes no difference to the line's outcome, so every number with an exponent or 300 digits is replaced.
_NUMBER_OUT_OF_RANGE = re.compile(
    rb"(?<![\w.+-])(?:NaN|-?Infinity|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?[eE][+-]?[0-9]+|-?[1-9][0-9]{299,}(?:\.[0-9]+)?)(?![\w.+-])"
)
_LONE_SURROGATE = re.compile(
    # Both kinds begin with the same literal, which lets the search leap from one to the next.
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F][0-9a-fA-F]\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_STAND_INS = (rb"\\ufffd", rb"\\ufffe")


def loads(line: bytes) -> tuple[Any, Any]:
    """Parse a line that orjson refused and that is valid UTF-8.

    Returns:
      The value, twice. The two differ exactly in the strings that hold lone surrogates, where each has a stand-in of
      its own; they are one object if there are none. Numbers that orjson may refuse are 0.

    Raises:
      orjson.JSONDecodeError: the line is no JSON, or nested more than 1024 deep.
    """
    # With no escaped backslash or quote left, a quote always bounds a string and a backslash always begins an escape.
    plain = line.replace(rb"\\", rb"\u005c").replace(rb"\"", rb"\u0022")
    parts = plain.split(b'"')
    between = b'"'.join(parts[0::2])
    parts[0::2] = _NUMBER_OUT_OF_RANGE.sub(b"0", between).split(b'"')
    plain = b'"'.join(parts)
    del parts, between
    first, count = _LONE_SURROGATE.subn(_STAND_INS[0], plain)
    value = orjson.loads(first)
    if not count:
        return value, value
    return value, orjson.loads(_LONE_SURROGATE.sub(_STAND_INS[1], plain))
