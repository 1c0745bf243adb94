"""The count stage: before an input is entered at its frames, their text is counted; and its stored bytes are hashed.

It runs only for inputs of several parts that can be entered. Whatever is odd about such an input (a frame that is none,
damage, a seam that does not fit) is no error here: the input is then read through, and that tells what it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from typing import Any

import xxhash

from beam_jobs.job import CountItem, CountReceipt, HashItem, HashReceipt, Job
from beam_jobs.parts import PartsPlan
from beam_jobs.progress import Heartbeat
from pileshard.errors import InputError
from pileshard.format.retry import Retries
from pileshard.format.storage import open_url
from pileshard.ingest.containers import Container
from pileshard.ingest.count import NoEntryError, count_range, join
from pileshard.ingest.parts import Entry

_READ_BYTES = 4 << 20


def count_items(plan: PartsPlan, states: Sequence[str]) -> list[CountItem | HashItem]:
    """The work of the stage: for each input to be entered, one item a part and one for the hashes.

    Args:
      plan: of the build.
      states: of the inputs.
    """
    items: list[CountItem | HashItem] = []
    for number, cut in enumerate(plan.inputs):
        if cut.way != "enter":
            continue
        items.append(HashItem(input=number, cuts=tuple(cut.cuts), state=states[number]))
        items += [
            CountItem(
                input=number,
                part=part,
                parts=cut.parts,
                begin=cut.cuts[part],
                end=cut.cuts[part + 1],
                container=cut.container,
                state=states[number],
            )
            for part in range(cut.parts)
        ]
    return items


def count_item(job: Job, item: CountItem, retries: Retries | None = None) -> CountReceipt:
    """Counts the text of a range of frames."""
    began = time.monotonic()
    storage = job.storage(retries)
    entry = job.record.inputs[item.input]
    read = 0
    counted, unfit = None, None
    with Heartbeat(storage, item.name, job.beat_seconds) as heartbeat:

        def on_bytes(chunk: bytes) -> None:
            nonlocal read
            read += len(chunk)
            heartbeat.beat(read, 0, 0)

        try:
            with contextlib.closing(_open(job, entry.url, retries)) as raw:
                container = Container(item.container)
                counted = count_range(raw, entry.url, container, item.begin, item.end, entry.size, on_bytes)
        except (InputError, NoEntryError, FileNotFoundError) as error:
            unfit = str(error)
    return CountReceipt(item=item, counted=counted, unfit=unfit, seconds=round(time.monotonic() - began, 3))


def hash_item(job: Job, item: HashItem, retries: Retries | None = None) -> HashReceipt:
    """Hashes an input's stored bytes."""
    began = time.monotonic()
    storage = job.storage(retries)
    entry = job.record.inputs[item.input]
    whole = hashlib.sha256()
    digests = []
    size = 0
    unfit = None
    with Heartbeat(storage, item.name, job.beat_seconds) as heartbeat:
        try:
            with contextlib.closing(_open(job, entry.url, retries)) as raw:
                for end in item.cuts[1:]:
                    part = xxhash.xxh3_128()
                    while size < end and (data := raw.read(min(_READ_BYTES, end - size))):
                        whole.update(data)
                        part.update(data)
                        size += len(data)
                        heartbeat.beat(size, 0, 0)
                    digests.append(part.hexdigest())
                size += len(raw.read(1))  # more than there was is too much
        except FileNotFoundError as error:
            unfit = str(error)
    return HashReceipt(
        item=item,
        size=size,
        sha256=whole.hexdigest(),
        digests=digests,
        unfit=unfit,
        seconds=round(time.monotonic() - began, 3),
    )


def _open(job: Job, url: str, retries: Retries | None) -> Any:
    return open_url(url, job.storage_options, retry=job.retry, retries=retries)


def entries(
    plan: PartsPlan, sizes: Sequence[int], receipts: Sequence[CountReceipt | HashReceipt]
) -> dict[int, tuple[list[Entry], str]]:
    """Of each input that can be entered as planned, its parts and its sha256.

    Args:
      plan: of the build.
      sizes: stored bytes of the inputs.
      receipts: of all items of the stage.
    """
    counts: dict[int, list[CountReceipt]] = {}
    hashes: dict[int, HashReceipt] = {}
    for receipt in receipts:
        if isinstance(receipt, HashReceipt):
            hashes[receipt.item.input] = receipt
        else:
            counts.setdefault(receipt.item.input, []).append(receipt)
    found = {}
    for number, hashed in hashes.items():
        mine = sorted(counts[number], key=lambda receipt: receipt.item.part)
        counted = [receipt.counted for receipt in mine if receipt.counted is not None]
        if len(counted) < len(mine) or hashed.unfit or hashed.size != sizes[number]:
            continue
        if [one.stored_digest for one in counted] != hashed.digests:
            continue
        parts = join(counted, Container(plan.inputs[number].container), sizes[number])
        if parts is not None:
            found[number] = (parts, hashed.sha256)
    return found
