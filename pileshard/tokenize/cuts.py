r"""Where a text can be cut so that the pieces' ids, joined, are the whole text's ids.

A cut is safe where (1) no normalization looks across it, (2) no added token's match crosses it or depends on what is
beyond it and (3) every way of pre-tokenizing has a boundary there, on whose left and right nothing depends on the other
side. The model works on one pre-token at a time, so it does not matter. Four places (| is the cut) qualify in the
patterns recognized here:

- blank      `x| y`    ASCII letters round one blank: every pattern ends a run of letters before a blank, and takes the
  blank as the beginning of what follows. The run of blanks is one long, so `\s+(?!\S)` has nothing to give back.
- newline    `.\n|x`   a newline after an ASCII graphic character or an ideograph, before an ASCII letter or digit or
  an ideograph: a newline either joins the punctuation before it (`[^\s\p{L}\p{N}]+[\r\n]*`) or stands alone, and no
  pattern lets it lead a word (the optional leading character is `[^\r\n...]?` or a blank). The run of white space is
  the one newline, so `\s+(?!\S)` and `\s+` end at the same place with and without the right side.
- digit      `x|1`     a digit never joins letters before it, and `\p{N}{1,3}` counts from the first digit of a run.
- stop       `中|，`   an ideograph and a full-width comma or full stop: letters (or deepseek's run of ideographs) end.

ASCII letters, digits, blanks, newlines, ideographs and those two stops begin no canonical or compatibility
composition with what is before them, hence (1). For WordPiece after BertPreTokenizer a word may hold digits, so `digit`
is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pileshard.tokenize.definition import UNICODE_FORMS, Definition

PIECE_BYTES = 256 << 10

# U+4E00..U+9F7F in UTF-8: whole second bytes within the U+4E00..U+9FA5 that deepseek's pattern names.
_IDEOGRAPH = rb"(?:\xe4[\xb8-\xbf]|[\xe5-\xe8][\x80-\xbf]|\xe9[\x80-\xbd])[\x80-\xbf]"
_STARTS_LINE = rb"(?=[A-Za-z0-9]|" + _IDEOGRAPH + rb")"
_KINDS: dict[str, bytes] = {
    "blank": rb"[A-Za-z](?= [A-Za-z])",
    "digit": rb"[A-Za-z](?=[0-9])",
    "newline": rb"(?:[!-~]|" + _IDEOGRAPH + rb")\n" + _STARTS_LINE,
    "stop": _IDEOGRAPH + rb"(?=\xef\xbc\x8c|\xe3\x80\x82)",
}
# Two neighbouring characters of an added token's content between which a kind of cut could fall.
_SPLITS: dict[str, re.Pattern[str]] = {
    "blank": re.compile(r"[A-Za-z] "),
    "digit": re.compile(r"[A-Za-z][0-9]"),
    "newline": re.compile(r"\n[A-Za-z0-9\u4e00-\u9fff]"),
    "stop": re.compile(r"[\u4e00-\u9fff][，。]"),
}
_EDGE = re.compile(r"[A-Za-z0-9\s\u4e00-\u9fff，。]")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
#: Split patterns followed by ByteLevel without its own pattern, by the family that made them known.
SPLIT_PATTERNS: dict[str, str] = {
    "cl100k": _CONTRACTIONS + rf"|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*" + _TAIL,
    "qwen2": _CONTRACTIONS + rf"|{_PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*" + _TAIL,
    "qwen3.5": _CONTRACTIONS + rf"|{_PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*" + _TAIL,
    "o200k": rf"{_PREFIX}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_PREFIX}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    + _TAIL,
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
DEEPSEEK_PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    + "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)


def structure(definition: Definition) -> str | None:
    """The name of the pre-tokenization that `definition` uses, or None where it is not one whose cuts are proved."""
    steps = [step.get("type") for step in definition.pre_tokenizers]
    last = definition.pre_tokenizers[-1] if definition.pre_tokenizers else {}
    if steps == ["BertPreTokenizer"]:
        return "bert"
    if not steps or steps[-1] != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    own_pattern = last.get("use_regex", True)
    if steps in (["ByteLevel"], ["Digits", "ByteLevel"]):
        return "gpt2" if own_pattern else None
    if own_pattern or any(kind != "Split" for kind in steps[:-1]):
        return None
    patterns = [_pattern_of(step) for step in definition.pre_tokenizers[:-1]]
    if patterns == list(DEEPSEEK_PATTERNS):
        return "deepseek"
    if len(patterns) == 1:
        return next((name for name, pattern in SPLIT_PATTERNS.items() if pattern == patterns[0]), None)
    return None


def _pattern_of(step: dict[str, object]) -> str | None:
    """The regular expression of a Split that keeps every match and every gap as a pre-token, else None."""
    pattern = step.get("pattern")
    whole = (step.get("behavior"), bool(step.get("invert"))) in (("Isolated", False), ("Removed", True))
    return pattern.get("Regex") if whole and isinstance(pattern, dict) else None


@dataclass(frozen=True)
class CutRule:
    """The safe cuts of one tokenizer, found by one search."""

    pattern: re.Pattern[bytes]

    def find(self, text: bytes, start: int, stop: int | None = None) -> int:
        """The first safe cut of `text` (UTF-8) behind byte `start` and not behind `stop`, or -1."""
        found = self.pattern.search(text, start) if stop is None else self.pattern.search(text, start, stop)
        return found.end() if found and found.end() < len(text) else -1

    def pieces(self, text: bytes, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Cut `text` at the first safe place after every `size` bytes; a stretch without one stays whole."""
        begin = 0
        while len(text) - begin > size and (cut := self.find(text, begin + size)) > 0:
            yield text[begin:cut]
            begin = cut
        yield text[begin:] if begin else text


def rule_for(definition: Definition) -> CutRule | None:
    """The rule for a tokenizer, or None where its structure is not recognized: its texts must stay whole."""
    name = structure(definition)
    allowed = UNICODE_FORMS | {"Lowercase"} | ({"BertNormalizer", "StripAccents"} if name == "bert" else set())
    if name is None or any(step.get("type") not in allowed for step in definition.normalizers):
        return None
    if any(token.absorbs and _touches_cuts(token.content) for token in definition.active):
        return None
    kinds = [kind for kind in _KINDS if not any(_SPLITS[kind].search(token.content) for token in definition.added)]
    if name == "bert" and "digit" in kinds:
        kinds.remove("digit")
    return CutRule(re.compile(b"|".join(_KINDS[kind] for kind in kinds))) if kinds else None


def _touches_cuts(content: str) -> bool:
    """Whether a cut may fall right beside a token, whose lstrip, rstrip or single_word would look across it."""
    return not content or _EDGE.match(content[0]) is not None or _EDGE.match(content[-1]) is not None
