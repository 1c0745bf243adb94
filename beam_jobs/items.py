"""One work item, from its task to its receipt: what every engine calls."""

from __future__ import annotations

import contextlib
import time
import uuid

import msgspec

from beam_jobs.count_stage import count_item, hash_item
from beam_jobs.gather_stage import gather_item
from beam_jobs.job import (
    FAILURES,
    CountItem,
    CountReceipt,
    Failure,
    GatherItem,
    GatherReceipt,
    HashItem,
    HashReceipt,
    Item,
    Job,
    MergeItem,
    MergeReceipt,
    TokenizeReceipt,
    check_not_overtaken,
    receipt_path,
    write_json,
)
from beam_jobs.memory import item_in_work
from beam_jobs.merge_stage import merge_item
from beam_jobs.tokenize_stage import tokenize_item
from beam_jobs.work_share import worker_name
from pileshard.errors import BuildError, InputError, PileshardError, StorageError
from pileshard.format.retry import Retries, describe
from pileshard.format.secrets import redact
from pileshard.format.storage import Storage

Receipt = TokenizeReceipt | GatherReceipt | MergeReceipt | CountReceipt | HashReceipt


def run_item(job: Job, item: Item, token_bytes: int, eod_id: int) -> Receipt | None:
    """Does an item, publishes its receipt and returns it; an item that has one already is left alone.

    An error is left in a file for the driver before it is raised, since engines cut, wrap or lose its text.
    """
    retries = Retries()
    storage = job.storage(retries)
    path = receipt_path(job.fingerprint, item)
    if storage.exists(path):
        return None
    began = time.time()
    try:
        with item_in_work():
            receipt = _do(job, item, token_bytes, eod_id, retries)
        receipt = msgspec.structs.replace(receipt, retries=retries.by_fault(), began=began, worker=worker_name())
        check_not_overtaken(storage, item)
        write_json(storage, path, receipt)
        return receipt
    except (PileshardError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _lacks_threads(error):
            raise
        leave_failure(storage, item, error)
        # Engines log what is raised, and its text may be of foreign origin.
        raise BuildError(sentence(error, item)) from None


def _do(job: Job, item: Item, token_bytes: int, eod_id: int, retries: Retries) -> Receipt:
    if isinstance(item, MergeItem):
        return merge_item(job, item, token_bytes, eod_id, retries)
    if isinstance(item, GatherItem):
        return gather_item(job, item, token_bytes, retries)
    if isinstance(item, CountItem):
        return count_item(job, item, retries)
    if isinstance(item, HashItem):
        return hash_item(job, item, retries)
    return tokenize_item(job, item, retries)


def leave_failure(storage: Storage, item: Item, error: BaseException) -> None:
    """Leaves what went wrong with an item, in a sentence, for the driver."""
    with contextlib.suppress(OSError, PileshardError):
        failure = Failure(item=item.name, kind=type(error).__name__, message=sentence(error, item))
        write_json(storage, f"{FAILURES}/{item.name}-{uuid.uuid4().hex[:12]}.json", failure)


def sentence(error: BaseException, item: Item) -> str:
    """What a person needs to know of an item's error."""
    if isinstance(error, StorageError):
        return redact(f"{error}; mend it and run the same command again, which continues the build")
    if isinstance(error, InputError):
        return redact(f"{error}; the same command then continues the build")
    if isinstance(error, PileshardError):
        return redact(str(error))
    if isinstance(error, OSError):
        return os_sentence(error, item.name)
    if _lacks_threads(error):
        return (
            f"{item.name}: the system starts no more threads; raise the limit on processes (ulimit -u, or the "
            "container's), or lower --workers, and run the same command again"
        )
    return f"{item.name}: out of memory; lower --run-bytes or give the worker more, and run the same command again"


def _lacks_threads(error: BaseException) -> bool:
    return "start new thread" in str(error)


def os_sentence(error: OSError, name: str) -> str:
    """What a person needs to know of an error of the system: the file (or else `name`), the reason, what to do."""
    where = error.filename or name
    reason = error.strerror or describe(error)
    return f"{where}: {reason}; mend it and run the same command again, which continues the build"


def take_failures(storage: Storage) -> list[str]:
    """The failures that items left, removed as they are read."""
    messages = []
    for path in storage.files(FAILURES):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            failure = msgspec.json.decode(storage.read_bytes(path), type=Failure)
            if failure.message not in messages:
                messages.append(failure.message)
        storage.remove(path)
    return messages
