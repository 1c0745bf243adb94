"""Reading from remote file systems: what is tried again, how often, and when an answer is too short to be believed.

The clients below fsspec retry some faults themselves, each in its own way; none of them compares the length of an
answer with what was asked for, and most wait for ever on a server that stalls. So every request goes through `attempts`
here: a transient fault is tried again after a growing, jittered pause, a bounded number of times, and then told in one
sentence.
"""

from __future__ import annotations

import errno
import io
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pileshard.errors import DatasetError, PileshardError

if TYPE_CHECKING:
    from pileshard.format.storage import Storage

T = TypeVar("T")

#: Bytes of one request, at most: what a slow link (1 Mbit/s) carries within the time limit of an attempt.
REQUEST_BYTES = 8 << 20

_STATUS_AGAIN = {408, 425, 429}
_FINAL_ERRORS = (
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    PileshardError,
)
_FINAL_ERRNOS = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.EROFS}
#: Errors of the stores' client libraries that speak of the connection, by name: they need not be installed.
_CONNECTION_ERRORS = {
    "aiohttp.client_exceptions.ClientError",
    "aiohttp.http_exceptions.HttpProcessingError",
    "azure.core.exceptions.IncompleteReadError",
    "azure.core.exceptions.ServiceRequestError",
    "azure.core.exceptions.ServiceResponseError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.IncompleteReadError",
    "botocore.exceptions.ResponseStreamingError",
    "fsspec.exceptions.FSTimeoutError",
    "gcsfs.retry.ChecksumError",
    "google.auth.exceptions.TransportError",
    "http.client.HTTPException",
}


@dataclass(frozen=True)
class Retry:
    """How often and how long a remote read is tried.

    Attributes:
      attempts: in all.
      pause: seconds before the second attempt; doubled before each further one, and cut by up to half at random.
      longest_pause: seconds.
      timeout: seconds that one attempt may take, where the file system can be interrupted.
    """

    attempts: int = 5
    pause: float = 0.5
    longest_pause: float = 20.0
    timeout: float = 60.0

    def before(self, attempt: int) -> float:
        """Seconds to wait before an attempt, counted from 0."""
        longest = min(self.longest_pause, self.pause * 2.0 ** (attempt - 1))
        return longest * (1 - random.random() / 2)


class WrongLength(Exception):  # noqa: N818
    """An answer is shorter or longer than what was asked for."""


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, WrongLength):
        return True
    if isinstance(error, _FINAL_ERRORS):
        return False
    status = _status(error)
    if status is not None:
        return status in _STATUS_AGAIN or status >= 500
    if isinstance(error, TimeoutError | ConnectionError | EOFError):
        return True
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if names & _CONNECTION_ERRORS or "TimeoutError" in type(error).__name__:
        return True
    if isinstance(error, OSError):
        # gcsfs tells 403 by an OSError without a number.
        return error.errno not in _FINAL_ERRNOS and not str(error).startswith("Forbidden")
    return False


def _status(error: BaseException) -> int | None:
    """The status of an HTTP answer that an error of any client library speaks of."""
    response = getattr(error, "response", None)
    found: Any = None
    if isinstance(response, dict):  # botocore
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    for name in ("status", "status_code", "code"):
        found = getattr(error, name, None) if found is None else found
    try:
        number = int(found)
    except (TypeError, ValueError):
        return None
    return number if 100 <= number < 600 else None


def attempts(
    request: Callable[[], T], where: Callable[[], str], retry: Retry, stopped: Callable[[float], bool] | None = None
) -> T:
    """Runs a request until it succeeds, at most `retry.attempts` times.

    Args:
      request: what to run.
      where: the URL, and the place in it, for messages.
      retry: how often.
      stopped: waits for some seconds instead of `time.sleep`, and tells whether to give up.

    Raises:
      FileNotFoundError: as the request does.
      DatasetError: the last error, once the attempts are used up; any other error at once.
    """
    attempt = 0
    while True:
        try:
            return request()
        except (FileNotFoundError, NotADirectoryError, NotImplementedError, PileshardError):
            raise
        except Exception as error:
            attempt += 1
            if not is_transient(error):
                hint = "; check the credentials" if isinstance(error, PermissionError) else ""
                raise DatasetError(f"{where()}: cannot be read: {describe(error)}{hint}") from error
            if attempt >= retry.attempts:
                raise DatasetError(
                    f"{where()}: cannot be read after {attempt} attempts; the last error: {describe(error)}"
                ) from error
            pause = retry.before(attempt)
            if stopped is None:
                time.sleep(pause)
            elif stopped(pause):
                raise


def describe(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    if not text and isinstance(error, TimeoutError):
        return "no answer in time"
    name = type(error).__name__
    if len(text) > 300:
        text = text[:300] + "..."
    return f"{name}: {text}" if text and not isinstance(error, WrongLength) else text or name


class RangeFile(io.RawIOBase):
    """A remote file for reading, each part fetched by a checked and repeated range read."""

    def __init__(self, storage: Storage, relative: str, size: int) -> None:
        self._storage = storage
        self._relative = relative
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset; nothing is fetched."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative offset {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fetches into a buffer."""
        view = memoryview(buffer).cast("B")
        end = min(self._size, self._at + min(len(view), REQUEST_BYTES))
        if end <= self._at:
            return 0
        data = self._storage.read_range(self._relative, self._at, end)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
