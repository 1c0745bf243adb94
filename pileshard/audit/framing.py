"""Walks the TFRecord framing of a shard: from bytes to batches of records with checked lengths and CRCs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from pileshard.audit.report import FaultKind
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, masked_crc

_READ_BYTES = 2 << 20  # the fastest of 256 KiB to 8 MiB: what is read is checked while it is in the cache

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Consecutive records in memory; valid until the next batch is asked for.

    Attributes:
      data: uint8, the bytes in memory.
      base: offset in the file of the first of them.
      starts: int64 [n], where each Example begins in `data`.
      ends: int64 [n], where it ends.
    """

    data: npt.NDArray[np.uint8]
    base: int
    starts: Ints
    ends: Ints

    @property
    def offsets(self) -> Ints:
        """Offset of each record in the file: int64 [n]."""
        return self.starts + (self.base - HEADER_BYTES)


def read_batches(
    file: BinaryIO,
    longest: int,
    on_block: Callable[[memoryview], None],
    fault: Callable[[FaultKind, str, int], None],
) -> Iterator[Batch]:
    """Yields the records of a shard, up to a length that cannot be trusted.

    The file is read to its end in any case. Memory is one block and one record, whatever a length claims.

    Args:
      file: the shard, at its first byte.
      longest: bytes of the longest Example there can be.
      on_block: told of every block read, in order.
      fault: told of damaged framing and CRCs: kind, message, offset of the record.
    """
    buffer = bytearray(HEADER_BYTES + longest + FOOTER_BYTES + _READ_BYTES)
    view = memoryview(buffer)
    data = np.frombuffer(buffer, dtype=np.uint8)
    base = held = 0
    complaint: str | None = None
    while got := file.readinto(view[held : held + _READ_BYTES]):  # type: ignore[attr-defined]
        on_block(view[held : held + got])
        if complaint is not None:
            continue
        held += got
        starts, ends, complaint = _walk(view[:held], longest)
        batch = Batch(data[:held], base, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))
        if starts:
            for at in np.flatnonzero(_crcs(view, starts, ends) != _stored_crcs(batch)).tolist():
                fault(FaultKind.CRC, "the bytes of a record are damaged", int(batch.offsets[at]))
            yield batch
        after = ends[-1] + FOOTER_BYTES if ends else 0
        if complaint is not None:
            fault(FaultKind.FRAMING, f"{complaint}; the records after it are not read", base + after)
        if after:
            view[: held - after] = bytes(view[after:held])
        base += after
        held -= after
    if held and complaint is None:
        fault(FaultKind.FRAMING, f"the file ends {held:,} bytes into a record", base)


def _walk(view: memoryview, longest: int) -> tuple[list[int], list[int], str | None]:
    """Where the whole records in memory begin and end, and what is wrong with the next one's length, if it is."""
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    most = len(view)
    while most - at >= HEADER_BYTES:
        length = _length(bytes(view[at : at + HEADER_BYTES]))
        if length is None:
            return starts, ends, "the length of a record is damaged"
        if length > longest:
            return starts, ends, f"a record claims {length:,} bytes, and none has more than {longest:,}"
        at += HEADER_BYTES
        end = at + length
        if end + FOOTER_BYTES > most:
            break
        starts.append(at)
        ends.append(end)
        at = end + FOOTER_BYTES
    return starts, ends, None


@lru_cache(maxsize=1 << 16)
def _length(header: bytes) -> int | None:
    """The length in a record's header, or None where its CRC does not fit. Cached: most lengths come up often."""
    if masked_crc(header[:8]) != int.from_bytes(header[8:], "little"):
        return None
    return int.from_bytes(header[:8], "little")


def _crcs(view: memoryview, starts: list[int], ends: list[int]) -> npt.NDArray[Any]:
    """The masked CRC of each Example: uint32 [n]."""
    crcs = [crc32c(view[start:end]) for start, end in zip(starts, ends, strict=True)]
    plain = np.array(crcs, dtype=np.uint32)
    return (plain >> np.uint32(15) | plain << np.uint32(17)) + np.uint32(0xA282EAD8)


def _stored_crcs(batch: Batch) -> npt.NDArray[Any]:
    return batch.data[batch.ends[:, None] + np.arange(FOOTER_BYTES)].view("<u4")[:, 0]
