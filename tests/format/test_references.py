"""Secrets that options name instead of holding."""

from __future__ import annotations

from pathlib import Path

import pytest

from pileshard.errors import OptionError
from pileshard.format.filesystems import open_filesystem
from pileshard.format.references import resolved


def test_variables_and_files_are_read_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET", "value of it")
    (tmp_path / "key").write_text("text of it\n")
    given = {"secret": "env:STORE_SECRET", "client_kwargs": {"key": f"file:{tmp_path}/key", "n": 1}, "anon": False}
    assert resolved(given) == {
        "secret": "value of it",
        "client_kwargs": {"key": "text of it", "n": 1},
        "anon": False,
    }
    assert given["secret"] == "env:STORE_SECRET"


@pytest.mark.parametrize("value", ["environment", "file:///a/b", "file://host/x", "filename", "", "s3://bucket/env:x"])
def test_all_else_is_taken_as_it_is(value: str) -> None:
    assert resolved({"option": value}) == {"option": value}


@pytest.mark.parametrize("value", ["env:PILESHARD_NO_SUCH_VARIABLE", "file:/no/such/file"])
def test_what_is_not_there_is_named(value: str) -> None:
    with pytest.raises(OptionError, match=f"secret={value}"):
        open_filesystem("memory://x/y", {"secret": value})
