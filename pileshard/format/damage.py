"""Damage: a file of a dataset is not what was written; where; and the command that makes it so again."""

from __future__ import annotations

import shlex

from pileshard.errors import DatasetError


class DamageError(DatasetError):
    """A file of a dataset is missing, or its bytes are not those that were written.

    What storage does not give for other reasons (a network, a permission, a failing disk) is another `DatasetError`.

    Attributes:
      url: of the file.
      fault: what is wrong, for a person.
      root: the dataset's URL.
      offset: in the file, where the fault was met: of a record, its first byte; None where it is the file as a whole.
    """

    def __init__(self, url: str, fault: str = "", root: str = "", offset: int | None = None) -> None:
        """With the first argument alone, that is the text: PyTorch raises so again what a worker has raised."""
        self.url = url
        self.fault = fault
        self.root = root
        self.offset = offset
        super().__init__(url, fault, root, offset)

    def __str__(self) -> str:
        return f"{self.place}; {remedy(self.root)}" if self.fault else self.url

    @property
    def place(self) -> str:
        """File, fault and offset."""
        at = "" if self.offset is None else f" at byte {self.offset:,}"
        return f"{self.url}: {self.fault}{'' if at in self.fault else at}"


def remedy(root: str) -> str:
    """What to do about a damaged dataset."""
    return f"run `pileshard repair {shlex.quote(root)}`"
