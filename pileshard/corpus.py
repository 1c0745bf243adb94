"""A finished dataset: its manifest, its sources, and the orders in which it can be read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pileshard.errors import OptionError
from pileshard.format.damage import DamageError
from pileshard.format.manifest import Manifest, ShardEntry, SourceEntry
from pileshard.format.record import parse_example
from pileshard.format.storage import Storage
from pileshard.order.even import EvenChunks
from pileshard.order.fim import Fim
from pileshard.order.mixture import Mixture
from pileshard.order.plan import DEFAULT_SLOTS, Plan
from pileshard.order.schedule import whole
from pileshard.readers.best_fit_rows import BestFitRows
from pileshard.readers.cache import BlockCache
from pileshard.readers.chunk import ShardReader
from pileshard.readers.document_rows import DocumentRows
from pileshard.readers.left_out import LeftOut
from pileshard.readers.packed import PackedRows

#: Environment variable that names the dataset where no path is given.
PATH_VARIABLE = "PILESHARD_DATA"


@dataclass(frozen=True)
class Piece:
    """The part of a row that one record gives.

    Attributes:
      input: number of the document's input in the manifest.
      url: of that input.
      line: the document's line in it, from 1.
      part: the record's number among those of its document, from 0.
      record: number of the record in the shard.
      row_tokens: [begin, end) in the row.
      record_tokens: [begin, end) in the record's tokens.
    """

    input: int
    url: str
    line: int
    part: int
    record: int
    row_tokens: tuple[int, int]
    record_tokens: tuple[int, int]


@dataclass(frozen=True)
class Location:
    """Where the row of a position comes from.

    Attributes:
      position: in the global order.
      epoch: from 0.
      source: whose tokens they are.
      shard: path of the shard below the dataset's root.
      tokens: [begin, end) of the row in the shard's tokens; where the row is packed of several pieces, from the first
        one's begin to the last one's end.
      chunk: number of the chunk.
      sample: number of the row in its chunk.
      pieces: what the records give to the row, in order.
    """

    position: int
    epoch: int
    source: str
    shard: str
    tokens: tuple[int, int]
    chunk: int
    sample: int
    pieces: list[Piece]


class Corpus:
    """A dataset on disk.

    Attributes:
      storage: where it lies.
      manifest: all that is known of it.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        self.storage = storage
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"Corpus({self.storage.url!r}, {self.tokens:,} tokens)"

    @property
    def dataset_id(self) -> str:
        """Names the content."""
        return self.manifest.dataset_id

    @property
    def sources(self) -> list[SourceEntry]:
        """Totals of each source and split."""
        return self.manifest.sources

    @property
    def tokens(self) -> int:
        """Tokens of all splits."""
        return self.manifest.tokens

    def shards(self, split: str) -> list[ShardEntry]:
        """Shards of a split, in the manifest's order.

        Raises:
          OptionError: there are none.
        """
        found = [shard for shard in self.manifest.shards if shard.split == split]
        if not found:
            splits = sorted({shard.split for shard in self.manifest.shards})
            raise OptionError(
                f"{self.storage.url}: no split {split!r}; it has {', '.join(map(repr, splits)) or 'no shards at all'}"
            )
        return found

    def plan(
        self,
        seed: int = 0,
        *,
        seq_len: int = 2048,
        split: str = "train",
        slots: int = DEFAULT_SLOTS,
        weights: Mapping[str, float] | str | None = None,
        epochs: Mapping[str, float] | str | int | None = None,
        exclude: Sequence[str] = (),
        packing: str = "concat",
        fim_rate: float = 0.0,
        fim_spm_rate: float = 0.5,
        fim_ids: Sequence[int] | None = None,
    ) -> CorpusPlan:
        """The order of a split's samples.

        Args:
          seed: decides the permutations.
          seq_len: tokens that a sample predicts.
          split: `train` or `validation`.
          slots: chunks read side by side; a multiple of every number of ranks ever expected reads best.
          weights: share of each source by name, in any unit, or "pile"; sources not named are left out.
          epochs: how often each source is read in an epoch, by name (those not named: once), or "pile". A plain number
            is no part of the order.
          exclude: names of sources to leave out.
          packing: `concat`, `best_fit` or `document`: how documents become rows.
          fim_rate: share of the documents that are rearranged to be filled in the middle.
          fim_spm_rate: share of those that become suffix, prefix, middle; the others prefix, suffix, middle.
          fim_ids: token ids that open prefix, middle and suffix.

        Raises:
          OptionError: an option is out of range, a name is no source, or the split holds no sample of this length.
        """
        shards = self.shards(split)
        totals = {entry.name: entry.tokens for entry in self.sources if entry.split == split}
        tokens = np.fromiter((shard.tokens for shard in shards), dtype=np.int64, count=len(shards))
        return CorpusPlan(
            self.dataset_id,
            tokens,
            seed,
            seq_len,
            slots,
            split,
            shard_sources=[shard.source for shard in shards],
            mixture=Mixture.of(weights, epochs, exclude, totals),
            packing=packing,
            shard_documents=np.fromiter((shard.documents for shard in shards), dtype=np.int64, count=len(shards)),
            fim=Fim.of(fim_rate, fim_spm_rate, fim_ids, self.manifest.eod_id),
            corpus=self,
            shards=shards,
        )


