"""The index beside a shard: where each record begins, in bytes and in tokens.

A `.npy` file (version 1.0, a header of 128 bytes), uint64, C order, shape [4, records + 1], so that each row is
contiguous and can be searched in an mmap:

    row 0  tokens       tokens of the shard before record i              last column: all tokens
    row 1  offsets      byte offset of record i in the shard             last column: size of the shard
    row 2  text_bytes   UTF-8 bytes of the document, on its first record; 0 on its other parts   last column: 0
    row 3  keys         key of the document                              last column: 0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pileshard.errors import DatasetError
from pileshard.format.damage import DamageError
from pileshard.format.identity import U64
from pileshard.format.storage import Storage

HEADER_BYTES = 128
_COLUMN_BYTES = 4 * 8


def npy_header(columns: int) -> bytes:
    """The `.npy` file's bytes before the table, for a shape of [4, columns]: what `numpy.save` writes."""
    text = f"{{'descr': '<u8', 'fortran_order': False, 'shape': (4, {columns}), }}".encode()
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little") + text
    return start.ljust(HEADER_BYTES - 1) + b"\n"


@dataclass(frozen=True)
class Index:
    """An index in memory or mapped from a file.

    Attributes:
      table: uint64 [4, records + 1].
    """

    table: U64

    @property
    def tokens(self) -> U64:
        """Tokens before each record, and all of them: uint64 [records + 1]."""
        return self.table[0]

    @property
    def offsets(self) -> U64:
        """Byte offset of each record, and the shard's size: uint64 [records + 1]."""
        return self.table[1]

    @property
    def text_bytes(self) -> U64:
        """UTF-8 bytes of the document on its first record, else 0: uint64 [records + 1]."""
        return self.table[2]

    @property
    def keys(self) -> U64:
        """Key of each record's document: uint64 [records + 1], the last one 0."""
        return self.table[3]

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.table.shape[1]) - 1

    @property
    def total_tokens(self) -> int:
        """Number of tokens in the shard."""
        return int(self.table[0, -1])

    def to_bytes(self) -> bytes:
        """The `.npy` file."""
        return npy_header(self.table.shape[1]) + np.ascontiguousarray(self.table, dtype="<u8").tobytes()


def make_index(
    tokens: list[int] | U64, offsets: list[int] | U64, text_bytes: list[int] | U64, keys: list[int] | U64
) -> Index:
    """An index from its rows: the first two with their totals (records + 1 long), the others without."""
    table = np.zeros((4, len(tokens)), dtype="<u8")
    table[0] = tokens
    table[1] = offsets
    table[2, :-1] = text_bytes
    table[3, :-1] = keys
    return Index(table)


def load_index(storage: Storage, path: str) -> Index:
    """Opens an index: mapped where the storage is a local directory, else read whole.

    Args:
      storage: the dataset's root.
      path: the index's path below it.

    Raises:
      DamageError: the file is missing or is no index.
      DatasetError: the storage does not give it.
    """
    # Not `numpy.load`: a damaged header would have it allocate what it claims, or take the file for an archive.
    name = storage.url_of(path)
    try:
        size = storage.size(path)
        columns, rest = divmod(size - HEADER_BYTES, _COLUMN_BYTES)
        if columns < 1 or rest:
            raise DamageError(name, f"no index has {size:,} bytes", storage.url)
        header = storage.read_range(path, 0, HEADER_BYTES)
        if header != npy_header(columns):
            wanted = f"a uint64 table [4, {columns:,}]"
            raise DamageError(name, f"not a readable index (its header is not that of {wanted})", storage.url)
        table: U64
        if (local := storage.local_path(path)) is not None:
            table = np.memmap(local, dtype="<u8", mode="r", offset=HEADER_BYTES, shape=(4, columns))
        else:
            table = np.frombuffer(storage.read_range(path, HEADER_BYTES, size), dtype="<u8").reshape(4, columns)
    except FileNotFoundError:
        raise DamageError(name, "the index is missing", storage.url) from None
    except ValueError as error:
        raise DamageError(name, f"not a readable index ({error})", storage.url) from error
    except OSError as error:
        raise DatasetError(f"{name}: the index cannot be read ({error.strerror or error})") from error
    return Index(table)
