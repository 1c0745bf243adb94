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
from beam_jobs.local_runner import local_runner, run_with_workers
from pileshard.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

if importlib.util.find_spec("apache_beam") is None:
    raise MissingExtraError("apache-beam", "beam", "pileshard build")

_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)  # Beam warns at import of cloud clients that nobody asked for
import apache_beam as beam  # noqa: E402

logging.disable(_disabled)


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


def runner_and_options(beam_args: Sequence[str], workers: int) -> tuple[Any, PipelineOptions]:
    """The user's runner by its name in Beam's options, or Beam's local one where they name none.

    Raises:
      OptionError: Beam refuses the options.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    args = list(beam_args)
    if any(arg == "--runner" or arg.startswith("--runner=") for arg in args):
        runner = None
    else:
        _refuse_unknown(args)
        runner = local_runner(workers)
        args.append(f"--direct_num_workers={workers}")
    try:
        return runner, PipelineOptions(args)
    except SystemExit:
        raise OptionError(f"Apache Beam refuses the options {' '.join(beam_args)}") from None


def run_elements(name: str, elements: Sequence[Any], do: Any, beam_args: Sequence[str], workers: int) -> None:
    """Runs a function or DoFn over all elements to their end, or raises what the engine raises."""
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    processes = min(workers, len(elements))
    runner, options = runner_and_options(beam_args, processes)

    def run() -> None:
        with beam.Pipeline(runner=runner, options=options) as pipeline:
            (
                pipeline
                | "Items" >> beam.Create(list(elements), reshuffle=False)
                | "Spread" >> beam.Reshuffle()
                | name >> beam.ParDo(do)
            )

    if runner is not None and processes > 1:
        run_with_workers(run)
    else:
        run()


def _refuse_unknown(args: list[str]) -> None:
    """A mistyped `--runner` must not end in a build on this machine."""
    from apache_beam.options.pipeline_options import PipelineOptions

    known = {name for cls in PipelineOptions.__subclasses__() for name in cls().get_all_options()}
    for arg in args:
        name = arg.removeprefix("--").removeprefix("no_").split("=")[0]
        if arg.startswith("--") and name not in known:
            raise OptionError(f"Apache Beam's local runner knows no option {arg}")


def run_items(
    job: Job, items: Sequence[Item], token_bytes: int, eod_id: int, beam_args: Sequence[str], workers: int
) -> None:
    """Runs all items to their end, or raises what the engine raises."""
    if items:
        elements = [msgspec.json.encode(item) for item in items]
        run_elements("Do", elements, ItemFn(msgspec.json.encode(job), token_bytes, eod_id), beam_args, workers)
