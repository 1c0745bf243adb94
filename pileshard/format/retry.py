"""What is tried again, how often, for how long, and how it is told.

A fault of storage is transient where the same request may succeed a little later (a server that is busy or restarts, a
connection that was cut, `EIO` and `ESTALE` of a network mount, an answer of another length), and lasting where it will
not without a person (no space, no quota, no permission, a read-only mount, a name that is no file). Transient ones are
tried again after a growing, jittered pause, a bounded number of times; each is counted and logged.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pileshard.errors import PileshardError, StorageError
from pileshard.format.secrets import redact

T = TypeVar("T")

#: How often what is lasting elsewhere is tried where it may pass.
_MORE_ATTEMPTS = 3

_log = logging.getLogger("pileshard.storage")

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
#: What only a person can mend. Every other error of the system may pass: mounts invent many.
_FINAL_ERRNOS = {
    getattr(errno, name)
    for name in (
        *("ENOENT", "EACCES", "EPERM", "EINVAL", "EISDIR", "ENOTDIR", "EEXIST", "ENOTEMPTY", "EXDEV", "ELOOP"),
        *("ENOSPC", "EDQUOT", "EROFS", "EFBIG", "ENAMETOOLONG", "EMFILE", "ENFILE", "EMLINK", "EBADF", "ENOSYS"),
        *("ENODEV", "ENXIO", "EOPNOTSUPP", "EOVERFLOW", "ESPIPE", "EFAULT"),
    )
    if hasattr(errno, name)
}
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
    """How often and how long a request is tried.

    Attributes:
      attempts: in all.
      pause: seconds before the second attempt; doubled before each further one, and cut by up to half at random.
      longest_pause: seconds.
      timeout: seconds that one attempt may take, where the file system can be interrupted.
      patience: seconds from the first attempt after which none is begun any more, but for the first three.
    """

    attempts: int = 5
    pause: float = 0.5
    longest_pause: float = 20.0
    timeout: float = 60.0
    patience: float = 300.0

    @classmethod
    def within(cls, seconds: float) -> Retry:
        """Eight attempts whose pauses take at most so many seconds together, each twice the one before."""
        return cls(attempts=8, pause=seconds / 127, longest_pause=seconds, patience=60.0 + 2 * seconds)

    def is_over(self, attempt: int, began: float) -> bool:
        """Whether patience is at its end after so many attempts, the first begun at a time of `time.monotonic`."""
        return attempt >= _MORE_ATTEMPTS and time.monotonic() - began > self.patience

    def before(self, attempt: int) -> float:
        """Seconds to wait before an attempt, counted from 0."""
        longest = min(self.longest_pause, self.pause * 2.0 ** (attempt - 1))
        return longest * (1 - random.random() / 2)


class WrongLength(Exception):  # noqa: N818
    """An answer is shorter or longer than what was asked for."""


class Retries:
    """How often requests were tried again, by fault. Threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, fault: str) -> None:
        """Counts one more."""
        with self._lock:
            self._counts[fault] += 1

    @property
    def total(self) -> int:
        """All of them."""
        with self._lock:
            return self._counts.total()

    def by_fault(self) -> dict[str, int]:
        """The counts, by name of the fault (`EIO`, `503`, ...)."""
        with self._lock:
            return dict(sorted(self._counts.items()))


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, WrongLength):
        return True
    if isinstance(error, _FINAL_ERRORS) or getattr(error, "tried_again", False):
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


def fault_name(error: BaseException) -> str:
    """A short name for counting: `EIO`, `503`, or the error's class."""
    status = _status(error)
    if status is not None:
        return str(status)
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)


