"""Into how many parts each input is cut, and where: so that every worker has work from the first item to the last.

An input that can be entered in the middle (plain, or zstd of several frames) is cut into equal parts: its text is
counted first, by as many items, and then each part decompresses its own frames. Any other (one zstd frame, gzip) is
decompressed by each part from its begin to the part's end; since later parts pass over more, they are smaller, such
that all take the same time. What is passed over is neither split nor parsed, and costs `PASS_OVER` of the work.

    cost of n parts, the work of the whole input being 1, and r what decompressing it takes:
      entered    1 + r + r (counted), in n equal parts
      through    n r / (1 - q^n) with q = 1 / (1 + r); the k-th part ends at (1 - q^k) / (1 - q^n) of the input
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Literal

import msgspec

from beam_jobs.inputs import InputFile
from beam_jobs.job import TokenizeItem, TokenizeReceipt
from pileshard.format.paths import BUILD
from pileshard.format.storage import open_url
from pileshard.ingest.containers import HEAD_BYTES, Container, tell
from pileshard.ingest.count import enterable
from pileshard.ingest.parts import START

PARTS = f"{BUILD}/parts.json"

#: Parts are not made smaller than this: bytes of text, about.
LEAST_TEXT = 256 << 20
MOST_PARTS = 1000

#: Decompressing, as a share of all that is done to a text with the fast engine (measured; see the guide).
PASS_OVER = {"zstd": 0.16, "gzip": 0.35, "plain": 0.03}
_TEXT_PER_BYTE = {"zstd": 3.0, "gzip": 3.0, "plain": 1.0}

_HEAD = 8 << 20
_LOOKERS = 16

Way = Literal["whole", "enter", "through"]


class InputParts(msgspec.Struct, frozen=True, kw_only=True):
    """How one input is cut.

    Attributes:
      way: to the begin of a part.
      container: of the input, where it has more than one part.
      cuts: ascending offsets in its stored bytes, from 0 to its size: one more than there are parts.
    """

    way: Way
    container: str
    cuts: list[int]

    @property
    def parts(self) -> int:
        """How many there are."""
        return len(self.cuts) - 1


class PartsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`_build/parts.json`: how the inputs of a build are cut; the next command keeps to it.

    Attributes:
      asked: what `--parts-per-input` said.
      inputs: in the order of the job's.
    """

    asked: int | Literal["auto"]
    inputs: list[InputParts]


class Kind(msgspec.Struct, frozen=True):
    """What an input's first bytes say: its container, and whether it can be entered in the middle."""

    container: str
    enterable: bool


def look_at(inputs: Sequence[InputFile], storage_options: dict[str, Any]) -> list[Kind]:
    """Reads the first bytes of inputs. One that cannot be read is taken for zstd: its items say what is wrong."""

    def look(entry: InputFile) -> Kind:
        with contextlib.suppress(Exception), open_url(entry.url, storage_options) as file:
            head = file.read(HEAD_BYTES)
            if tell(head) is Container.ZSTD:
                while len(head) < _HEAD and (more := file.read(_HEAD - len(head))):
                    head += more
            container = tell(head[:HEAD_BYTES]) or Container.ZSTD
            return Kind(container.value, enterable(head) is not None)
        return Kind(Container.ZSTD.value, False)

    with ThreadPoolExecutor(_LOOKERS) as pool:
        return list(pool.map(look, inputs))


def make_plan(
    inputs: Sequence[InputFile], asked: int | Literal["auto"], workers: int, storage_options: dict[str, Any]
) -> PartsPlan:
    """Cuts the inputs of a build.

    Args:
      inputs: of the build.
      asked: parts of each input, or "auto".
      workers: how many items the engine does at once.
      storage_options: fsspec's.
    """
    likely = [entry.size * 3 >= 2 * LEAST_TEXT if asked == "auto" else asked > 1 for entry in inputs]
    places = [at for at, yes in enumerate(likely) if yes]
    found = dict(zip(places, look_at([inputs[at] for at in places], storage_options), strict=True))
    kinds = [found.get(at, Kind(Container.ZSTD.value, False)) for at in range(len(inputs))]
    sizes = [entry.size for entry in inputs]
    counts = choose_counts(sizes, kinds, workers) if asked == "auto" else [asked] * len(inputs)
    return PartsPlan(
        asked=asked, inputs=[cut(size, kind, n) for size, kind, n in zip(sizes, kinds, counts, strict=True)]
    )


