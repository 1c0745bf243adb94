"""URLs and globs -> the sorted list of inputs of a build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from fsspec.implementations.local import LocalFileSystem

from pileshard.errors import BuildError, OptionError, StorageError
from pileshard.format.filesystems import open_filesystem
from pileshard.format.identity import MAX_INPUT
from pileshard.format.local_files import is_there
from pileshard.format.remote import version_of
from pileshard.format.retry import LocalAttempts, Retry, attempts, describe
from pileshard.format.storage import open_url
from pileshard.ingest.frames import container_of
from pileshard.ingest.stored import StoredBytes

if TYPE_CHECKING:
    from beam_jobs.job import Job

_MAGIC = set("*?[")

_T = TypeVar("_T")


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

    @property
    def state(self) -> str:
        """What the file was like: two files of one name and another content have another state, as far as is known."""
        return f"{self.size} {self.version}"


def _glob(fs: Any, path: str) -> list[str]:
    """What a pattern names. A directory that cannot be listed is an error: fsspec would pass over its files."""
    if not isinstance(fs, LocalFileSystem):
        return list(fs.glob(path))
    try:
        return list(fs.glob(path, on_error="raise"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _ask(fs: Any, pattern: str, retry: Retry, request: Callable[[], _T]) -> _T:
    if isinstance(fs, LocalFileSystem):
        return LocalAttempts(retry).run(request, pattern)
    return attempts(request, lambda: pattern, retry)


def check_not_empty(job: Job) -> None:
    """Meets empty inputs at once: the smallest are read last, perhaps hours later.

    Raises:
      InputError: an input is empty, and is not to be left out.
    """
    for entry in job.record.inputs:
        if not entry.size and job.on_bad_input == "fail":  # some servers do not tell a size
            with open_url(entry.url, job.storage_options, retry=job.retry) as file:
                container_of(StoredBytes(file), entry.url)


def expand(
    patterns: Sequence[str], storage_options: dict[str, Any] | None = None, retry: Retry | None = None
) -> list[InputFile]:
    """Finds the inputs that URLs, paths and globs name.

    Args:
      patterns: fsspec URLs; `*`, `?` and `[` make a glob.
      storage_options: fsspec's.
      retry: how often and how long storage is asked where a fault may pass.

    Returns:
      The inputs sorted by URL, so that the order on the command line does not matter.

    Raises:
      OptionError: a pattern names nothing, a directory, or a file that another one named already.
    """
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        try:
            fs, path = open_filesystem(pattern, storage_options)
            ask = partial(_ask, fs, pattern, retry or Retry())
            exact = isinstance(fs, LocalFileSystem) and ask(partial(is_there, path))
            paths = [path] if exact or not _MAGIC & set(path) else sorted(ask(partial(_glob, fs, path)))
        except OptionError as error:
            raise OptionError(f"--input {error}") from None
        except ValueError as error:
            raise OptionError(f"--input {pattern}: {error}") from None
        if not paths:
            raise OptionError(f"--input {pattern}: no file matches")
        local = isinstance(fs, LocalFileSystem)
        for name in paths:
            try:
                info = ask(partial(fs.info, name))
            except FileNotFoundError:
                raise OptionError(f"--input {pattern}: no such file") from None
            except (OSError, StorageError) as error:
                raise BuildError(f"--input {pattern}: cannot be looked at ({describe(error)})") from None
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
            found[url] = InputFile(url=url, size=int(info["size"] or 0), version=version_of(info))
    if not found:
        raise OptionError(f"--input {' '.join(patterns)}: no file matches")
    if len(found) > MAX_INPUT:
        raise OptionError(f"--input: {len(found):,} files are more than the {MAX_INPUT:,} that a dataset can name")
    return [found[url] for url in sorted(found)]
