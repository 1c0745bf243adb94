"""What each packing pads and cuts, on a built dataset.

    python -m tests.benchmarks.packing_quality DATASET [--seq-len 2048 8192] [--large]

Shares, in percent, of one epoch of the whole split:

    padding       places of the rows that hold no token
    cut           documents that do not stand whole in one row
    needlessly    those of them that a row could hold: of all documents that a row could hold
    not read      tokens that are in no row

With --large the sources' shards are taken to be as large as `pileshard build` makes them (500 M tokens): documents are
drawn from each source's own until they fill 16 chunks. That is best_fit's own padding and cutting; a small dataset pads
more, where its shards do not fill their last rows.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

import pileshard
from pileshard.corpus import CorpusPlan
from pileshard.order.best_fit import assign
from pileshard.order.even import spans
from pileshard.readers.boundaries import Boundaries

SHARD_TOKENS = 500_000_000
CHUNKS = 16


class Quality(NamedTuple):
    """Counts that add up over shards."""

    places: int
    held: int  # tokens in rows
    tokens: int
    documents: int
    cut: int
    fitting: int  # documents that a row could hold
    needless: int

    def line(self) -> str:
        """Shares in percent."""
        shares = (
            1 - self.held / self.places,
            self.cut / self.documents,
            self.needless / max(1, self.fitting),
            1 - self.held / self.tokens,
        )
        return "".join(f"{share:12.2%}" for share in shares)


def total(parts: list[Quality]) -> Quality:
    """The sum."""
    return Quality(*(sum(column) for column in zip(*parts, strict=True)))


def bounds_of(plan: CorpusPlan) -> list[np.ndarray]:
    """Tokens before each document of each shard, and all."""
    boundaries = Boundaries(plan.reader(), plan.shards)
    return [boundaries.numbered(number, 0, shard.documents) for number, shard in enumerate(plan.shards)]


def concat(plan: CorpusPlan, bounds: list[np.ndarray]) -> Quality:
    """Rows are cut from the stream: a document is whole if it lies within one row of seq_len + 1 tokens."""
    found = []
    for shard, edges in enumerate(bounds):
        chunks = int(plan.chunks.first[shard + 1] - plan.chunks.first[shard])
        rows, seq_len = chunks * plan.chunk_samples, plan.seq_len
        begin, end = edges[:-1], edges[1:]
        row = begin // seq_len
        whole = (end <= (row + 1) * seq_len + 1) & (row < rows)
        fitting = np.diff(edges) <= seq_len + 1
        used = rows * seq_len + (rows > 0)
        found.append(
            Quality(
                used,
                used,
                int(edges[-1]),
                len(begin),
                int((~whole).sum()),
                int(fitting.sum()),
                int((fitting & ~whole).sum()),
            )
        )
    return total(found)


def document(plan: CorpusPlan, bounds: list[np.ndarray]) -> Quality:
    """A row holds a document's begin."""
    lengths = np.concatenate([np.diff(edges) for edges in bounds])
    row = plan.seq_len + 1
    long = int((lengths > row).sum())
    places = plan.samples_per_epoch * row
    held = int(np.minimum(lengths, row).sum())
    return Quality(places, held, int(lengths.sum()), len(lengths), long, len(lengths) - long, 0)


def best_fit(plan: CorpusPlan, bounds: list[np.ndarray]) -> Quality:
    """Rows as the readers pack them."""
    packed = plan.packed(plan.reader())
    assert packed is not None
    row = plan.seq_len + 1
    held, pieces = 0, {}
    for chunk in range(plan.chunks.count):
        shard, parts = packed.parts(chunk)
        held += int(parts.length.sum())
        pieces.setdefault(shard, []).append(np.stack([parts.token, parts.length]))
    documents = cut = fitting = needless = 0
    for shard, edges in enumerate(bounds):
        token, length = np.concatenate(pieces[shard], axis=1)
        length_at = dict(zip(token.tolist(), length.tolist(), strict=True))
        lengths = np.diff(edges)
        whole = np.array([length_at[begin] for begin in edges[:-1].tolist()]) == lengths
        documents += len(lengths)
        cut += int((~whole).sum())
        fitting += int((lengths <= row).sum())
        needless += int((~whole & (lengths <= row)).sum())
    places = plan.samples_per_epoch * row
    return Quality(places, held, int(plan.shard_tokens.sum()), documents, cut, fitting, needless)


def large(plan: CorpusPlan, bounds: list[np.ndarray]) -> Quality:
    """Best fit on large shards of the same documents, each source with the weight it has."""
    rng = np.random.default_rng(0)
    row = plan.seq_len + 1
    chunks = spans([SHARD_TOKENS], plan.seq_len)
    found = []
    for source in sorted({shard.source for shard in plan.shards}):
        own = [edges for edges, shard in zip(bounds, plan.shards, strict=True) if shard.source == source]
        lengths = np.concatenate([np.diff(edges) for edges in own])
        span = SHARD_TOKENS // chunks.count
        counts = []
        for _ in range(CHUNKS):
            # A chunk's documents, its last begun one whole, as if the shard went on after it.
            drawn = rng.choice(lengths, 2 * span // int(lengths.mean()) + 10)
            ends = np.cumsum(drawn)
            drawn = drawn[: int(np.searchsorted(ends, span)) + 1]
            begins = np.cumsum(drawn) - drawn
            many = -(-drawn // row)
            number = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
            piece = np.minimum(np.repeat(drawn, many) - number * row, row)
            piece_begin = np.repeat(begins, many) + number * row
            piece, of = piece[piece_begin < span], np.repeat(np.arange(len(drawn)), many)[piece_begin < span]
            parts = assign(piece, chunks.chunk_samples, row)
            split = np.zeros(len(piece), dtype=bool)
            split[parts.piece[parts.length < piece[parts.piece]]] = True
            fits = drawn <= row
            needless = np.zeros(len(drawn), dtype=bool)
            needless[of[split]] = True
            needless &= fits
            tokens = span
            counts.append(
                Quality(
                    chunks.chunk_samples * row,
                    tokens,
                    tokens,
                    len(drawn),
                    int((~fits | needless).sum()),
                    int(fits.sum()),
                    int(needless.sum()),
                )
            )
        one = total(counts)
        # Scaled so that sources count by their tokens and not alike.
        scale = int(lengths.sum()) / one.tokens
        found.append(Quality(*(round(1000 * scale * value) for value in one)))
    return total(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--seq-len", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    corpus = pileshard.open(options.dataset)
    print(f"{'':28}{'padding':>12}{'cut':>12}{'needlessly':>12}{'not read':>12}")
    for seq_len in options.seq_len:
        ways = [("concat", concat), ("best_fit", best_fit), ("document", document)]
        if options.large:
            ways.insert(2, ("best_fit", large))
        for packing, quality in ways:
            plan = corpus.plan(seq_len=seq_len, packing=packing)
            name = f"{packing}{', large shards' if quality is large else ''}"
            print(f"{seq_len:6,}  {name:20}{quality(plan, bounds_of(plan)).line()}", flush=True)


if __name__ == "__main__":
    main()
