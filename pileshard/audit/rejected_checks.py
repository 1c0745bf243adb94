"""Checks of the lists of rejected lines: every line that the account counts is named, once, with its reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

import msgspec

from pileshard.audit.report import Fault, FaultKind
from pileshard.format.manifest import InputEntry
from pileshard.format.rejected import RejectedLine
from pileshard.format.storage import Storage

_LONGEST = 1 << 20  # of one entry, some hundred bytes as a rule


def check_rejected(storage: Storage, entry: InputEntry, read: bool) -> Iterator[Fault]:
    """Yields the faults of one input's list.

    Args:
      storage: the dataset's root.
      entry: the input's account.
      read: whether to read the list, or only to look whether it is there.
    """
    path = entry.rejected_path
    if path is None:
        return
    try:
        if read:
            yield from _read(storage, path, entry)
        else:
            storage.size(path)
    except FileNotFoundError:
        yield Fault(kind=FaultKind.MISSING_FILE, path=path, message="is not there")
    except OSError as error:
        yield Fault(kind=FaultKind.UNREADABLE, path=path, message=str(error))


def _read(storage: Storage, path: str, entry: InputEntry) -> Iterator[Fault]:
    counts: Counter[str] = Counter()
    digest = hashlib.sha256()
    decoder = msgspec.json.Decoder(RejectedLine)
    before = offset = 0
    with storage.open(path) as file:
        while line := file.readline(_LONGEST):
            digest.update(line)
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("it is cut off or too long")
                rejected = decoder.decode(line)
                if rejected.input != entry.url:
                    raise ValueError(f"it is of another input ({rejected.input})")
                if not before < rejected.line <= entry.lines:
                    raise ValueError(f"line {rejected.line:,} after {before:,}, of {entry.lines:,} lines")
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                message = f"an entry is not that of a rejected line: {error}"
                yield Fault(kind=FaultKind.REJECTED, path=path, message=message, offset=offset)
                return
            counts[rejected.reason] += 1
            before = rejected.line
            offset += len(line)
    if counts != Counter(entry.rejected):
        message = f"lists {dict(sorted(counts.items()))}, the manifest counts {entry.rejected}"
        yield Fault(kind=FaultKind.REJECTED, path=path, message=message)
    if entry.rejected_sha256 is not None and digest.hexdigest() != entry.rejected_sha256:
        yield Fault(kind=FaultKind.WRONG_SHA256, path=path, message="its bytes are not those of the build")
