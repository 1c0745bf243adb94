"""What is published of a URL holds no credential."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pileshard.audit.redact import public_text, public_url

WORD = st.text("abcXYZ019-_.~%", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("/data/a.jsonl.zst", "/data/a.jsonl.zst"),
        ("/data/what?is#this@here.zst", "/data/what?is#this@here.zst"),
        ("s3://bucket/a b.zst", "s3://bucket/a b.zst"),
        ("s3://KEY:SECRET@bucket/a.zst", "s3://bucket/a.zst"),
        ("https://user@host:8080/a.zst", "https://host:8080/a.zst"),
        ("https://host/a.zst?X-Amz-Signature=0f#top", "https://host/a.zst"),
        ("https://me:p/a?s@s@host/a.zst?x=1", "https://host/a.zst"),
        ("abfs://container@account.dfs.core.windows.net/a.zst", "abfs://container@account.dfs.core.windows.net/a.zst"),
        ("abfs://me:KEY@account.dfs.core.windows.net/a.zst", "abfs://account.dfs.core.windows.net/a.zst"),
        ("https://host:443/~me@home/a.zst", "https://host:443/~me@home/a.zst"),
        ("zip://a.jsonl::https://me:pw@host/a.zip?sig=1", "zip://a.jsonl::https://host/a.zip"),
        ("HTTPS://me:pw@Host/a", "HTTPS://Host/a"),
    ],
)
def test_user_password_and_query_are_left_out(url: str, public: str) -> None:
    assert public_url(url) == public
    assert public_url(public) == public


@given(WORD, WORD, WORD)
def test_no_password_or_query_is_left(user: str, password: str, value: str) -> None:
    url = f"https://{user}:PW{password}@host.example/file?sig=SIG{value}"
    assert public_url(url) == "https://host.example/file"


def test_urls_within_a_sentence_are_made_public() -> None:
    text = "https://me:pw@host/a.zst?sig=1: damaged at byte 7 (see 's3://k:s@b/x')"
    assert public_text(text) == "https://host/a.zst: damaged at byte 7 (see 's3://b/x')"
