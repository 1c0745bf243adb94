"""Rust panics reach Python as a BaseException that is no Exception; here they become errors a caller can handle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pileshard.errors import TokenizerError


@contextmanager
def engine_errors(doing: str, error: type[TokenizerError] = TokenizerError) -> Iterator[None]:
    """Turn an engine's exception or panic into `error`; KeyboardInterrupt, SystemExit and MemoryError pass.

    Args:
      doing: what failed, the beginning of the sentence.
      error: the class to raise.
    """
    try:
        yield
    except (TokenizerError, MemoryError):
        raise
    except Exception as cause:
        raise error(f"{doing}: {_first_line(cause)}") from cause
    except BaseException as cause:
        if type(cause).__module__ != "pyo3_runtime":
            raise
        raise error(f"{doing}: the engine panicked: {_first_line(cause)}") from None


def _first_line(cause: BaseException) -> str:
    """What a person can use: the lines after the first name places in the engine's source."""
    return (str(cause).splitlines() or [type(cause).__name__])[0]
