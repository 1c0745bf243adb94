"""Keeps credentials out of all that is written or shown.

What a user gives as a storage option, and what the clients take from the environment, may come back in the text of an
error: in a connection string, a signed URL, a header. Every text of foreign origin goes through `redact` before it is
shown, logged or left in a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "***"

#: Options that hold no secret, so that addresses stay readable in errors.
_OPEN_OPTIONS = {
    *("endpoint_url", "region_name", "region", "project", "account_name", "anon", "version_aware", "use_ssl"),
    *("default_block_size", "default_fill_cache", "default_cache_type", "requester_pays", "asynchronous", "host"),
    *("type", "protocol", "port", "verify", "signature_version", "addressing_style", "access", "consistency"),
    *("skip_instance_cache", "use_listings_cache", "location", "timeout", "target_protocol", "username", "user"),
}
_SECRET_VARIABLE = re.compile(r"(SECRET|TOKEN|PASSWORD|PASSWD|ACCOUNT_KEY|ACCESS_KEY|SAS|CONNECTION_STRING|CREDENTIAL)")
_STORE_VARIABLE = re.compile(r"^(AWS|AZURE|GOOGLE|GCS|FSSPEC|S3|MINIO)_")
#: What is shorter would blank out half of every message, and is no secret.
_SHORTEST = 6
_WORDS = {"google_default", "browser"}

#: Parts of texts that are secret whoever wrote them: (what stays, what goes).
_SHAPES = (
    re.compile(r"((?:AccountKey|SharedAccessSignature|SharedAccessKey)=)[^;\s'\"]+", re.I),
    re.compile(
        r"((?:[?&;]|%26|\b)(?:sig|signature|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature"
        r"|x-goog-credential|awsaccesskeyid|access_token|token|secret|password)=)[^&;\s'\"]+",
        re.I,
    ),
    re.compile(r"((?:authorization|x-amz-security-token)['\"]?\s*[:=]\s*['\"]?)[^'\",}]+", re.I),
    re.compile(r"(\w://[^/\s:@'\"]*:)[^/\s@'\"]+(?=@)"),
)
_SIGNED = re.compile(
    r"[?&](sig|signature|x-amz-signature|x-goog-signature|x-amz-security-token|access_token|token)=", re.I
)
_USERINFO = re.compile(r"^\w+://[^/@:]*:[^/@]+@")

_known: set[str] = set()


def remember(options: Mapping[str, Any]) -> None:
    """Takes the values of storage options as secret from now on, in this process."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            remember(value)
        elif isinstance(value, str) and str(name).lower() not in _OPEN_OPTIONS:
            _known.update(_parts(value))


def redact(text: str) -> str:
    """The text with everything secret in it replaced by `***`."""
    for secret in sorted({*_known, *_of_environment()}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for shape in _SHAPES:
        text = shape.sub(rf"\g<1>{HIDDEN}", text)
    return text


def _of_environment() -> set[str]:
    named = (os.environ[name] for name in os.environ if _STORE_VARIABLE.match(name) and _SECRET_VARIABLE.search(name))
    return {part for value in named for part in _parts(value)}


def _parts(value: str) -> set[str]:
    """A secret as it may occur in a text: itself, as part of a URL, and the keys of a connection string alone."""
    if len(value) < _SHORTEST or value in _WORDS or os.path.exists(value):  # names of files are needed in errors
        return set()
    keys = re.findall(r"(?:AccountKey|SharedAccessSignature|SharedAccessKey)=([^;]+)", value)
    return {value, *keys, *(quote(part, safe="") for part in (value, *keys))}


def secret_in_url(url: str) -> str | None:
    """What of a URL is a credential: "a password" or "a signature"; None where nothing is."""
    if _USERINFO.match(url):
        return "a password"
    return "a signature" if "://" in url and _SIGNED.search(url) else None