def cut(size: int, kind: Kind, parts: int) -> InputParts:
    """Where an input of a size is cut into parts that take the same time."""
    if parts == 1:
        return InputParts(way="whole", container="", cuts=[0, size])
    if kind.enterable:
        cuts = [size * part // parts for part in range(parts + 1)]
        return InputParts(way="enter", container=kind.container, cuts=cuts)
    q = 1 / (1 + PASS_OVER[kind.container])
    whole = 1 - q**parts
    cuts = [min(size, int(size * (1 - q**part) / whole)) for part in range(parts)] + [size]
    return InputParts(way="through", container=kind.container, cuts=cuts)


def part_cost(size: int, kind: Kind, parts: int) -> float:
    """What one of the parts of an input costs, in bytes of text that are read, parsed and tokenized."""
    text = size * _TEXT_PER_BYTE[kind.container]
    share = PASS_OVER[kind.container]
    if parts == 1:
        return text * (1 + share)
    if kind.enterable:
        return text * (1 + 2 * share) / parts
    return text * share / (1 - (1 + share) ** -parts)


def choose_counts(sizes: Sequence[int], kinds: Sequence[Kind], workers: int) -> list[int]:
    """How many parts each input gets, so that the longest worker is done soonest.

    For ever shorter parts, the time of all workers is foretold with the largest part going first to whoever is free;
    the fewest parts win that come within 2% of the best.
    """
    most = [_most(size, kind) for size, kind in zip(sizes, kinds, strict=True)]
    counts = [1] * len(sizes)
    best: list[tuple[float, list[int]]] = []
    target = max((part_cost(size, kind, 1) for size, kind in zip(sizes, kinds, strict=True)), default=0.0)
    while target > 0:
        best.append((makespan(sizes, kinds, counts, workers), counts))
        before = counts
        while counts == before and any(n < limit for n, limit in zip(counts, most, strict=True)) and target > 1:
            target *= 0.95
            counts = [
                _fewest(size, kind, n, limit, target)
                for size, kind, n, limit in zip(sizes, kinds, counts, most, strict=True)
            ]
        if counts == before:
            break
    if not best:
        return counts
    shortest = min(time for time, _ in best)
    return next(chosen for time, chosen in best if time <= 1.02 * shortest)


def _most(size: int, kind: Kind) -> int:
    """Parts beyond which nothing is won."""
    most = max(1, min(MOST_PARTS, int(size * _TEXT_PER_BYTE[kind.container]) // LEAST_TEXT))
    if kind.enterable:
        return most
    # With so many, a part takes at most 2% longer than decompressing the input alone.
    return min(most, math.ceil(math.log(50) / math.log(1 + PASS_OVER[kind.container])))


def _fewest(size: int, kind: Kind, parts: int, most: int, target: float) -> int:
    while parts < most and part_cost(size, kind, parts) > target:
        parts += 1
    return parts


def makespan(sizes: Sequence[int], kinds: Sequence[Kind], counts: Sequence[int], workers: int) -> float:
    """When the last of the workers is done, in the unit of `part_cost`."""
    costs = [
        cost
        for size, kind, n in zip(sizes, kinds, counts, strict=True)
        for cost in [part_cost(size, kind, n)]
        for _ in range(n)
    ]
    free = [0.0] * workers
    for cost in sorted(costs, reverse=True):
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def item_cost(item: TokenizeItem, size: int) -> float:
    """What a tokenize item costs beside others, told from stored bytes: its own, and those that it passes over."""
    end = size if item.end is None else item.end
    if item.entry is not None:
        return float(end - item.begin)
    return end - item.begin + PASS_OVER["zstd"] * item.begin


def joined(receipts: Iterable[TokenizeReceipt]) -> list[TokenizeReceipt] | None:
    """The receipts of the parts of one input in order, where they are all there and each begins where another ended."""
    parts = sorted(receipts, key=lambda receipt: receipt.item.part)
    if not parts or [receipt.item.part for receipt in parts] != list(range(parts[0].item.parts)):
        return None
    entered = parts[0].item.entry is not None
    first = parts[0].begin
    if first is None or (first.text, first.lines) != (START.text, START.lines):
        return None
    for before, after in pairwise(parts):
        if before.end is None or after.begin is None or not before.end.is_same(after.begin):
            return None
        if entered != (after.item.entry is not None):
            return None
    return parts if parts[-1].end is not None else None
