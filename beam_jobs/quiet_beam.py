"""Apache Beam, imported without its warnings of cloud clients that nobody asked for, and in half of its time.

Beam imports the client of every store and database that is installed. Its file systems are not used here (`fsspec` is),
so those that take long are left out while it is imported; `import_clients` brings them for engines elsewhere, which may
stage files by them.

Raises:
  MissingExtraError: it is not installed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator

from pileshard.errors import MissingExtraError

if importlib.util.find_spec("apache_beam") is None:
    raise MissingExtraError("apache-beam", "beam", "pileshard build")

_CLIENTS = ("azure", "boto3", "pandas", "pymongo")
_USERS = ("aws.clients.s3.boto3_client", "aws.s3io", "azure.blobstorageio")  # of clients, in Beam


@contextlib.contextmanager
def _left_out(names: tuple[str, ...]) -> Iterator[None]:
    """Lets modules that are not imported yet seem not to be installed."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Without warnings, and without looking for cycles among modules, which stay anyway."""
    disabled, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.WARNING)
    gc.disable()
    try:
        yield
    finally:
        logging.disable(disabled)
        if collecting:
            gc.enable()


def import_clients() -> None:
    """Gives Beam's own file systems their clients, as far as those are installed."""
    with _quick():
        for name in _USERS:
            with contextlib.suppress(ImportError):
                importlib.reload(importlib.import_module(f"apache_beam.io.{name}"))


with _quick(), _left_out(_CLIENTS):
    import apache_beam as beam

__all__ = ["beam", "import_clients"]
