"""Inputs that are not as an earlier command on the output found them: the same, to be read anew, or a reason to refuse.

| what an earlier command did with it | other bytes, or it cannot be told | a copied or touched file of the same bytes |
|---|---|---|
| nothing, or a part, or met damage | read from its begin | what was done holds |
| read it whole | refused | what was done holds |
| left it out, and planned shards without it | refused | refused: no hash tells that it is the same |

Size is asked first, then the time or tag of change; only where that alone differs, and a hash of the input is known,
its bytes are hashed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from beam_jobs.inputs import InputFile
from beam_jobs.job import (
    RECEIPTS,
    CountReceipt,
    HashReceipt,
    Job,
    JobRecord,
    TokenizeReceipt,
    read_job,
    read_receipt,
    receipt_path,
    receipts_of_input,
    write_json,
)
from beam_jobs.parts import PARTS, InputParts, PartsPlan, joined
from beam_jobs.reads import side_by_side
from beam_jobs.shard_plan import GROUP_COUNT
from pileshard.format.manifest import Manifest
from pileshard.format.storage import Storage, open_url

_log = logging.getLogger("pileshard.build")

_Receipt = TokenizeReceipt | CountReceipt | HashReceipt
_KINDS: tuple[tuple[Literal["tokenize", "count", "hash"], type[_Receipt]], ...] = (
    ("tokenize", TokenizeReceipt),
    ("count", CountReceipt),
    ("hash", HashReceipt),
)

_hashes: dict[tuple[str, str], str] = {}  # by URL and state: a command looks several times


@dataclass(frozen=True)
class Change:
    """An input whose file has another state than an earlier command found.

    Attributes:
      number: of the input.
      what: is different, in words; "" where it has the same bytes.
      refused: whether what an earlier command made of it is in use.
      receipts: of it, by path.
    """

    number: int
    what: str
    refused: bool
    receipts: dict[str, _Receipt]


def changes(storage: Storage, before: JobRecord, job: Job, complete: bool) -> list[Change]:
    """The inputs that changed since an earlier command.

    Args:
      storage: the output.
      before: the earlier command's record; its inputs have the same URLs.
      job: of this command.
      complete: whether there is a manifest.
    """
    pairs = list(zip(before.inputs, job.record.inputs, strict=True))
    suspects = [number for number, (old, new) in enumerate(pairs) if old.state != new.state]
    if not suspects:
        return []
    receipts = {} if complete else _receipts(storage, suspects)
    planned = complete or storage.exists(GROUP_COUNT)
    hashes = {entry.url: entry.sha256 for entry in Manifest.read(storage).inputs} if complete else {}
    found = []
    for number in suspects:
        old, new = pairs[number]
        mine = receipts.get(number, {})
        # What a worker of a command before that one left late is of no account.
        valid = [receipt for receipt in mine.values() if receipt.item.state == old.state]
        passes = [receipt for receipt in valid if isinstance(receipt, TokenizeReceipt) and not receipt.skipped]
        known = hashes.get(new.url, "") if complete else next(filter(None, map(_sha256_in, valid)), "")
        refused = planned or _has_whole_pass(passes)
        if old.size != new.size:
            what = f"the input {new.url} had {old.size:,} bytes, now {new.size:,}"
        elif known and _sha256_of(new, job) == known:
            what, refused = "", False
        elif known or passes:
            what = f"the input {new.url} has other bytes than when it was read"
        elif planned:
            what = f"the input {new.url} has changed or was touched since shards were planned"
        else:
            what = f"the input {new.url} has changed since"
        found.append(Change(number, what, refused, mine))
    return found


@contextlib.contextmanager
def settled_changes(storage: Storage, job: Job) -> Iterator[None]:
    """Settles the changes that are no reason to refuse, around the writing of this command's record.

    Before it, receipts of the same bytes are written under their new names; after it, the old names go, with receipts
    of other bytes. So a command that is killed anywhere leaves what the next one needs to tell the same.

    Raises:
      BuildError: the record of the build is damaged.
    """
    before = read_job(storage)
    found = changes(storage, before, job, complete=False)
    for change in found:
        old, new = before.inputs[change.number], job.record.inputs[change.number]
        if change.what and (change.receipts or old.size != new.size):
            _log.warning("%s: it is read from its begin", change.what)
        for receipt in change.receipts.values():
            if not change.what and receipt.item.state == old.state:
                item = msgspec.structs.replace(receipt.item, state=new.state)
                write_json(storage, receipt_path(job.fingerprint, item), msgspec.structs.replace(receipt, item=item))
    _forget_cuts(storage, {change.number for change in found if change.what})
    yield
    for change in found:
        new = job.record.inputs[change.number]
        for path, receipt in change.receipts.items():
            if receipt.item.state != new.state:
                storage.remove(path)


def _forget_cuts(storage: Storage, numbers: set[int]) -> None:
    """Lets inputs be cut anew: a file of the same size may be in another container."""
    if not numbers:
        return
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        plan = msgspec.json.decode(storage.read_bytes(PARTS), type=PartsPlan)
        none = InputParts(way="whole", container="", cuts=[0, -1])
        cut = [none if number in numbers else one for number, one in enumerate(plan.inputs)]
        write_json(storage, PARTS, msgspec.structs.replace(plan, inputs=cut))


def _receipts(storage: Storage, numbers: list[int]) -> dict[int, dict[str, _Receipt]]:
    """Receipts of the first stages' work on some inputs, by input and path."""
    wanted = {receipts_of_input(stage, number): (number, kind) for number in numbers for stage, kind in _KINDS}
    found = []
    for path in storage.files(RECEIPTS):
        stage, _, rest = path.partition("-")
        if of := wanted.get(f"{stage}-{rest.partition('-')[0]}-"):
            found.append((path, *of))
    read = side_by_side(lambda one: read_receipt(storage, one[0], one[2]), found)
    by_input: dict[int, dict[str, _Receipt]] = {}
    for (path, number, _), receipt in zip(found, read, strict=True):
        if receipt is not None:
            by_input.setdefault(number, {})[path] = receipt
    return by_input


def _has_whole_pass(receipts: list[TokenizeReceipt]) -> bool:
    """Whether some of the receipts are those of all parts of one cut, read by one engine."""
    cuts: dict[tuple[int, bool, str], list[TokenizeReceipt]] = {}
    for receipt in receipts:
        item = receipt.item
        cuts.setdefault((item.parts, item.entry is not None, item.engine), []).append(receipt)
    return any(joined(parts) is not None for parts in cuts.values())


def _sha256_in(receipt: _Receipt) -> str:
    """Hash of the whole input, where a receipt tells it."""
    if isinstance(receipt, TokenizeReceipt):
        return receipt.input_sha256
    return receipt.sha256 if isinstance(receipt, HashReceipt) and not receipt.unfit else ""


def _sha256_of(entry: InputFile, job: Job) -> str:
    key = (entry.url, entry.state)
    if key not in _hashes:
        digest = hashlib.sha256()
        with contextlib.closing(open_url(entry.url, job.storage_options, retry=job.retry)) as file:
            while chunk := file.read(8 << 20):
                digest.update(chunk)
            file.check_unchanged()
        _hashes[key] = digest.hexdigest()
    return _hashes[key]
