"""How documents become rows: three ways, each with chunks of its own.

    concat      documents end to end, cut every seq_len tokens wherever that falls     no padding, many documents cut
    best_fit    documents packed whole where they fit                                  little padding, few cut
    document    one document a row, its first seq_len + 1 tokens                       much padding, the rest not read

The order itself is the same for all: chunks of K rows are permuted, dealt into windows and read across.
"""

from __future__ import annotations

import numpy.typing as npt

from pileshard.errors import OptionError
from pileshard.order.chunks import Chunks, ChunkTable, cut
from pileshard.order.even import EvenChunks, documents, spans
from pileshard.order.schedule import whole

PACKINGS = ("concat", "best_fit", "document")


def cut_for(
    packing: str, shard_tokens: npt.ArrayLike, shard_documents: npt.ArrayLike | None, seq_len: int
) -> ChunkTable:
    """The chunks of a split's shards.

    Args:
      packing: one of `PACKINGS`.
      shard_tokens: tokens of each shard.
      shard_documents: documents of each shard, needed for `document`.
      seq_len: tokens that a row predicts.

    Raises:
      OptionError: there is no such packing, seq_len is out of range, or the shards hold no row.
    """
    if packing not in PACKINGS:
        raise OptionError(f"packing is {packing!r}; it takes {', '.join(map(repr, PACKINGS))}")
    whole("seq_len", seq_len, 1, bits=24)
    if packing == "best_fit":
        return spans(shard_tokens, seq_len)
    if packing == "document":
        if shard_documents is None:
            raise OptionError("packing='document' needs the number of documents of each shard")
        return documents(shard_documents, shard_tokens, seq_len)
    return cut(shard_tokens, seq_len)


def describe_chunks(packing: str, chunks: ChunkTable) -> str:
    """A line for a person: what an epoch of all chunks cuts off or does not fill, as far as the manifest tells."""
    if isinstance(chunks, Chunks):
        share = chunks.cut_tokens / chunks.tokens
        return f"cut off: {chunks.cut_tokens:,} tokens ({share:.4%}), {chunks.cut_samples:,} whole samples among them"
    assert isinstance(chunks, EvenChunks)
    rows = chunks.count * chunks.chunk_samples
    if packing == "document":
        held = int(chunks.units.sum())
        return (
            f"packing document: {held:,} documents, {rows - held:,} rows without one; what is beyond "
            f"{chunks.seq_len + 1:,} tokens of a document is not read"
        )
    places = rows * (chunks.seq_len + 1)
    empty = places - chunks.tokens
    return f"packing best_fit: no token cut off, {empty:,} of {places:,} places not filled ({empty / places:.4%})"
