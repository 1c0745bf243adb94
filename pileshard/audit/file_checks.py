"""Checks of a shard's two files from outside: there, of the right size, the index in agreement with the manifest."""

from __future__ import annotations

import hashlib

from pileshard.audit.report import Fault, FaultKind
from pileshard.errors import DatasetError
from pileshard.format.index import Index, load_index
from pileshard.format.manifest import ShardEntry
from pileshard.format.storage import Storage

_READ_BYTES = 4 << 20


def check_files(storage: Storage, shard: ShardEntry) -> tuple[list[Fault], Index | None]:
    """Both files are there with their sizes, and the index agrees with the manifest.

    Returns:
      The faults, and the index where it can be used.
    """
    faults = []
    for path, size in ((shard.path, shard.size), (shard.index_path, shard.index_size)):
        try:
            found = storage.size(path)
        except FileNotFoundError:
            faults.append(Fault(kind=FaultKind.MISSING_FILE, path=path, message="is not there"))
            continue
        except OSError as error:
            faults.append(Fault(kind=FaultKind.UNREADABLE, path=path, message=str(error)))
            continue
        if found != size:
            message = f"has {found:,} bytes, the manifest says {size:,}"
            faults.append(
                Fault(kind=FaultKind.WRONG_SIZE, path=path, message=message, offset=found if found < size else size)
            )
    if any(fault.path == shard.index_path for fault in faults):
        return faults, None
    try:
        index = load_index(storage, shard.index_path)
    except DatasetError as error:
        return [*faults, Fault(kind=FaultKind.INDEX, path=shard.index_path, message=str(error))], None
    return [*faults, *_check_totals(shard, index)], index


def _check_totals(shard: ShardEntry, index: Index) -> list[Fault]:
    found_totals = (
        *(index.records, index.total_tokens, int(index.offsets[-1]), int(index.text_bytes.sum())),
        *(int(index.tokens[0]), int(index.offsets[0]), int(index.text_bytes[-1]), int(index.keys[-1])),
    )
    wanted = (shard.records, shard.tokens, shard.size, shard.text_bytes, 0, 0, 0, 0)
    names = (
        *("records", "tokens", "shard bytes", "text bytes"),
        *("first tokens", "first offset", "last text bytes", "last key"),
    )
    wrong = [
        f"{name} {found:,} where {want:,} is due"
        for name, found, want in zip(names, found_totals, wanted, strict=True)
        if found != want
    ]
    return [Fault(kind=FaultKind.INDEX, path=shard.index_path, message="; ".join(wrong))] if wrong else []


def check_index_sha256(storage: Storage, shard: ShardEntry) -> list[Fault]:
    """The index has the manifest's hash."""
    digest = hashlib.sha256()
    try:
        with storage.open(shard.index_path) as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except OSError as error:
        return [Fault(kind=FaultKind.UNREADABLE, path=shard.index_path, message=str(error))]
    if digest.hexdigest() != shard.index_sha256:
        return [
            Fault(kind=FaultKind.WRONG_SHA256, path=shard.index_path, message="its bytes are not those of the build")
        ]
    return []
