"""Work items on a Beam runner.

The two stages are two pipelines of this one shape:

    Create(items) -> Reshuffle -> ParDo(do the item, leave its receipt)

A stage that was planned inside a running pipeline would run on one worker on some engines; planning between two
pipelines, from the receipts, spreads both stages on every engine.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from beam_jobs.items import run_item
from beam_jobs.job import Item, Job
from pileshard.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

if importlib.util.find_spec("apache_beam") is None:
    raise MissingExtraError("apache-beam", "beam", "pileshard build")

import apache_beam as beam


class ItemFn(beam.DoFn):
    """Does work items. Elements are items as JSON; what comes out is their names."""

    def __init__(self, job: bytes, token_bytes: int, eod_id: int) -> None:
        self._job = job
        self._token_bytes = token_bytes
        self._eod_id = eod_id

    def process(self, element: bytes) -> list[str]:
        """Does one item."""
        item = msgspec.json.decode(element, type=Item)
        run_item(msgspec.json.decode(self._job, type=Job), item, self._token_bytes, self._eod_id)
        return [item.name]


def runner_options(beam_args: Sequence[str], workers: int) -> PipelineOptions:
    """Beam's options: the user's, or Beam's local runner with so many processes where they name no runner.

    Raises:
      OptionError: Beam refuses them.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    args = list(beam_args)
    if not any(arg == "--runner" or arg.startswith("--runner=") for arg in args):
        # Named in full: `DirectRunner` would first try to fetch another runner over the network.
        args.append("--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner")
        if workers > 1:
            args += [f"--direct_num_workers={workers}", "--direct_running_mode=multi_processing"]
    try:
        return PipelineOptions(args)
    except SystemExit:
        raise OptionError(f"Apache Beam refuses the options {' '.join(beam_args)}") from None


def run_items(
    job: Job, items: Sequence[Item], token_bytes: int, eod_id: int, beam_args: Sequence[str], workers: int
) -> None:
    """Runs all items to their end, or raises what the engine raises."""
    if not items:
        return
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    options = runner_options(beam_args, min(workers, len(items)))
    elements: list[Any] = [msgspec.json.encode(item) for item in items]
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | "Items" >> beam.Create(elements, reshuffle=False)
            | "Spread" >> beam.Reshuffle()
            | "Do" >> beam.ParDo(ItemFn(msgspec.json.encode(job), token_bytes, eod_id))
        )
