"""What each Beam runner needs to be told. All that is particular to a runner stands here and in `engine_run.py`.

| runner | what is added here | why |
|---|---|---|
| none, `DirectRunner`, `FnApiRunner` | `local_runner.py` | named, it is not first sought over the network |
| `DaskRunner` | its class, `--dask_partition_size=1` | Beam knows no short name; 128 items would be one task |
| `PrismRunner`, `PortableRunner` | `--job_server_timeout` of a month | Beam follows a job no longer than that |
| `DataflowRunner` | `--number_of_worker_harness_threads=1` | it would do a dozen items at once in a process's memory |
| `FlinkRunner`, `SparkRunner` | nothing | their options go to Beam as they are |

What all of them get: an unknown runner or option, a server that does not answer and a package that is missing end in
one sentence, within `ANSWER_SECONDS`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from beam_jobs.engine_run import ANSWER_SECONDS, LOCAL, Engine, quiet, server_address
from pileshard.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_log = logging.getLogger("pileshard.build")

#: Beam bounds with its timeout of answers how long it follows a job, too: 300 seconds by default.
_FOLLOW_SECONDS = 31 * 24 * 3600

_DASK_CLASS = "apache_beam.runners.dask.dask_runner.DaskRunner"

#: Runners by the names that a user may write, and what Beam is told.
RUNNERS = {
    "DirectRunner": None,
    "FnApiRunner": None,
    "DaskRunner": _DASK_CLASS,
    "PrismRunner": "PrismRunner",
    "PortableRunner": "PortableRunner",
    "FlinkRunner": "FlinkRunner",
    "SparkRunner": "SparkRunner",
    "DataflowRunner": "DataflowRunner",
}

#: Runners of which all options are known here, so that a mistyped one is refused.
_CLOSED = (LOCAL, "DaskRunner", "PrismRunner")


def choose_engine(beam_args: Sequence[str], workers: int) -> Engine:
    """The engine that options for Beam name, or Beam's local runner where they name none.

    Args:
      beam_args: as the user gave them.
      workers: processes of the local runner.

    Raises:
      OptionError: there is no such runner, an option is wrong or missing, or the runner knows none of that name.
      MissingExtraError: the runner's package is not installed.
    """
    from beam_jobs.quiet_beam import beam, import_clients

    args = list(beam_args)
    given = _parsed(args)
    standard = given.view_as(beam.options.pipeline_options.StandardOptions)
    name = short_name(standard.runner)
    if standard.no_wait_until_finish:
        raise OptionError("--no_wait_until_finish: a build waits for its stages; put the driver into the background")
    if given.view_as(beam.options.pipeline_options.PortableOptions).output_executable_path:
        raise OptionError("--output_executable_path: a build plans between its pipelines, so no one jar can hold it")
    if name != LOCAL:
        import_clients()
    if name == "DaskRunner":
        _require_dask()
        given = _parsed(args)
    if name in _CLOSED:
        _refuse_unknown(args, name)
    endpoint = given.view_as(beam.options.pipeline_options.PortableOptions).job_endpoint
    if name == "PortableRunner" and not endpoint:
        raise OptionError("--runner=PortableRunner needs --job_endpoint=HOST:PORT, where its job server listens")
    if endpoint and endpoint != "embed" and server_address(given) is None:
        raise OptionError(f"--job_endpoint={endpoint} is not of the form HOST:PORT")
    args += _additions(name, args, given, workers)
    if RUNNERS.get(name):
        args.append(f"--runner={RUNNERS[name]}")
    return Engine(name, _parsed(args), workers)


def short_name(runner: str | None) -> str:
    """The name in RUNNERS of what a user wrote, `local` for Beam's own runner here; a class's full name stays.

    Raises:
      OptionError: there is no such runner.
    """
    wanted = (runner or "DirectRunner").lower()
    if wanted == _DASK_CLASS.lower():
        return "DaskRunner"
    for name, beam_name in RUNNERS.items():
        if wanted in (name.lower(), name.lower().removesuffix("runner")):
            return name if beam_name else LOCAL
    if runner and "." in runner:
        return runner
    raise OptionError(f"--runner={runner}: no such runner; choose {', '.join(RUNNERS)}, or a class's full name")


def _additions(name: str, args: list[str], given: PipelineOptions, workers: int) -> list[str]:
    """What a runner needs beside what the user gave; where they chose otherwise it is theirs, with a warning."""
    chosen = given.get_all_options()
    if name == LOCAL and not any(arg.startswith("--direct_num_workers") for arg in args):
        return [f"--direct_num_workers={workers}"]
    if name in ("PrismRunner", "PortableRunner") and not any(arg.startswith("--job_server_timeout") for arg in args):
        return [f"--job_server_timeout={_FOLLOW_SECONDS}"]
    if name == "DataflowRunner" and chosen["number_of_worker_harness_threads"] is None:
        return ["--number_of_worker_harness_threads=1"]
    if name != "DaskRunner":
        return []
    added = [] if isinstance(chosen["timeout"], int) else [f"--dask_connection_timeout={ANSWER_SECONDS}"]
    if chosen["partition_size"] is None and chosen["npartitions"] is None:
        added.append("--dask_partition_size=1")
    elif chosen["partition_size"] != 1:
        warn_once(
            "the items of one Dask partition are done one after another on one worker: without --dask_npartitions "
            "and --dask_partition_size each item is a task of its own"
        )
    return added


@functools.cache
def warn_once(text: str) -> None:
    """Warns of a choice, once for all stages of a command."""
    _log.warning("%s", text)


def _require_dask() -> None:
    for package in ("dask", "distributed"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "dask", "--runner=DaskRunner")
    import apache_beam.runners.dask.dask_runner  # noqa: F401 - makes its options known to Beam


def _parsed(args: list[str]) -> PipelineOptions:
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), quiet():
            options = PipelineOptions(args)
            options.get_all_options()
            return options
    except SystemExit:
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise OptionError(f"Apache Beam refuses the options {' '.join(args)}: {reason}") from None


def _refuse_unknown(args: list[str], name: str) -> None:
    """A mistyped `--runner` or address must not end in a build on this machine."""
    from apache_beam.options import pipeline_options

    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
    for cls in pipeline_options.PipelineOptions.__subclasses__():
        with contextlib.suppress(Exception):
            cls._add_argparse_args(parser)
    for arg in parser.parse_known_args(args)[1]:
        raise OptionError(f"Apache Beam's {'local runner' if name == LOCAL else name} knows no option {arg}")
