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
from pileshard.format.entries import Count, Hex64, InputEntry, Options, Path, Sha256, ShardEntry, SourceEntry
from pileshard.format.paths import MANIFEST, TOKENIZER
from pileshard.format.storage import Storage

#: Version of the record, index and manifest. A reader refuses a newer one.
FORMAT_VERSION: Literal[1] = 1

#: What to do about a newer format.
UPGRADE = "upgrade pileshard"


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
                f"{name}: written in format {version}, and this release reads up to format {FORMAT_VERSION}; {UPGRADE}"
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