@dataclass(frozen=True, eq=False)
class CorpusPlan(Plan):
    """A plan that knows its dataset, and so can say what stands where.

    Attributes:
      corpus: the dataset.
      shards: the split's shards.
    """

    corpus: Corpus = field(kw_only=True)
    shards: list[ShardEntry] = field(kw_only=True)

    def reader(
        self, cache: BlockCache | None = None, *, checksums: bool = True, left_out: LeftOut | None = None
    ) -> ShardReader:
        """A new reader of the split's shards.

        Args:
          cache: for remote shards.
          checksums: whether each record's checksum is compared.
          left_out: takes down damage instead of its being raised.
        """
        manifest = self.corpus.manifest
        return ShardReader(
            *(self.corpus.storage, self.shards, manifest.token_dtype),
            cache=cache,
            vocab_size=manifest.vocab_size,
            checksums=checksums,
            left_out=left_out,
        )

    def packed(self, reader: ShardReader) -> PackedRows | None:
        """What makes the rows of chunks from a reader's shards; None with packing="concat"."""
        if not isinstance(self.chunks, EvenChunks):
            return None
        remember = min(self.slots, self.chunks.count)
        eod_id = self.corpus.manifest.eod_id
        if self.packing == "document":
            return DocumentRows(self.chunks, reader, self.shards, eod_id, remember)
        return BestFitRows(self.chunks, reader, self.shards, eod_id, remember, self.seed)

    def row(self, position: int) -> npt.NDArray[Any]:
        """The tokens at a position as the dataset has them: [seq_len + 1] of the dtype on disk.

        What a packed row does not fill holds the end-of-document id.
        """
        return self.words(position)[: self.seq_len + 1]

    def words(self, position: int) -> npt.NDArray[Any]:
        """What a reader takes for the row at a position: its tokens, and behind a packed row's where its parts end."""
        rows = self.rows(whole("position", position, 0))
        reader = self.reader()
        packed = self.packed(reader)
        out = np.empty(self.seq_len + 1 if packed is None else packed.words, dtype=reader.dtype)
        if packed is None:
            reader.read(int(rows.shard), int(rows.first_token), out)
        else:
            packed.row(int(rows.chunk), int(rows.sample), out)
        reader.close()
        return out

    def locate(self, position: int) -> Location:
        """Traces the row at a position back to shard, documents, inputs and lines.

        Raises:
          OptionError: the position is below 0.
          DatasetError: the shard is damaged.
        """
        rows = self.rows(whole("position", position, 0))
        number, begin = int(rows.shard), int(rows.first_token)
        end = begin + self.seq_len + 1
        reader = self.reader()
        packed = self.packed(reader)
        parts = [(0, begin, end)]
        if packed is not None:
            _, found = packed.parts(int(rows.chunk))
            found = found.of(int(rows.sample), int(rows.sample) + 1)
            ends = found.token + found.length
            parts = list(zip(found.place.tolist(), found.token.tolist(), ends.tolist(), strict=True))
            begin, end = (int(found.token[0]), int(ends[-1])) if parts else (begin, begin)
        pieces = [
            self._piece(reader, number, record, part)
            for part in parts
            for record in self._records(reader.index(number).tokens, part[1], part[2])
        ]
        reader.close()
        entry = self.shards[number]
        return Location(
            position=int(position),
            epoch=int(position) // self.samples_per_epoch,
            source=entry.source,
            shard=entry.path,
            tokens=(begin, end),
            chunk=int(rows.chunk),
            sample=int(rows.sample),
            pieces=pieces,
        )

    @staticmethod
    def _records(tokens: npt.NDArray[np.uint64], begin: int, end: int) -> range:
        """The records that hold tokens [begin, end)."""
        low = int(np.searchsorted(tokens, np.uint64(begin), side="right")) - 1
        return range(low, int(np.searchsorted(tokens, np.uint64(end), side="left")))

    def _piece(self, reader: ShardReader, shard: int, record: int, part: tuple[int, int, int]) -> Piece:
        """What a record gives to a part of a row: its place there, begin and end in the shard's tokens."""
        place, begin, end = part
        tokens = reader.index(shard).tokens
        first, last = int(tokens[record]), int(tokens[record + 1])
        head = reader.record_head(shard, record)
        try:
            # The head alone, closed with tokens that are not there: only their number counts.
            example = parse_example(head + bytes((last - first) * reader.dtype.itemsize))
            url = self.corpus.manifest.inputs[example.input].url
        except (ValueError, IndexError) as error:
            storage, entry = self.corpus.storage, self.shards[shard]
            fault = f"damaged: record {record:,} is not readable ({error})"
            raise DamageError(storage.url_of(entry.path), fault, storage.url) from None
        low, high = max(first, begin), min(last, end)
        return Piece(
            input=example.input,
            url=url,
            line=example.line,
            part=example.part,
            record=record,
            row_tokens=(place + low - begin, place + high - begin),
            record_tokens=(low - first, high - first),
        )


def open_corpus(path: str | os.PathLike[str] | None = None, storage_options: Mapping[str, Any] | None = None) -> Corpus:
    """Opens a dataset. Reads its manifest and nothing else.

    Args:
      path: directory or any fsspec URL; None: what the environment variable PILESHARD_DATA names.
      storage_options: for fsspec.

    Raises:
      OptionError: no path is given or named, or an argument is of a wrong type.
      DatasetError: there is no finished dataset.
    """
    if path is None:
        path = os.environ.get(PATH_VARIABLE, "")
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise OptionError(f"path is {path!r}; it takes a directory or an fsspec URL")
    if not os.fspath(path):
        raise OptionError(f"which dataset? Give path=, or set the environment variable {PATH_VARIABLE}")
    storage = Storage(os.fspath(path), storage_options)
    return Corpus(storage, Manifest.read(storage))
