"""One hierarchy of errors, each a sentence for a person: what, where, and what to do."""

from __future__ import annotations


class PileshardError(Exception):
    """Base of every error that a user can meet; the command line prints its text and no traceback."""


class OptionError(PileshardError):
    """A wrong option or combination of options (exit code 2 of the command line)."""


class MissingExtraError(PileshardError):
    """A feature needs an optional package that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)

    def for_command(self, command: str) -> MissingExtraError:
        """The same, said of the command that was run where it is Apache Beam that is missing: several need it."""
        package, extra, purpose = self.args
        return MissingExtraError(package, extra, command if package == "apache-beam" else purpose)

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs the package {package!r}, which is not installed: pip install 'pileshard[{extra}]'"


class InputError(PileshardError):
    """An input is missing, truncated, damaged or in no known container.

    Attributes:
      url: name of the input.
      offset: offset in the input's stored (compressed) bytes at which the fault was met.
    """

    def __init__(self, url: str, offset: int, fault: str, remedy: str = "") -> None:
        self.url = url
        self.offset = offset
        self.fault = fault
        self.remedy = remedy
        super().__init__(url, offset, fault, remedy)

    def __str__(self) -> str:
        tail = f"; {self.remedy}" if self.remedy else ""
        return f"{self.url}: {self.fault} at byte {self.offset:,}{tail}"


class TokenizerError(PileshardError):
    """A tokenizer file is unusable, has no end-of-document token, or two engines disagree."""


class BuildError(PileshardError):
    """A build cannot start, go on or be finished."""


class DatasetError(PileshardError):
    """A dataset is missing, unfinished, damaged or of another format."""


class StorageError(DatasetError):
    """Storage refuses a request for good, or after it was tried as often as is sensible."""
