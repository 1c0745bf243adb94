"""Walks the TFRecord framing of a shard: from bytes to batches of records with checked lengths and CRCs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from pileshard.audit.report import FaultKind
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, masked_crc

_SHORT = 2048  # bytes of a record on average below which records' CRCs are checked together
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
    offsets: npt.NDArray[np.uint64] | None = None,
    size: int = _READ_BYTES,
) -> Iterator[Batch]:
    """Yields the records of a shard, up to a length that cannot be trusted.

    The file is read to its end in any case. Memory is one block and one record, whatever a length claims.

    Args:
      file: the shard, at its first byte.
      longest: bytes of the longest Example there can be.
      on_block: told of every block read, in order.
      fault: told of damaged framing and CRCs: kind, message, offset of the record.
      offsets: where an index has the records, which are held against the file together; where the two differ, the
        file is walked record by record. What comes out does not depend on them.
      size: bytes that the file should have; only memory depends on it.
    """
    block = min(_READ_BYTES, max(size, 1))
    most = HEADER_BYTES + longest + FOOTER_BYTES + block
    buffer = bytearray(most if block == _READ_BYTES else block)
    view, data = memoryview(buffer), np.frombuffer(buffer, dtype=np.uint8)
    scratch = np.empty(0, dtype=np.uint8)
    base = held = 0
    complaint: str | None = None
    while True:
        if held + block > len(buffer) < most:  # the file is longer than it should be
            buffer = bytearray(most)
            buffer[:held] = view[:held]
            view, data = memoryview(buffer), np.frombuffer(buffer, dtype=np.uint8)
        got = file.readinto(view[held : held + block])  # type: ignore[attr-defined]
        if not got:
            break
        on_block(view[held : held + got])
        if complaint is not None:
            continue
        held += got
        starts, ends = _foretold(data[:held], base, longest, offsets)
        after = int(ends[-1]) + FOOTER_BYTES if len(ends) else 0
        walked_starts, walked_ends, complaint = _walk(view[:held], after, longest)
        if walked_starts:
            offsets = None  # it is of another file, or ends before this one
            starts, ends = np.append(starts, walked_starts), np.append(ends, walked_ends)
            after = walked_ends[-1] + FOOTER_BYTES
        batch = Batch(data[:held], base, starts, ends)
        if len(starts):
            if after < _SHORT * len(starts) and len(scratch) < after:
                scratch = np.empty(len(data), dtype=np.uint8)
            for at in _wrong_crcs(view, batch, scratch):
                fault(FaultKind.CRC, "the bytes of a record are damaged", int(batch.offsets[at]))
            yield batch
        if complaint is not None:
            fault(FaultKind.FRAMING, f"{complaint}; the records after it are not read", base + after)
        if after:
            view[: held - after] = bytes(view[after:held])
        base += after
        held -= after
    if held and complaint is None:
        fault(FaultKind.FRAMING, f"the file ends {held:,} bytes into a record", base)


def _foretold(
    data: npt.NDArray[np.uint8], base: int, longest: int, offsets: npt.NDArray[np.uint64] | None
) -> tuple[Ints, Ints]:
    """Where whole records begin and end in memory, as long as an index foretells what their headers say.

    A walk finds the same: the first record begins where the bytes do, and each next one where its length puts it.
    """
    none = np.zeros(0, dtype=np.int64)
    if offsets is None:
        return none, none
    first = int(np.searchsorted(offsets, np.uint64(base)))
    most = first + len(data) // (HEADER_BYTES + FOOTER_BYTES) + 1
    last = min(int(np.searchsorted(offsets, np.uint64(base + len(data)), "right")), most)
    begins = np.asarray(offsets[first:last]).astype(np.int64) - base
    if len(begins) < 2 or begins[0] != 0:
        return none, none
    sizes = np.diff(begins) - (HEADER_BYTES + FOOTER_BYTES)
    fits = (sizes >= 0) & (sizes <= longest) & (begins[1:] <= len(data))
    count = len(fits) if fits.all() else int(fits.argmin())
    begins, sizes = begins[: count + 1], sizes[:count]
    fits = rows(data, begins[:-1], 8).view("<i8")[:, 0] == sizes
    fits &= rows(data, begins[:-1] + 8, 4).view("<u4")[:, 0] == _length_crcs(sizes)
    count = count if fits.all() else int(fits.argmin())
    starts = begins[:count] + HEADER_BYTES
    return starts, starts + sizes[:count]


def rows(data: npt.NDArray[np.uint8], starts: Ints, width: int) -> npt.NDArray[np.uint8]:
    """The `width` bytes from each start, which must lie in `data`: uint8 [n, width]."""
    if not len(starts):
        return np.zeros((0, width), dtype=np.uint8)
    windows = np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(len(starts), width)


def _walk(view: memoryview, at: int, longest: int) -> tuple[list[int], list[int], str | None]:
    """Where the whole records from a place on begin and end, and what is wrong with the next one's length, if it is."""
    starts: list[int] = []
    ends: list[int] = []
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


