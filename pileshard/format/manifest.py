"""The manifest: the one small file that names everything else of a dataset.

Decoded by msgspec into the frozen structs below, which check names, types and bounds as they read (18 MB for 40,000
shards in a fraction of a second); `schemas/manifest.schema.json` is their JSON Schema for other programs.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from pileshard.errors import DatasetError
from pileshard.format.paths import MANIFEST, TOKENIZER
from pileshard.format.storage import Storage

#: Version of the record, index and manifest. A reader refuses a newer one.
FORMAT_VERSION: Literal[1] = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
Split = Literal["train", "validation"]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options that the shards' bytes depend on.

    Attributes:
      seed: of the order of documents.
      shard_bytes: target size of a shard, in bytes.
      validation: share of the documents held out, 0 <= share < 1.
      dedup: `exact` drops texts that occurred before; then keys are hashes of texts, else of identities.
      special_tokens: what becomes of special tokens that a text holds literally.
      text_key: dotted path of the text in a line's JSON object.
      source_key: dotted path of the name of the source.
    """

    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    shard_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    validation: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    dedup: Literal["none", "exact"]
    special_tokens: Literal["text", "token", "reject"]
    text_key: str
    source_key: str


class InputEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The account of one input: lines = accepted + blank + all of rejected.

    Attributes:
      url: what opened it. Documents name it by its number in the list, from 0.
      size: stored (compressed) bytes.
      sha256: of the stored bytes; empty where it was left out.
      lines: in it.
      accepted: lines that became documents.
      rejected: lines that did not, by reason.
      blank: lines of white space alone.
      duplicates: accepted documents that exact deduplication dropped.
      tokens: of the accepted documents, with an end-of-document id each.
      text_bytes: UTF-8 bytes of their texts.
      identity_sum: sum of their identity hashes modulo 2^64.
      rejected_path: the file below the root that lists the rejected lines, null where there are none.
      rejected_sha256: of that file, where it was taken.
      skipped: why the input was left out whole (then its counts are 0), else null.
    """

    url: str
    size: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")]
    lines: Count = 0
    accepted: Count = 0
    rejected: dict[str, Count] = {}
    blank: Count = 0
    duplicates: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    identity_sum: Hex64 = "0" * 16
    rejected_path: str | None = None
    rejected_sha256: Sha256 | None = None
    skipped: str | None = None


class SourceEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Totals of one source and split.

    Attributes:
      name: of the source.
      split: of it.
      documents: in its shards.
      tokens: in its shards, with end-of-document ids.
      text_bytes: UTF-8 bytes of the documents' texts.
      shards: how many it has.
    """

    name: str
    split: Split
    documents: Count
    tokens: Count
    text_bytes: Count
    shards: Count


class ShardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shard: documents of `source` and `split` with `key_first` <= key <= `key_last`, in key order.

    Attributes:
      path: of the shard below the root.
      source: of its documents.
      split: of its documents.
      number: its place among the shards of its source and split, from 0.
      count: how many those are.
      size: bytes of the shard.
      sha256: of the shard.
      index_path: of its index below the root.
      index_size: bytes of the index.
      index_sha256: of the index.
      records: in it; each part of a long document is one.
      documents: in it; the parts of one count once.
      tokens: in it, with end-of-document ids.
      text_bytes: UTF-8 bytes of its documents' texts.
      key_first: the lowest key that would belong to it.
      key_last: the highest key that would belong to it.
      identity_sum: sum of its documents' identity hashes modulo 2^64.
    """

    path: Path
    source: str
    split: Split
    number: Count
    count: Count
    size: Count
    sha256: Sha256
    index_path: Path
    index_size: Count
    index_sha256: Sha256
    records: Count
    documents: Count
    tokens: Count
    text_bytes: Count
    key_first: Hex64
    key_last: Hex64
    identity_sum: Hex64


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """A dataset.

    Attributes:
      format: names this kind of file.
      format_version: of records, indexes and this file; a reader refuses a newer one.
      writer: program and release that wrote it.
      dataset_id: names the content: a hash of the format, the tokenizer and every shard's and index's sha256.
      dtype: of a token on disk, little-endian.
      vocab_size: highest token id + 1.
      eod_id: the id that closes every document.
      eod_token: its string.
      tokenizer_path: of the tokenizer below the root.
      tokenizer_sha256: of that file.
      options: that the shards' bytes depend on.
      documents: in all shards.
      tokens: in all shards, with end-of-document ids.
      text_bytes: UTF-8 bytes of all documents' texts.
      inputs: in the order of their numbers.
      sources: sorted by name and split.
      shards: sorted by source, split and number.
      duplicates_identity_sum: sum of the identity hashes of documents that deduplication dropped.
      build: how the build went (times, workers, engines); the shards do not depend on it.
      manifest_sha256: of this file with this field, the last one, empty.
    """

    format: Literal["pileshard"] = "pileshard"
    format_version: Literal[1] = FORMAT_VERSION
    writer: str = ""
    dataset_id: str = ""
    dtype: Literal["uint16", "uint32"]
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=2**32)]
    eod_id: Count
    eod_token: str
    tokenizer_path: Path = TOKENIZER
    tokenizer_sha256: Sha256
    options: Options
    documents: Count
    tokens: Count
    text_bytes: Count
    duplicates_identity_sum: Hex64 = "0" * 16
    inputs: list[InputEntry]
    sources: list[SourceEntry]
    shards: list[ShardEntry]
    build: dict[str, Any] = {}
    manifest_sha256: str = ""

    @cached_property
    def token_dtype(self) -> np.dtype[Any]:
        """Numpy dtype of a token on disk."""
        return np.dtype(self.dtype).newbyteorder("<")

    @cached_property
    def input_lines(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Number of lines of each input: int64 [inputs]."""
        return np.array([entry.lines for entry in self.inputs], dtype=np.int64)

    def content_id(self) -> str:
        """The `dataset_id` that belongs to this content."""
        digest = hashlib.sha256(f"pileshard {self.format_version} {self.dtype} {self.eod_id}".encode())
        digest.update(self.tokenizer_sha256.encode())
        for shard in self.shards:
            digest.update(f"\n{shard.path} {shard.sha256} {shard.index_sha256}".encode())
        return digest.hexdigest()[:32]

    def to_bytes(self) -> bytes:
        """The file, with `dataset_id` and `manifest_sha256` filled in."""
        named = msgspec.structs.replace(self, dataset_id=self.content_id(), manifest_sha256="")
        digest = hashlib.sha256(_encode(named)).hexdigest()
        return _encode(msgspec.structs.replace(named, manifest_sha256=digest))

    @staticmethod
    def bytes_are_whole(data: bytes) -> bool:
        """Whether a file has the hash that its `manifest_sha256` names.

        Taken from the bytes as they are, so that it holds for a manifest of any release.
        """
        match = _SEAL.search(data)
        if match is None:
            return False
        begin, end = match.span(1)
        return hashlib.sha256(data[:begin] + data[end:]).hexdigest().encode() == match.group(1)

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Manifest:
        """Decodes and checks a manifest.

        Args:
          data: the file.
          name: of the file, for messages.

        Raises:
          DatasetError: no manifest, one of a newer format, or one that does not fit the schema.
        """
        try:
            head = msgspec.json.decode(data, type=_Head)
        except _UNDECODABLE as error:
            raise DatasetError(f"{name}: not a pileshard manifest ({error})") from None
        if head.format != "pileshard":
            raise DatasetError(f"{name}: not a pileshard manifest (format is {head.format!r})")
        version = head.format_version
        if type(version) is not int or version < 1:
            said = "has no format_version" if version is None else f"its format_version is {version!r}"
            raise DatasetError(
                f"{name}: {said}, and formats are counted from 1, so it is damaged: run `pileshard repair`, or restore "
                "it from a copy"
            )
        if version > FORMAT_VERSION:
            raise DatasetError(
                f"{name}: written in format {version}, and this release reads up to format {FORMAT_VERSION}; upgrade "
                "pileshard"
            )
        try:
            return msgspec.json.decode(data, type=Manifest)
        except _UNDECODABLE as error:
            raise DatasetError(
                f"{name}: does not fit the manifest's schema ({error}); run `pileshard repair`, or restore it from a "
                "copy"
            ) from None

    @staticmethod
    def read(storage: Storage) -> Manifest:
        """Reads the manifest of a dataset.

        Raises:
          DatasetError: there is none (also: an unfinished build), or it cannot be used.
        """
        return Manifest.from_bytes(Manifest.read_bytes(storage), storage.url_of(MANIFEST))

    @staticmethod
    def read_bytes(storage: Storage) -> bytes:
        """The file of a dataset's manifest.

        Raises:
          DatasetError: there is none (also: an unfinished build).
        """
        try:
            return storage.read_bytes(MANIFEST)
        except (FileNotFoundError, NotADirectoryError):
            hint = "no dataset there"
            if storage.exists("_build"):
                hint = "the build is not finished; run the same `pileshard build` command again"
            raise DatasetError(f"{storage.url_of(MANIFEST)}: not found ({hint})") from None


_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

#: The end of every manifest.
_SEAL = re.compile(rb'"manifest_sha256": "([0-9a-f]{64})"\n}\n\Z')


class _Head(msgspec.Struct):
    format: Any = None
    format_version: Any = None


def _encode(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
