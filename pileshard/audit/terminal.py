"""How a corpus's texts are shown: in colour on a terminal that wants it, and never so that they steer the terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

#: What a terminal takes for commands, and what turns the direction of the text around it; lines and tabs stay.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_CYAN, _YELLOW, _RESET = "\x1b[36m", "\x1b[33m", "\x1b[0m"


@dataclass(frozen=True)
class Display:
    """Where text goes.

    Attributes:
      terminal: whether it is one; elsewhere texts stay as they are, byte for byte.
      colours: whether headings and marks are coloured.
    """

    terminal: bool = False
    colours: bool = False

    @staticmethod
    def of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Display:
        """The display behind a stream; `NO_COLOR` (https://no-color.org) and `TERM=dumb` are respected."""
        terminal = stream.isatty()
        return Display(terminal, terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb")

    def text(self, text: str) -> str:
        """A text; on a terminal its control characters are written as escapes."""
        if not self.terminal:
            return text
        return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)

    def json(self, text: str) -> str:
        """JSON; on a terminal control characters in its strings become JSON's own escapes."""
        if not self.terminal:
            return text
        return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

    def head(self, text: str) -> str:
        """A heading."""
        return self._coloured(_CYAN, text)

    def mark(self, text: str) -> str:
        """Something that is not in the text, such as the end of a document."""
        return self._coloured(_YELLOW, text)

    def _coloured(self, colour: str, text: str) -> str:
        text = self.text(text)
        return f"{colour}{text}{_RESET}" if self.colours else text
