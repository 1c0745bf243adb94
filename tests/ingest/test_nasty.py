"""The shared nasty inputs, each with the outcome that is expected of it."""

from __future__ import annotations

import json

import pytest

from pileshard.errors import InputError
from pileshard.ingest import line_blocks
from tests.ingest.samples import account_of
from tests.paths import SHARED, needs_shared

EXPECT = json.loads((SHARED / "nasty" / "expect.json").read_text()) if SHARED else {}

# The file has five lines, all of them good: four with odd numbers and a plain one. The expected account, four accepted
# and none rejected, leaves one line out, which no closed account can do.
UNCLOSED = {"nan.jsonl.zst": "expect.json accounts for 4 of its 5 lines"}


NAMES = [
    pytest.param(name, marks=pytest.mark.xfail(reason=UNCLOSED[name], strict=True) if name in UNCLOSED else ())
    for name in EXPECT
]


def account(name):
    assert SHARED is not None
    with (SHARED / "nasty" / name).open("rb") as raw:
        return account_of(line_blocks(raw, name))


@needs_shared
@pytest.mark.parametrize("name", NAMES)
def test_nasty_input_has_the_expected_outcome(name):
    expected = EXPECT[name]
    if expected["outcome"] == "source_error":
        with pytest.raises(InputError) as raised:
            account(name)
        assert raised.value.url == name
        return
    got = account(name)
    assert (len(got.texts), got.reasons) == (expected["accepted"], expected["rejected"])


@needs_shared
def test_every_line_with_numbers_out_of_range_is_accepted():
    got = account("nan.jsonl.zst")
    assert got.texts == [b"nan", b"inf", b"big", b"int", b"first document"]
    assert (got.total, got.blank, got.rejections) == (5, 0, [])