def attempts(
    request: Callable[[], T],
    where: Callable[[], str],
    retry: Retry,
    stopped: Callable[[float], bool] | None = None,
    *,
    retries: Retries | None = None,
    what: str = "read",
    also: tuple[type[BaseException], ...] = (),
) -> T:
    """Runs a request to remote storage until it succeeds, at most `retry.attempts` times.

    Args:
      request: what to run.
      where: the URL, and the place in it, for messages.
      retry: how often.
      stopped: waits for some seconds instead of `time.sleep`, and tells whether to give up.
      retries: counts what was tried again.
      what: "read" or "written", for messages.
      also: errors that are tried again though they are lasting elsewhere.

    Raises:
      FileNotFoundError: as the request does.
      StorageError: the last error, once the attempts are used up; any other error at once.
    """
    attempt = 0
    began = time.monotonic()
    while True:
        try:
            return _asked(request)
        except (FileNotFoundError, NotADirectoryError, NotImplementedError, PileshardError) as error:
            attempt += 1
            if not isinstance(error, also) or attempt >= min(_MORE_ATTEMPTS, retry.attempts):
                raise
            failed: Exception = error
        except Exception as error:
            attempt += 1
            if not is_transient(error):
                hint = "; check the credentials" if isinstance(error, PermissionError) or is_refusal(error) else ""
                raise StorageError(f"{where()}: cannot be {what}: {describe(error)}{hint}") from error
            if attempt >= retry.attempts or retry.is_over(attempt, began):
                raise StorageError(
                    f"{where()}: cannot be {what} after {attempt} attempts; the last error: {describe(error)}"
                ) from error
            failed = error
        pause = told(failed, where(), retry, attempt, retries)
        if stopped is None:
            time.sleep(pause)
        elif stopped(pause):
            raise failed


def is_refusal(error: BaseException | None) -> bool:
    """Whether a server refused a request."""
    return error is not None and _status(error) in (401, 403)


def _asked(request: Callable[[], T]) -> T:
    """What a request gives. fsspec takes whatever befalls a question over HTTP for absence; that is undone here."""
    try:
        return request()
    except FileNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, Exception) and (is_transient(cause) or is_refusal(cause)):
            raise cause from None
        raise


def told(error: BaseException, where: str, retry: Retry, attempt: int, retries: Retries | None) -> float:
    """Counts and logs that a request failed and is tried again; returns the seconds to wait before that."""
    pause = retry.before(attempt)
    if retries is not None:
        retries.add(fault_name(error))
    _log.info("%s: %s; tried again in %.1f s (%d of %d)", where, describe(error), pause, attempt + 1, retry.attempts)
    return pause


@dataclass(frozen=True)
class LocalAttempts:
    """Runs calls of the system on paths of this machine, which may be a mount of a server far away.

    Attributes:
      retry: how often.
      retries: counts what was tried again.
    """

    retry: Retry = Retry()
    retries: Retries = field(default_factory=Retries)

    def run(self, call: Callable[[], T], path: str, also: tuple[type[BaseException], ...] = ()) -> T:
        """Runs a call until it succeeds, at most `retry.attempts` times.

        Args:
          call: what to run.
          path: of the file, for messages.
          also: errors that are tried again though they are lasting elsewhere.

        Raises:
          OSError: the last error, with the file's name and, of a transient one, the number of attempts.
          StorageError: the file is shorter than it was said to be, as often as it was read.
        """
        attempt = 0
        while True:
            try:
                return call()
            except (OSError, WrongLength) as error:
                attempt += 1
                most = self.retry.attempts
                if not is_transient(error):
                    most = min(_MORE_ATTEMPTS, most) if isinstance(error, also) else 1
                if attempt >= most:
                    raise _named(error, path, attempt) from error
                pause = told(error, path, self.retry, attempt, self.retries)
            time.sleep(pause)


def _named(error: OSError | WrongLength, path: str, attempt: int) -> BaseException:
    """The same error with the file's name, and with the number of attempts where there was more than one."""
    tries = f" (tried {attempt} times)" if attempt > 1 else ""
    if isinstance(error, WrongLength):
        return StorageError(f"{path}: {error}{tries}")
    if error.errno is None:
        return error if error.filename else StorageError(f"{path}: {describe(error)}{tries}")
    found = OSError(error.errno, f"{error.strerror or os.strerror(error.errno)}{tries}", error.filename or path)
    setattr(found, "tried_again", True)  # noqa: B010  # whoever tries more than this call shall not try it again
    return found


def describe(error: BaseException) -> str:
    """An error on one line, without what is secret."""
    text = redact(" ".join(str(error).split()))
    if not text and isinstance(error, TimeoutError):
        return "no answer in time"
    name = type(error).__name__
    if len(text) > 300:
        text = text[:300] + "..."
    return f"{name}: {text}" if text and not isinstance(error, WrongLength) else text or name
