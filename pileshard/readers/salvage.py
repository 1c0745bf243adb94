"""What can be had of a range of tokens where something in it is damaged: each record is judged by its own bytes.

    tokens      |  record 7  |  record 8  |  record 9  |
    wanted           [.....................)
    lost                     [............)                record 8 is not as it was written

A record counts where the index gives it a place that can be, its framing and CRC hold, and it has as many tokens as the
index says. What is then wanted and not covered is lost; so a wrong entry of the index costs the two records that it is
between. Which tokens are lost depends on the files alone, not on the range that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pileshard.format.damage import DamageError
from pileshard.format.index import HEADER_BYTES as INDEX_HEADER_BYTES
from pileshard.format.manifest import ShardEntry
from pileshard.format.record import FOOTER_BYTES, HEADER_BYTES, RECORD_TOKENS
from pileshard.format.storage import Storage
from pileshard.order.chunks import I64
from pileshard.readers.checks import MOST_OVERHEAD, record_is_sound
from pileshard.readers.open_shards import cut_off

#: Ranges of a shard's tokens: (begin, end) each, ascending and apart.
Ranges = list[tuple[int, int]]


class Loss(NamedTuple):
    """What is lost.

    Attributes:
      ranges: of the shard's tokens, (begin, end) each.
      damages: why; one for each damaged place, in the order of the file.
    """

    ranges: Ranges
    damages: list[DamageError]


class Entries(NamedTuple):
    """Consecutive entries of an index: int64 [records + 1] each, the first of them that of record `first`."""

    tokens: I64
    offsets: I64
    first: int = 0


def salvage(
    storage: Storage,
    entry: ShardEntry,
    entries: Entries,
    begin: int,
    out: npt.NDArray[Any],
    vocab_size: int | None,
    read: Callable[[int, int], bytes],
    size: Callable[[], int],
    index_is_whole: Callable[[], bool],
) -> Loss:
    """Fills an array with what can be had of a shard's tokens from `begin` on.

    Args:
      storage: of the dataset.
      entry: the manifest's, of the shard.
      entries: of the index, those of all records that hold wanted tokens among them.
      begin: number of the first token.
      out: contiguous, of the tokens' dtype; what is lost is left as it is.
      vocab_size: ids at or above it are damage too.
      read: bytes [a, b) of the shard, fewer where the file ends.
      size: of the file in bytes.
      index_is_whole: whether the index is the manifest's, byte for byte; else what does not fit is its fault.
    """
    end, item = begin + len(out), out.dtype.itemsize
    url = storage.url_of(entry.path)
    places = _records(entries, begin, end, item, entry.size)
    lost: Ranges = []
    damages: list[DamageError] = []
    covered: Ranges = []
    for low, high, first_byte, last_byte in places:
        record = read(first_byte, last_byte)
        if len(record) < last_byte - first_byte:
            damages.append(cut_off(storage, entry, min(size(), last_byte)))
        elif not record_is_sound(record, (high - low) * item):
            damages.append(
                DamageError(
                    url, "damaged: the bytes of a record are not those that were written", storage.url, first_byte
                )
            )
        else:
            a, b = max(low, begin), min(high, end)
            tokens = np.frombuffer(record[: len(record) - FOOTER_BYTES], dtype=np.uint8)[-(high - low) * item :]
            ids = tokens.view(out.dtype)[a - low : b - low]
            out[a - begin : b - begin] = ids
            covered.append((a, b))
            if vocab_size is not None:
                for at in np.flatnonzero(ids >= vocab_size).tolist():
                    lost.append((a + at, a + at + 1))
                    byte = last_byte - FOOTER_BYTES - (high - a - at) * item
                    what = f"damaged: the id {int(ids[at]):,} is outside the vocabulary of {vocab_size:,}"
                    damages.append(DamageError(url, what, storage.url, byte))
    gaps = _gaps(covered, begin, end)
    if gaps and not index_is_whole():
        damages = [_index_damage(storage, entry, entries, low) for low, _ in gaps]
    lost += gaps
    return Loss(sorted(lost), sorted(damages, key=lambda damage: (damage.url, damage.offset or 0)))


def _records(entries: Entries, begin: int, end: int, item: int, size: int) -> list[tuple[int, int, int, int]]:
    """Tokens and bytes, begin and end each, of the records that hold wanted tokens and can lie where they are said."""
    low, high = entries.tokens[:-1], entries.tokens[1:]
    first, last = entries.offsets[:-1], entries.offsets[1:]
    counts = high - low
    overhead = last - first - counts * item
    fits = (counts > 0) & (counts <= RECORD_TOKENS) & (overhead <= MOST_OVERHEAD)
    fits &= (overhead > HEADER_BYTES + FOOTER_BYTES) & (first >= 0) & (last <= size)
    found = np.flatnonzero(fits & (low < end) & (high > begin))
    parts = (part[found].tolist() for part in (low, high, first, last))
    return list(zip(*parts, strict=True))


def _gaps(covered: Ranges, begin: int, end: int) -> Ranges:
    """What of [begin, end) is not covered."""
    gaps = []
    at = begin
    for low, high in sorted(covered):
        if low > at:
            gaps.append((at, low))
        at = max(at, high)
    if at < end:
        gaps.append((at, end))
    return gaps


def _index_damage(storage: Storage, entry: ShardEntry, entries: Entries, token: int) -> DamageError:
    """Damage of the index at the entry after the one that tells where a token is."""
    record = int(np.argmax(entries.tokens >= token)) + entries.first
    offset = INDEX_HEADER_BYTES + 8 * min(record + 1, entry.records)
    what = "damaged: its entries do not fit the shard's records"
    return DamageError(storage.url_of(entry.index_path), what, storage.url, offset)
