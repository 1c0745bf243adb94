"""Storage options that name where a secret is, instead of the secret: read by each process for itself.

`secret=env:NAME` is the environment variable NAME, `connection_string=file:/run/secrets/azure` the text of a file. What
is sent to a cluster's workers, and seen in a list of processes, is the name; a worker finds the secret where its
own machine or pod keeps it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pileshard.errors import OptionError


def resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every `env:NAME` and `file:/PATH` replaced by what is there.

    Raises:
      OptionError: this process has no such variable or file.
    """
    return {name: _resolve(name, value) for name, value in options.items()}


def _resolve(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {inner: _resolve(f"{name}.{inner}", held) for inner, held in value.items()}
    if not isinstance(value, str):
        return value
    if value.startswith("env:"):
        variable = value[len("env:") :]
        if variable not in os.environ:
            raise OptionError(f"storage option {name}={value}: {os.uname().nodename} has no such environment variable")
        return os.environ[variable]
    if value.startswith("file:/") and not value.startswith("file://"):
        try:
            with open(value[len("file:") :], encoding="utf-8") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text"
            raise OptionError(f"storage option {name}={value} on {os.uname().nodename}: {reason}") from None
    return value
