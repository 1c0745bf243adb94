"""Documents: which lines are accepted, with what text and source, and the first reason why others are not."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pileshard.ingest import LineBlock, Reason, parse_lines
from pileshard.ingest.reasons import excerpt
from tests.ingest.samples import SOURCE, TEXT, parse_line

HUGE = b"9" * 5000


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"text": " "}', b" "),
        (b'{"text": "\\u0000"}', b"\0"),
        (b'{"text": "\\ud83d\\ude00"}', "😀".encode()),
        (b'{"text": "\\uD83D\\uDE00"}', "😀".encode()),
        (b'{"\\u0074ext": "escaped key"}', b"escaped key"),
        (b'{"text": "first", "text": "last"}', b"last"),
        (b'{"text": 1, "text": "last"}', b"last"),
        (b'{"text": "last", "n": NaN, "n": 1}', b"last"),
        (b' \t\r{"text" : "blanks"\r} \t\r', b"blanks"),
        (b'{"text": "\x7f\xc2\x80\xef\xbf\xbe\xf4\x8f\xbf\xbf"}', b"\x7f\xc2\x80\xef\xbf\xbe\xf4\x8f\xbf\xbf"),
        ('{"text": "raw \u2028\u2029\u0085", "\u2028": 1}'.encode(), "raw \u2028\u2029\u0085".encode()),
        (b'{"text": "NaN \\" NaN", "n": NaN}', b'NaN " NaN'),
        (b'{"text": "1e999 \\\\", "n": NaN, "q": "\\\\\\" NaN"}', b"1e999 \\"),
        (b'{"text": "x", "n": [NaN, -Infinity, Infinity, 1e999, -1E+999, 0.5e99999]}', b"x"),
        (b'{"text": "x", "n": [[-' + HUGE + b", " + HUGE + b"], {}, " + HUGE + b".5e7]}", b"x"),
        (b'{"text": "x", "\\ud800": "\\udc00"}', b"x"),
        (b'{"text": "x", "meta": {"a": "\\ud800"}}', b"x"),
        (b'{"text": "\\\\ud800", "n": NaN}', b"\\ud800"),
        (b'{"text": "\\ufffd\\ufffe", "a": "\\udfff"}', "\ufffd\ufffe".encode()),
    ],
)
def test_text_is_kept_to_the_last_character(line, text):
    got = parse_line(line)
    assert got.rejections == []
    assert got.texts == [text]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        # invalid UTF-8 comes first, wherever it is
        (b'{"text": "\xff"}', Reason.INVALID_UTF8),
        (b'{"\xff": 1, "text": "a"}', Reason.INVALID_UTF8),
        (b'{"text": "a"} \xff', Reason.INVALID_UTF8),
        (b"\xff", Reason.INVALID_UTF8),
        (b'{"n": NaN, "text": "\xe9"}', Reason.INVALID_UTF8),
        (b'{"text": "overlong \xc0\xaf"}', Reason.INVALID_UTF8),
        (b'{"text": "overlong \xe0\x80\xaf"}', Reason.INVALID_UTF8),
        (b'{"text": "surrogate \xed\xa0\x80"}', Reason.INVALID_UTF8),
        (b'{"text": "CESU \xed\xa0\xbd\xed\xb8\x80"}', Reason.INVALID_UTF8),
        (b'{"text": "past the end \xf4\x90\x80\x80"}', Reason.INVALID_UTF8),
        (b'{"text": "cut \xe6\x97', Reason.INVALID_UTF8),
        (b'\xef\xbb{"text": "half a BOM"}', Reason.INVALID_UTF8),
        # no JSON
        (b"{", Reason.INVALID_JSON),
        (b'{"text": "cut', Reason.INVALID_JSON),
        (b'{"text": "cut\\', Reason.INVALID_JSON),
        (b'{"text": "a"} {}', Reason.INVALID_JSON),
        (b'{"text": "a"},', Reason.INVALID_JSON),
        (b'{"text": "a", "n": NaN} NaN', Reason.INVALID_JSON),
        (b'{"text": "a",}', Reason.INVALID_JSON),
        (b"{'text': 'a'}", Reason.INVALID_JSON),
        (b'{"text": "a"}\0', Reason.INVALID_JSON),
        (b'{"text": "raw \t tab"}', Reason.INVALID_JSON),
        (b'{"text": "raw \0 NUL"}', Reason.INVALID_JSON),
        (b'{"text": "\\x41"}', Reason.INVALID_JSON),
        (b'{"text": "\\ud8"}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": -NaN}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": nan}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": 01e999}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": +1e999}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": 1e999.5}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": .1e999}', Reason.INVALID_JSON),
        (b'{"text": "a", "n": 0' + HUGE + b"}", Reason.INVALID_JSON),
        (b'{"text": "a", NaN: 1}', Reason.INVALID_JSON),
        (b'{"text": "a" "\\ud800"}', Reason.INVALID_JSON),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"text": "two BOMs"}', Reason.INVALID_JSON),
        ('\u00a0{"text": "a"}'.encode(), Reason.INVALID_JSON),
        (b"hello", Reason.INVALID_JSON),
        # JSON, but no object
        (b"[]", Reason.NOT_OBJECT),
        (b'["text"]', Reason.NOT_OBJECT),
        (b'"text"', Reason.NOT_OBJECT),
        (b'"\\ud800"', Reason.NOT_OBJECT),
        (b"null", Reason.NOT_OBJECT),
        (b"NaN", Reason.NOT_OBJECT),
        (b"1e999", Reason.NOT_OBJECT),
        (HUGE, Reason.NOT_OBJECT),
        (b"false", Reason.NOT_OBJECT),
        # objects without a text
        (b"{}", Reason.NO_TEXT),
        (b'{"Text": "a"}', Reason.NO_TEXT),
        (b'{"meta": {"text": "a"}}', Reason.NO_TEXT),
        (b'{"a": "\\ud800"}', Reason.NO_TEXT),
        (b'{"text": null}', Reason.TEXT_NOT_STRING),
        (b'{"text": true}', Reason.TEXT_NOT_STRING),
        (b'{"text": 1e5}', Reason.TEXT_NOT_STRING),
        (b'{"text": NaN}', Reason.TEXT_NOT_STRING),
        (b'{"text": ' + HUGE + b"}", Reason.TEXT_NOT_STRING),
        (b'{"text": []}', Reason.TEXT_NOT_STRING),
        (b'{"text": ["\\ud800"]}', Reason.TEXT_NOT_STRING),
        (b'{"text": {"encode": 1}}', Reason.TEXT_NOT_STRING),
        (b'{"text": "first", "text": 2}', Reason.TEXT_NOT_STRING),
        (b'{"text": ""}', Reason.EMPTY_TEXT),
        (b'{"text": "", "n": NaN, "s": "\\ud800"}', Reason.EMPTY_TEXT),
        (b'{"text": "\\ud800"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\uDFFF"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\udc00\\ud800"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\ud83d\\ude00\\ude00"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\ud83d\\ud83d\\ude00"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\ud83d \\ude00"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\\\\\ud800"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\ud83d\\\\ude00"}', Reason.LONE_SURROGATE),
        (b'{"text": "\\"\\ud800\\"", "n": NaN}', Reason.LONE_SURROGATE),
    ],
)
def test_the_first_reason_is_given(line, reason):
    got = parse_line(line)
    assert [r.reason for r in got.rejections] == [reason]
    assert got.texts == []
    assert got.rejections[0].detail
    with_bom = parse_line(b"\xef\xbb\xbf" + line)
    if not line.startswith(b"\xef\xbb"):
        assert [r.reason for r in with_bom.rejections] == [reason]


@pytest.mark.parametrize(
    ("meta", "source"),
    [
        (b'{"pile_set_name": "ArXiv"}', "ArXiv"),
        (b'{"pile_set_name": "../../etc/passwd"}', "../../etc/passwd"),
        (b'{"pile_set_name": "\\u0000/\xe6\x97\xa5"}', "\0/日"),
        (b'{"pile_set_name": " "}', " "),
        (b'{"pile_set_name": ""}', "unknown"),
        (b'{"pile_set_name": null}', "unknown"),
        (b'{"pile_set_name": ["ArXiv"]}', "unknown"),
        (b'{"pile_set_name": "\\ud800"}', "unknown"),
        (b'{"pile_set_name": "ok", "x": "\\ud800"}', "ok"),
        (b'{"pile_set_name": "ok", "x": NaN}', "ok"),
        (b'{"pile_set_name": NaN}', "unknown"),
        (b'{"pile_set_name": "first", "pile_set_name": "last"}', "last"),
        (b'{"pile_set_name": "first"}, "meta": {}', "unknown"),
        (b'{}, "meta": {"pile_set_name": "last"}', "last"),
        (b"{}", "unknown"),
        (b"null", "unknown"),
        (b"NaN", "unknown"),
        (b"3", "unknown"),
        (b'"pile_set_name"', "unknown"),
        (b'["pile_set_name"]', "unknown"),
        (b'[{"pile_set_name": "ArXiv"}]', "unknown"),
    ],
)
def test_source_is_a_non_empty_string_or_unknown(meta, source):
    got = parse_line(b'{"text": "a", "meta": ' + meta + b"}")
    assert (got.texts, got.sources) == ([b"a"], [source])


def test_paths_lead_into_nested_objects():
    wanted = [
        b'{"a": {"b": {"c": "deep"}}, "s": "src"}',
        b'{"a": {"b": "c"}}',
        b'{"a": {"b": {"c": 1}}}',
        b'{"a": {"b": {"c": ""}}, "n": NaN}',
        b'{"a": {"b": {"c": "deep"}}, "n": NaN, "s": 5}',
        b'{"a": []}',
        b"[]",
    ]
    parsed = parse_lines(LineBlock(1, 0, wanted), ("a", "b", "c"), ("s",))
    assert (parsed.texts, parsed.sources, parsed.lines) == ([b"deep", b"deep"], ["src", "unknown"], [1, 5])
    assert [r.reason.value for r in parsed.rejections] == [
        "no_text",
        "text_not_string",
        "empty_text",
        "no_text",
        "not_object",
    ]
    assert parse_lines(LineBlock(1, 0, wanted[:1]), ("a", "b", "c"), ()).sources == ["unknown"]
    with pytest.raises(ValueError, match="text_path"):
        parse_lines(LineBlock(1, 0, wanted), (), ())


@pytest.mark.parametrize("odd", [b"1", b"NaN", b'"\\ud800"', HUGE], ids=["plain", "NaN", "surrogate", "huge"])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a": ', b"}")], ids=["arrays", "objects"])
def test_lines_nested_over_1024_deep_are_no_json(odd, begin, end):
    for depth, accepted in [(500, True), (1023, True), (1024, False), (100_000, False)]:
        got = parse_line(b'{"text": "a", "n": ' + begin * depth + odd + end * depth + b"}")
        assert got.texts == ([b"a"] if accepted else [])
        assert [r.reason for r in got.rejections] == ([] if accepted else [Reason.INVALID_JSON])


@pytest.mark.parametrize(
    "line", [b"[" * 1_000_000, b'{"a":' * 1_000_000, b"[" * 1_000_000 + b"NaN", b"NaN" + b"]" * 99_999]
)
def test_deep_nesting_never_overflows_the_stack(line):
    assert [r.reason for r in parse_line(line).rejections] == [Reason.INVALID_JSON]


def as_json_says(line: bytes):
    """The outcome of a line by the standard parser: the text, or the reason why there is none."""
    try:
        text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        if not text.strip(" \t\r\n"):
            return "blank"
        value = json.loads(text, parse_int=lambda digits: 0)
    except UnicodeDecodeError:
        return Reason.INVALID_UTF8
    except json.JSONDecodeError:
        return Reason.INVALID_JSON
    if not isinstance(value, dict):
        return Reason.NOT_OBJECT
    if "text" not in value:
        return Reason.NO_TEXT
    text = value["text"]
    if not isinstance(text, str):
        return Reason.TEXT_NOT_STRING
    if not text:
        return Reason.EMPTY_TEXT
    try:
        return text.encode()
    except UnicodeEncodeError:
        return Reason.LONE_SURROGATE


STRINGS = st.lists(
    st.sampled_from(
        [
            "a",
            "NaN",
            "\\ud83d",
            "\\ude00",
            "\\ud800",
            "\\\\",
            '\\"',
            "\\n",
            "\\u0041",
            "1e999",
            "é",
            "\u2028",
            "😀",
            " ",
        ]
    ),
    max_size=6,
).map(lambda parts: '"' + "".join(parts) + '"')
SCALARS = st.one_of(
    STRINGS,
    st.sampled_from(
        [
            "NaN",
            "-Infinity",
            "Infinity",
            "1e999",
            "-1E+999",
            "0",
            "-0",
            "1.5",
            "1e5",
            "9" * 400,
            "9" * 250 + "e99",
            "null",
        ]
    ),
)
KEYS = st.one_of(st.sampled_from(['"text"', '"text"', '"meta"']), STRINGS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
        st.lists(st.tuples(KEYS, inner), max_size=3).map(
            lambda items: "{" + ",".join(f"{key}: {value}" for key, value in items) + "}"
        ),
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.tuples(KEYS, VALUES), max_size=4).map(
    lambda items: "{" + ",".join(f"{key}: {value}" for key, value in items) + "}"
)
EDITS = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.booleans(),
        st.sampled_from([*'"\\{}[],:-+.eE01uNdD8 ', "NaN", "\\ud800", "1e999", "\t"]),
    ),
    max_size=3,
)


def edited(line, edits):
    for at, delete, insert in edits:
        at = at % (len(line) + 1)
        line = line[:at] + ("" if delete else insert) + line[at + delete :]
    return line


@settings(max_examples=600)
@given(st.one_of(OBJECTS, OBJECTS, VALUES), EDITS)
@example('{"text": "a", "n": 0NaN}', [])
@example('{"text": "a", "n": NaN1}', [])
@example('{"text": "a", "n": "x"NaN}', [])
@example('{"text": "a", "n": 1e999e999}', [])
@example('{"text": "a", "n": NaN-1}', [])
@example('{"text": "a" NaN', [])
@example('{"text": "\\\\\\\\ud800\\\\\\ud800", "n": NaN', [])
def test_outcome_is_that_of_the_standard_parser(line, edits):
    line = edited(line, edits).replace("\n", "")
    got = parse_line(line.encode())
    outcome = "blank" if got.blank else got.rejections[0].reason if got.rejections else got.texts[0]
    assert outcome == as_json_says(line.encode())


@given(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), st.booleans())
def test_any_bytes_have_an_outcome(noise, in_text):
    line = b'{"text": "' + noise + b'"}' if in_text else noise
    got = parse_line(line)
    outcome = "blank" if got.blank else got.rejections[0].reason if got.rejections else got.texts[0]
    assert outcome == as_json_says(line)


@given(st.text(min_size=1), st.booleans())
def test_any_text_comes_back(text, ascii_only):
    text = text.encode("utf-8", "replace").decode()
    got = parse_line(json.dumps({"text": text, "score": float("nan")}, ensure_ascii=ascii_only).encode())
    assert got.texts == [text.encode()]
    assert parse_line(json.dumps({"text": text}, ensure_ascii=ascii_only).encode()).texts == [text.encode()]


@given(st.binary(max_size=2000))
def test_excerpts_are_short_and_printable(line):
    shown = excerpt(line)
    assert len(shown) <= 200
    assert shown.isprintable()
    assert shown or not line


def test_excerpt_of_a_long_line_ends_in_no_broken_character():
    assert excerpt("日".encode() * 1000) == "日" * 200
    assert excerpt("😀".encode() * 1000) == "😀" * 200
    assert excerpt(b"\x00" * 1000) == "\\x00" * 50


def test_a_refused_line_full_of_quotes_takes_time_in_proportion():
    # A search that tried every quote as the begin of a string would need hours here.
    for line in (
        b'{"text": "' + b'\\"' * 2_000_000,
        b'"' * 1_000_001,
        b'{"a": ' + b"1" * 2_000_000 + b"x",
        b"-" * 1_000_000,
    ):
        assert [r.reason for r in parse_line(line).rejections] == [Reason.INVALID_JSON]


def test_a_block_is_left_as_it_is():
    wanted = [b'{"text": "a"}', b"bad", b""]
    block = LineBlock(1, 0, list(wanted))
    parse_lines(block, TEXT, SOURCE)
    assert block == LineBlock(1, 0, wanted)
