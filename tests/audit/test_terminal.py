"""Texts of a corpus never steer the terminal that shows them, and stay as they are everywhere else."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.audit.tables import columns, table
from pileshard.audit.terminal import Display
from tests.built import document, run_build, write_input

NASTY = "\x1b[2J\x1b]0;title\x07 a\rb\x08c \x9b31m \x85 \x7f \u202eabc\u2066 \u2028 tab\tline\nend"
SEEN = "\\x1b[2J\\x1b]0;title\\x07 a\\rb\\x08c \\x9b31m \\x85 \\x7f \\u202eabc\\u2066 \\u2028 tab\tline\nend"


class _Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def test_colours_are_for_terminals_that_want_them() -> None:
    assert Display.of(_Stream(False), {}) == Display(False, False)
    assert Display.of(_Stream(True), {"TERM": "xterm"}) == Display(True, True)
    assert Display.of(_Stream(True), {"NO_COLOR": "1"}) == Display(True, False)
    assert Display.of(_Stream(True), {"NO_COLOR": ""}) == Display(True, True)
    assert Display.of(_Stream(True), {"TERM": "dumb"}) == Display(True, False)
    assert Display(True, True).head("x") == "\x1b[36mx\x1b[0m"
    assert Display(True, False).head("x\x1b") == "x\\x1b"


def test_control_characters_become_visible_on_a_terminal_alone() -> None:
    assert Display(True).text(NASTY) == SEEN
    assert Display().text(NASTY) == NASTY


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_on_a_terminal_is_the_same_json(text: str) -> None:
    shown = Display(True).json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(shown) == {"text": text}
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066\u061c" for c in shown)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nasty")
    path = write_input(folder / "in.jsonl.zst", [document(NASTY, "\x1b[31mred"), document("plain " * 50, "Prose")])
    run_build(folder / "dataset", [path])
    return folder / "dataset"


def _on_a_terminal(args: list[str], **environ: str) -> str:
    """What a command writes to a terminal of its own."""
    code = "import sys; from pileshard.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **environ}
    terminal, inside = pty.openpty()
    command = [sys.executable, "-c", code, *args]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment)
    os.close(inside)
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so that the other side is closed
            break
        if not piece:
            break
        said += piece
    os.close(terminal)
    assert process.wait() == 0, said
    return said.decode()


def _steers(text: str) -> bool:
    return any((ord(c) < 32 and c not in "\r\n\t") or 127 <= ord(c) < 160 or c in "\u202e\u2066" for c in text)


def test_no_text_steers_a_real_terminal(nasty: Path) -> None:
    args = ["inspect", str(nasty), "--shard", "0", "--shard", "1", "--find", "--document", "0:1"]
    args += ["--position", "0", "--seq-len", "16", "--weights", '{"\\u001b[31mred": 1}']
    said = _on_a_terminal(args)
    assert said.count("\x1b[36m---") >= 5
    assert said.count("\x1b[33m=== end of document\x1b[0m") >= 2
    for colour in ("\x1b[36m", "\x1b[33m", "\x1b[0m"):
        said = said.replace(colour, "")
    assert said.count("\\x1b[2J") >= 3
    assert not _steers(said)
    assert _on_a_terminal(args, NO_COLOR="1") == said
    shown = _on_a_terminal([*args, "--json"])
    assert not _steers(shown)
    views = [json.loads(line) for line in shown.splitlines()]
    assert len(views) == 5
    assert NASTY in [view.get("text") for view in views]


def test_columns_of_tables_are_straight_whatever_the_script() -> None:
    lines = table(["source", "tokens"], [["日本語 🦊", 1], ["e\u0301te\u0301", 23], ["ArXiv", 456]]).split("\n")
    assert [columns(line) for line in lines] == [17, 17, 17, 17]
