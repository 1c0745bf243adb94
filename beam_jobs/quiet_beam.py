"""Apache Beam, imported without its warnings of cloud clients that nobody asked for.

Raises:
  MissingExtraError: it is not installed.
"""

from __future__ import annotations

import importlib.util
import logging

from pileshard.errors import MissingExtraError

if importlib.util.find_spec("apache_beam") is None:
    raise MissingExtraError("apache-beam", "beam", "pileshard build")

_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)
import apache_beam as beam  # noqa: E402

logging.disable(_disabled)

__all__ = ["beam"]
