"""Work items on a Beam runner.

The two stages are two pipelines of this one shape:

    Create(items) -> Reshuffle -> ParDo(do the item, leave its receipt)

A stage that was planned inside a running pipeline would run on one worker on some engines; planning between two
pipelines, from the receipts, spreads both stages on every engine.
"""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from beam_jobs.engines import choose_engine
from beam_jobs.items import leave_failure, run_item
from beam_jobs.job import GatherReceipt, Item, Job, MergeReceipt, TokenizeReceipt
from beam_jobs.quiet_beam import beam
from pileshard.errors import BuildError
from pileshard.version import __version__


def release() -> str:
    """What must be the same on the driver and on every worker, for the bytes depend on it."""
    return f"pileshard {__version__}, tokenizers {importlib.metadata.version('tokenizers')}"


class ItemFn(beam.DoFn):
    """Does work items. Elements are items as JSON; what comes out is their names.

    The engine's own metrics count, below `pileshard`: `items`, `documents`, `tokens`, `text_bytes` (tokenize),
    `run_bytes` (gather), `shard_bytes` (merge), `retries`, `seconds`.
    """

    def __init__(self, job: bytes, token_bytes: int, eod_id: int) -> None:
        self._job = job
        self._token_bytes = token_bytes
        self._eod_id = eod_id
        self._release = release()

    def process(self, element: bytes) -> list[str]:
        """Does one item.

        Raises:
          BuildError: the worker has another release than the driver.
        """
        item = msgspec.json.decode(element, type=Item)
        job = msgspec.json.decode(self._job, type=Job)
        if (here := release()) != self._release:
            error = BuildError(
                f"the worker on {socket.gethostname()} has {here}, the driver {self._release}: install the same on both"
            )
            leave_failure(job.storage(), item, error)
            raise error
        receipt = run_item(job, item, self._token_bytes, self._eod_id)
        if receipt is not None:
            if isinstance(receipt, TokenizeReceipt):
                counts = {
                    "documents": receipt.accepted,
                    "tokens": receipt.tokens,
                    "text_bytes": receipt.text_bytes,
                }
            elif isinstance(receipt, GatherReceipt):
                counts = {"run_bytes": sum(run.size for _, run in receipt.runs)}
            elif isinstance(receipt, MergeReceipt):
                counts = {"shard_bytes": receipt.shard["size"]}
            else:
                counts = {}
            counts |= {"items": 1, "seconds": round(receipt.seconds), "retries": sum(receipt.retries.values())}
            for name, count in counts.items():
                beam.metrics.Metrics.counter("pileshard", name).inc(count)
        return [item.name]


def item_transforms(pipeline: Any, name: str, elements: Sequence[Any], do: Any) -> Any:
    """The pipeline of every stage: its elements, each a task of its own, and what does them."""
    return (
        pipeline
        | "Items" >> beam.Create(list(elements), reshuffle=False)
        | "Spread" >> beam.Reshuffle()
        | name >> beam.ParDo(do)
    )


def run_elements(name: str, elements: Sequence[Any], do: Any, beam_args: Sequence[str], workers: int) -> None:
    """Runs a DoFn over all elements to their end, or raises what the engine raises."""
    engine = choose_engine(beam_args, min(workers, len(elements)))
    with engine.dealt(elements, do) as (dealt, do_them):
        engine.run(lambda pipeline: item_transforms(pipeline, name, dealt, do_them))


def run_items(
    job: Job, items: Sequence[Item], token_bytes: int, eod_id: int, beam_args: Sequence[str], workers: int
) -> None:
    """Runs all items to their end, or raises what the engine raises."""
    if items:
        elements = [msgspec.json.encode(item) for item in items]
        run_elements("Do", elements, ItemFn(msgspec.json.encode(job), token_bytes, eod_id), beam_args, workers)
