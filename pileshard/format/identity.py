"""Hashes of a document's identity (input, line number): its key, and its term in the account's sums.

All arithmetic is on unsigned 64-bit integers modulo 2^64, the same on every platform and numpy version.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

U64 = npt.NDArray[np.uint64]

_LINE_BITS = 40  # 10^12 lines an input, 16 M inputs
MAX_LINE = (1 << _LINE_BITS) - 1
MAX_INPUT = (1 << 24) - 1

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix64(values: U64) -> U64:
    """A bijective mixer of 64-bit integers.

    The finalizer of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", with
    Stafford's variant 13 of the constants).

    Args:
      values: uint64 of any shape.

    Returns:
      uint64 of the same shape.
    """
    x = values.astype(np.uint64, copy=True)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def mix64_int(value: int) -> int:
    """`mix64` of one Python integer, taken modulo 2^64."""
    return int(mix64(np.array([value & _MASK], dtype=np.uint64))[0])


def pack_identity(input_number: int | npt.NDArray[Any], lines: npt.NDArray[Any]) -> U64:
    """(input, line) as one uint64: the input's number in the high 24 bits, the line number in the low 40."""
    high = np.asarray(input_number).astype(np.uint64) << np.uint64(_LINE_BITS)
    return high | np.asarray(lines).astype(np.uint64)


def unpack_identity(packed: U64) -> tuple[U64, U64]:
    """Inputs' numbers and line numbers, as `pack_identity` packed them."""
    return packed >> np.uint64(_LINE_BITS), packed & np.uint64(MAX_LINE)


def document_keys(seed: int, input_number: int | npt.NDArray[Any], lines: npt.NDArray[Any]) -> U64:
    """Keys of documents: the order of the corpus.

    A bijection of (input, line) for every seed, so no two documents share a key.

    Args:
      seed: the build's seed.
      input_number: number of the input in the manifest's list, or one for each line.
      lines: [n] line numbers, from 1.

    Returns:
      uint64 [n].
    """
    first = np.uint64(mix64_int(seed + _GOLDEN))
    second = np.uint64(mix64_int(seed + 2 * _GOLDEN))
    return mix64(mix64(pack_identity(input_number, lines) ^ first) + second)


def identity_hashes(input_number: int | npt.NDArray[Any], lines: npt.NDArray[Any]) -> U64:
    """Hashes of identities whose sums close the account: uint64 [n], independent of the seed and of the keys."""
    return mix64(mix64(pack_identity(input_number, lines) + np.uint64(0xD1B54A32D192ED03)) ^ np.uint64(_GOLDEN))


def sum64(values: U64) -> int:
    """Sum modulo 2^64."""
    return int(np.add.reduce(values, dtype=np.uint64)) if len(values) else 0


def hex64(value: int) -> str:
    """A 64-bit integer as 16 hexadecimal digits: JSON numbers are exact to 2^53 only."""
    return f"{value & _MASK:016x}"


def text_keys(seed: int, texts: list[bytes]) -> tuple[U64, U64]:
    """Keys of texts for exact deduplication: equal texts have equal keys and twins (XXH3, 128 bits, cut in two)."""
    seed &= (1 << 64) - 1
    digests = b"".join([xxhash.xxh3_128_digest(text, seed) for text in texts])
    pairs = np.frombuffer(digests, dtype=">u8").reshape(-1, 2)
    return pairs[:, 0].astype(np.uint64), pairs[:, 1].astype(np.uint64)


def split_hashes(texts: list[bytes]) -> U64:
    """Hashes that decide a text's split (XXH3, 64 bits, no seed): equal texts never fall on both sides."""
    return np.array([xxhash.xxh3_64_intdigest(text) for text in texts], dtype=np.uint64)
