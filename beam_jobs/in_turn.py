"""Elements taken in turn by the worker processes of one machine: whoever is free takes the next one.

Beam's local runner deals its elements out beforehand, so that a process with long ones is waited for by the others.
Here it deals out one share a process, and each takes elements, in their order, until none is left. A file that only one
process can make says that an element is taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam


class InTurn(beam.DoFn):
    """Does what another function does, for elements that are taken in turn. Its own elements are numbers of shares.

    Args:
      do: a DoFn.
      elements: in the order in which they are to be begun.
      directory: on this machine; empty.
    """

    def __init__(self, do: beam.DoFn, elements: Sequence[Any], directory: str) -> None:
        self._do = do
        self._elements = list(elements)
        self._directory = directory

    def setup(self) -> None:
        """Sets the function up."""
        self._do.setup()

    def process(self, element: int) -> Iterator[Any]:
        """Does elements until none is left."""
        for number, mine in enumerate(self._elements):
            try:
                os.close(os.open(os.path.join(self._directory, str(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                continue
            yield from self._do.process(mine)

    def teardown(self) -> None:
        """Takes the function down."""
        self._do.teardown()
