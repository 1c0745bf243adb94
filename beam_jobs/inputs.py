"""URLs and globs -> the sorted list of inputs of a build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec
from fsspec.implementations.local import LocalFileSystem

from pileshard.errors import BuildError, OptionError
from pileshard.format.identity import MAX_INPUT
from pileshard.format.storage import open_filesystem

_MAGIC = set("*?[")
_VERSION_KEYS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
)


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """An input before it is read.

    Attributes:
      url: what opens it.
      size: stored bytes.
      version: what its file system tells apart versions by (ETag, generation, time of change), or "".
    """

    url: str
    size: int
    version: str


def _version(info: dict[str, Any]) -> str:
    return next((f"{key}={info[key]}" for key in _VERSION_KEYS if info.get(key) is not None), "")


def expand(patterns: Sequence[str], storage_options: dict[str, Any] | None = None) -> list[InputFile]:
    """Finds the inputs that URLs, paths and globs name.

    Args:
      patterns: fsspec URLs; `*`, `?` and `[` make a glob.
      storage_options: fsspec's.

    Returns:
      The inputs sorted by URL, so that the order on the command line does not matter.

    Raises:
      OptionError: a pattern names nothing, a directory, or a file that another one named already.
    """
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        try:
            fs, path = open_filesystem(pattern, storage_options)
            exact = isinstance(fs, LocalFileSystem) and os.path.exists(path)
            paths = [path] if exact or not _MAGIC & set(path) else sorted(fs.glob(path))
        except OptionError as error:
            raise OptionError(f"--input {error}") from None
        except ValueError as error:
            raise OptionError(f"--input {pattern}: {error}") from None
        if not paths:
            raise OptionError(f"--input {pattern}: no file matches")
        local = isinstance(fs, LocalFileSystem)
        for name in paths:
            try:
                info = fs.info(name)
            except FileNotFoundError:
                raise OptionError(f"--input {pattern}: no such file") from None
            except OSError as error:
                raise BuildError(f"--input {pattern}: cannot be looked at ({error})") from None
            if info["type"] == "directory":
                if len(paths) > 1:
                    continue
                raise OptionError(f"--input {pattern}: is a directory; name its files ({pattern.rstrip('/')}/*.zst)")
            url = name if local else fs.unstrip_protocol(name)
            try:
                url.encode()
            except UnicodeEncodeError:
                raise OptionError(f"--input {pattern}: the name {url!r} is not UTF-8; rename the file") from None
            if url in found:
                raise OptionError(f"--input {pattern}: {url} is named twice")
            found[url] = InputFile(url=url, size=int(info["size"] or 0), version=_version(info))
    if not found:
        raise OptionError(f"--input {' '.join(patterns)}: no file matches")
    if len(found) > MAX_INPUT:
        raise OptionError(f"--input: {len(found):,} files are more than the {MAX_INPUT:,} that a dataset can name")
    return [found[url] for url in sorted(found)]
