"""Short texts on which two engines' tables of Unicode must agree, character by character.

Byte-level engines can only differ in how they class characters (letter, digit, mark, white space, newline, ...) and,
where the tokenizer normalizes, in decompositions, compositions and combining classes. Each text brings one character
into the places where a class decides a boundary; where the tokenizer normalizes, further texts bring it together with
the characters that a normalization form would reorder or compose it with.
"""

from __future__ import annotations

import unicodedata
from functools import cache

# Ideographs and Hangul syllables, which are most of Unicode, are no marks, and only arithmetic composes them.
_LETTERS_AND_MARKS = (*range(0xC0, 0x3400), *range(0xA000, 0xAC00), *range(0xF900, 0x20000))

_FRAGMENT = "a{c}b {c} 1{c}2{c}{c}!{c}\n{c} \n.{c}x'{c} B{c}D'l{c}  {c}{c}\n"


def fragments(char: str, normalizes: bool) -> str:
    """A text that shows every class the known patterns ask a character for."""
    text = _FRAGMENT.format(c=char)
    return text + normal_forms(char) if normalizes else text


def normal_forms(char: str) -> str:
    """The character's part in normalization: its own forms, its compositions and its order among marks."""
    parts = [unicodedata.normalize("NFD", char)]
    parts += [f"q{first}{char}q" for first in _composes_with().get(char, "")]
    if unicodedata.combining(char):
        parts += [f"a{char}{mark}b{mark}{char}" for mark in _one_mark_per_class()]
    if "\u1161" <= char <= "\u1175":
        parts += [f"\u1100{char} \u1112{char}\u11a8 "]
    if "\u11a7" <= char <= "\u11c2":
        parts += [f"\uac00{char} \u1112\u1175{char} "]
    return "".join(parts)


def decomposed(char: str) -> set[str]:
    """The other characters that the canonical decomposition makes of `char`."""
    return set(unicodedata.normalize("NFD", char)) - {char}


def unassigned(char: str) -> bool:
    """Whether `unicodedata` knows no properties of `char`, so that its part in normalization cannot be listed."""
    return unicodedata.category(char) == "Cn"


@cache
def _composes_with() -> dict[str, str]:
    """For a character, those it makes a canonical composition with when it comes second."""
    firsts: dict[str, str] = {}
    for point in _LETTERS_AND_MARKS:
        parts = unicodedata.decomposition(chr(point)).split(" ")
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            firsts[second] = firsts.get(second, "") + first
    return firsts


@cache
def composing_firsts() -> frozenset[str]:
    """The characters that make a canonical composition with some character after them."""
    return frozenset("".join(_composes_with().values()))


@cache
def _one_mark_per_class() -> str:
    """A mark of each canonical combining class: a character's order against all of them tells its class.

    They are taken from Unicode 3.2, which every engine knows: a mark that one engine does not know would make every
    other mark look divergent.
    """
    marks: dict[int, str] = {}
    for point in _LETTERS_AND_MARKS:
        ccc = unicodedata.ucd_3_2_0.combining(chr(point))
        if ccc and ccc == unicodedata.combining(chr(point)) and ccc not in marks:
            marks[ccc] = chr(point)
    return "".join(marks.values())