@lru_cache(maxsize=1)
def _crc_tables() -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """A CRC is linear: what each value of each of the low four bytes adds to that of a length of 0."""
    zero = crc32c(bytes(8))
    table = [[crc32c((value << 8 * place).to_bytes(8, "little")) ^ zero for value in range(256)] for place in range(4)]
    return np.array(table, dtype=np.uint32), np.array([zero], dtype=np.uint32)


def _length_crcs(lengths: Ints) -> npt.NDArray[np.uint32]:
    """The masked CRC of each length, below 2^32, as its header has it: uint32 [n]."""
    table, crcs = _crc_tables()
    for place in range(4):
        crcs = crcs ^ table[place][lengths >> 8 * place & 0xFF]
    return _masked(crcs)


def _masked(crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(0xA282EAD8)


def _wrong_crcs(view: memoryview, batch: Batch, scratch: npt.NDArray[np.uint8]) -> list[int]:
    """Numbers of the records whose CRC is not that of their bytes."""
    stored = rows(batch.data, batch.ends, FOOTER_BYTES).view("<u4")[:, 0]
    if len(scratch) and _all_fit(batch, stored, scratch):
        return []
    spans = zip(batch.starts.tolist(), batch.ends.tolist(), strict=True)
    crcs = (crc32c(view[start:end]) for start, end in spans)
    found = _masked(np.fromiter(crcs, dtype=np.uint32, count=len(batch.starts)))
    return np.flatnonzero(found != stored).tolist()


def _all_fit(batch: Batch, stored: npt.NDArray[np.uint32], scratch: npt.NDArray[np.uint8]) -> bool:
    """Whether the CRCs of consecutive records all fit, by one CRC over them.

    A CRC begun with ones is one begun with zeros over bytes whose first four are inverted; and bytes followed by their
    own CRC have the CRC 0, so that the next record begins anew. With each record so, and zeros in the place of each
    header, the CRC of the whole is 0. One record that does not fit always makes it another; several hide each other as
    seldom as a CRC misses damage, once in 2^32.

    Args:
      batch: the records, one right after another.
      stored: uint32 [n], their masked CRCs.
      scratch: uint8, as long as the batch's memory at least.
    """
    if (batch.ends - batch.starts < FOOTER_BYTES).any():
        return False
    first, last = int(batch.starts[0]) - HEADER_BYTES, int(batch.ends[-1]) + FOOTER_BYTES
    copy = scratch[: last - first]
    copy[:] = batch.data[first:last]
    headers = np.ndarray((len(copy) - HEADER_BYTES + 1,), dtype=f"V{HEADER_BYTES}", buffer=copy, strides=(1,))
    words = np.ndarray((len(copy) - 3,), dtype="<u4", buffer=copy, strides=(1,))
    headers[batch.starts - HEADER_BYTES - first] = np.void(bytes(HEADER_BYTES))
    words[batch.starts - first] ^= np.uint32(0xFFFFFFFF)
    plain = stored - np.uint32(0xA282EAD8)
    words[batch.ends - first] = ~(plain >> np.uint32(17) | plain << np.uint32(15))
    return bool(crc32c(memoryview(copy), 0xFFFFFFFF) == 0xFFFFFFFF)  # type: ignore[arg-type]
