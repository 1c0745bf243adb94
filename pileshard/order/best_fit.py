"""Which piece goes into which row: best fit, the longest piece first.

The method is best-fit-decreasing bin packing as in Ding et al. 2024, "Fewer Truncations Improve Language Modeling"
(https://arxiv.org/abs/2404.10830): each piece, the longest first, goes into the fullest row that still has room for it.
Unlike there the number of rows is given. A piece that fits nowhere whole is split over the rows with the most room;
that always ends, since all pieces together fit.

The rows' rooms are kept as the bits of one integer, so that the least sufficient room is found in one shift. Pieces of
equal length are placed as many at a time as a row takes, which is what one after another would come to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pileshard.order.chunks import I64


class Parts(NamedTuple):
    """Where pieces went: int64 arrays of one length, more than there are pieces where some were split.

    Attributes:
      piece: number of the piece.
      offset: where in the piece the part begins.
      length: of the part.
      row: number of the row.
    """

    piece: I64
    offset: I64
    length: I64
    row: I64


def assign(lengths: I64, rows: int, capacity: int) -> Parts:
    """Packs pieces into rows.

    Args:
      lengths: int64 [pieces], 1 to capacity each, at most rows * capacity together.
      rows: how many there are.
      capacity: of a row.

    Returns:
      The parts, in no particular order.
    """
    order = np.argsort(-lengths, kind="stable")
    values, counts = np.unique(lengths, return_counts=True)
    with_room = {capacity: list(range(rows))[::-1]}  # room: rows that have it, the last is used first
    rooms = 1 << capacity  # bit r: some row has room r
    placed: list[tuple[int, int]] = []  # (row, how many of the next pieces)
    left: list[tuple[int, int]] = []  # (first, end) in `order` of those that fit nowhere

    def put(length: int, room: int, copies: int) -> int:
        nonlocal rooms
        held = with_room[room]
        row = held.pop()
        if not held:
            rooms ^= 1 << room
        room -= copies * length
        if room:
            with_room.setdefault(room, []).append(row)
            rooms |= 1 << room
        return row

    done = 0
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        end = done + count
        while done < end:
            enough = rooms >> length
            if not enough:
                left.append((done, end))
                placed.append((-1, end - done))
                break
            room = length + (enough & -enough).bit_length() - 1
            copies = min(end - done, room // length)
            placed.append((put(length, room, copies), copies))
            done += copies
        done = end
    row = np.repeat(*np.array(placed, dtype=np.int64).reshape(-1, 2).T)
    whole = row >= 0
    piece, row = order[whole], row[whole]
    split: list[tuple[int, int, int, int]] = []
    for number in (n for first, end in left for n in order[first:end].tolist()):
        offset, rest = 0, int(lengths[number])
        while rest:
            enough = rooms >> rest
            room = rest + (enough & -enough).bit_length() - 1 if enough else rooms.bit_length() - 1
            part = min(rest, room)
            split.append((number, offset, part, put(part, room, 1)))
            offset, rest = offset + part, rest - part
    cut = np.array(split, dtype=np.int64).reshape(-1, 4).T
    return Parts(
        np.concatenate([piece, cut[0]]),
        np.concatenate([np.zeros_like(piece), cut[1]]),
        np.concatenate([lengths[piece], cut[2]]),
        np.concatenate([row, cut[3]]),
    )
