"""Takes what may be secret out of URLs before they are published: users, passwords, signed queries."""

from __future__ import annotations

import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]*[^\s'\"<>:.,;)]")
_AUTHORITY = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)")


def public_url(url: str) -> str:
    """A URL without user, password, query and fragment; a path of this machine stays as it is.

    >>> public_url("https://me:secret@host/a.jsonl.zst?X-Amz-Signature=0f")
    'https://host/a.jsonl.zst'
    """
    return "::".join(_one(part) for part in url.split("::")) if "://" in url else url


def public_text(text: str) -> str:
    """A sentence with every URL in it made public."""
    return _URL.sub(lambda match: public_url(match[0]), text)


def _one(url: str) -> str:
    match = _AUTHORITY.match(url)
    if match is None:
        return url
    scheme, authority = match.groups()
    rest = url[match.end() :]
    # A password may itself hold a slash or a question mark that nobody escaped: then the last @ of all ends it.
    if "@" not in authority and "@" in rest and ":" in authority and not _port(authority):
        authority, rest = "", rest[rest.rindex("@") + 1 :]
    # abfs://container@account/... names no user before the @.
    if not (scheme.startswith(("abfs", "wasb")) and ":" not in authority):
        authority = authority.rpartition("@")[2]
    return scheme + authority + re.split(r"[?#]", rest, maxsplit=1)[0]


def _port(authority: str) -> bool:
    return authority.rpartition(":")[2].isdecimal()
