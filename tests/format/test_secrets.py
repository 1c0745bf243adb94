"""What is secret is not shown, and what is not stays readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pileshard.format import secrets
from pileshard.format.filesystems import open_filesystem
from pileshard.format.retry import describe
from pileshard.format.secrets import redact, secret_in_url


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", set())


_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"ValueError: AccountName=x;AccountKey={_KEY};BlobEndpoint=http://h/x", _KEY),
        ("https://h.blob.core.windows.net/c/f?sv=2024&se=2026&sig=a%2Fb%3D&sp=r", "a%2Fb%3D"),
        ("GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA1&X-Amz-Signature=0f0f0f", "0f0f0f"),
        ("GET https://b.s3.amazonaws.com/k?X-Amz-Credential=AKIA1&X-Amz-Signature=0f0f0f", "AKIA1"),
        ("https://storage.googleapis.com/b/o?X-Goog-Signature=77aa77aa&x=1", "77aa77aa"),
        ("headers: {'Authorization': 'Bearer ya29.abcdef', 'Accept': '*/*'}", "ya29.abcdef"),
        ("ftp://me:pass-word@host/x cannot be reached", "pass-word"),
        ("proxy http://me:pass-word@proxy:3128", "pass-word"),
    ],
)
def test_secrets_of_known_shapes_are_hidden_whoever_wrote_them(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
    assert "***" in redact(text)
    assert secret not in describe(ValueError(text))


@pytest.mark.parametrize(
    "text",
    [
        "/home/user/corpus/00.jsonl.zst: no such file",
        "--special-tokens=token: is none of text, token, reject",
        "s3://bucket/pile/shards/ArXiv/train-00000-of-00012.tfrecord: cannot be read after 8 attempts",
        "abfs://container@account.dfs.core.windows.net/pile: not found",
        "3 tokens=5 of 9; line 4: invalid_json",
        "ends at byte 1,234 (sha256 0123456789abcdef)",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "wJalrXUtnFEMI/K7MDENG"},
        {"token": {"private_key": "wJalrXUtnFEMI/K7MDENG"}},
        {"client_kwargs": {"headers": {"x-key": "wJalrXUtnFEMI/K7MDENG"}}},
        {"connection_string": "AccountName=me;AccountKey=wJalrXUtnFEMI/K7MDENG;EndpointSuffix=core.windows.net"},
        {"password": "wJalrXUtnFEMI/K7MDENG"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_storage_options_are_secret_once_they_were_used(options: dict[str, Any]) -> None:
    open_filesystem("memory://x/y", {**options, "skip_instance_cache": True})
    for text in ("wJalrXUtnFEMI/K7MDENG", "a?k=wJalrXUtnFEMI%2FK7MDENG"):
        assert "wJalrXUtnFEMI" not in redact(f"the server said {text} and closed")


def test_addresses_and_names_of_files_among_the_options_stay_readable(tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text("{}")
    options = {"endpoint_url": "http://127.0.0.1:9000", "project": "my-project", "token": str(tmp_path / "key.json")}
    secrets.remember(options)
    text = f"no answer from http://127.0.0.1:9000 for my-project with {tmp_path / 'key.json'}"
    assert redact(text) == text


def test_what_clients_take_from_the_environment_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment-secret-1")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=me;AccountKey=environment-secret-2;X=y")
    text = redact("tried environment-secret-1, then environment-secret-2")
    assert "environment-secret" not in text


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3://key:secret@bucket/x", "a password"),
        ("https://h/c/f.zst?sv=1&sig=abc", "a signature"),
        ("https://h/f.zst?X-Amz-Signature=abc", "a signature"),
        ("abfs://container@account/x", None),
        ("s3://bucket/x?versionId=3", None),
        ("/data/odd?sig=x/file", None),
        ("gs://bucket/user:x@y/f", None),
    ],
)
def test_urls_that_hold_secrets_are_known(url: str, what: str | None) -> None:
    assert secret_in_url(url) == what
