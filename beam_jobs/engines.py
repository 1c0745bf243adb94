"""What each Beam runner needs to be told, and what its errors mean. All that is particular to a runner stands here.

| runner | what is added here | why |
|---|---|---|
| none, `DirectRunner`, `FnApiRunner` | `local_runner.py` | named, it is not first sought over the network |
| `DaskRunner` | its class, `--dask_partition_size=1` | Beam knows no short name; 128 items would be one task |
| `PrismRunner`, `PortableRunner` | `--job_server_timeout` of a month | Beam would follow a job for five minutes only |
| `FlinkRunner`, `SparkRunner`, `DataflowRunner` | nothing | their options go to Beam as they are |

What all of them get: an unknown runner or option, a server that does not answer and a package that is missing end in
one sentence, within `ANSWER_SECONDS`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_jobs.local_runner import local_runner, run_with_workers
from pileshard.errors import BuildError, MissingExtraError, OptionError

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

_log = logging.getLogger("pileshard.build")

#: How long a scheduler or job server may take to answer, in seconds.
ANSWER_SECONDS = 20

#: Beam bounds with it how long it follows a job too, not only how long it waits for an answer.
_FOLLOW_SECONDS = 31 * 24 * 3600

_AGAIN = "run the same command again, which continues the build"

_DASK_CLASS = "apache_beam.runners.dask.dask_runner.DaskRunner"

#: Runners by their short names, as a user may write them, and what Beam is told.
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


@dataclass(frozen=True)
class Engine:
    """A runner with its options.

    Attributes:
      name: the runner's short name, `local` for Beam's own on this machine, or the class that the user named.
      options: for the pipeline.
      processes: of the local runner.
    """

    name: str
    options: PipelineOptions
    processes: int

    def run(self, apply: Callable[[Pipeline], Any]) -> None:
        """Runs a pipeline to its end.

        Args:
          apply: puts the transforms into the pipeline.

        Raises:
          BuildError: the engine itself failed, in a sentence.
          Exception: what the engine makes of an error of the pipeline's own code.
        """
        if self.name == "local" and self.processes > 1:
            run_with_workers(lambda: self._run(apply))
        else:
            self._run(apply)

    def _run(self, apply: Callable[[Pipeline], Any]) -> None:
        import apache_beam as beam

        self._await_server()
        pipeline = None
        with _quiet(threads=self.name != "local"):
            try:
                runner = local_runner(self.processes) if self.name == "local" else None
                with beam.Pipeline(runner=runner, options=self.options) as pipeline:
                    apply(pipeline)
                _check_futures(pipeline.result)
            except BaseException as error:
                _end(pipeline, cancel=True)
                sentence = _sentence(error, self.name) if isinstance(error, Exception) else None
                if sentence is None:
                    raise
                raise BuildError(sentence) from error
            _end(pipeline, cancel=False)

    def _await_server(self) -> None:
        """Raises BuildError where the scheduler or job server takes no connection in time."""
        address = server_address(self.options)
        if address is None:
            return
        host, port = address
        try:
            with socket.create_connection((host, port), timeout=ANSWER_SECONDS):
                return
        except OSError as error:
            reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise BuildError(
                f"{self.name}: nothing answers at {host}:{port} ({reason}); start it there or mend the address"
            ) from error


def choose_engine(beam_args: Sequence[str], workers: int) -> Engine:
    """The engine that options for Beam name, or Beam's local runner where they name none.

    Args:
      beam_args: as the user gave them.
      workers: processes of the local runner.

    Raises:
      OptionError: there is no such runner, an option is wrong or missing, or the runner knows none of that name.
      MissingExtraError: the runner's package is not installed.
    """
    args = list(beam_args)
    given = _parsed(args, beam_args)
    name = short_name(_standard(given).runner)
    if name == "DaskRunner":
        _require_dask()
        given = _parsed(args, beam_args)
    if name in ("local", "DaskRunner", "PrismRunner"):
        _refuse_unknown(args, name)
    args += _additions(name, args, given, workers)
    if name in RUNNERS:
        args.append(f"--runner={RUNNERS[name]}")
    options = _parsed(args, beam_args)
    _check_endpoint(name, options)
    return Engine(name, options, workers)


def short_name(runner: str | None) -> str:
    """The name in RUNNERS of what a user wrote, `local` for Beam's own runner here; a class's full name stays.

    Raises:
      OptionError: there is no such runner.
    """
    if runner is None:
        return "local"
    wanted = runner.lower()
    if wanted == _DASK_CLASS.lower():
        return "DaskRunner"
    for name, beam_name in RUNNERS.items():
        if wanted in (name.lower(), name.lower().removesuffix("runner")):
            return name if beam_name else "local"
    if "." in runner:
        return runner
    raise OptionError(f"--runner={runner}: no such runner; choose {', '.join(RUNNERS)}, or a class's full name")


def server_address(options: PipelineOptions) -> tuple[str, int] | None:
    """Host and port of the scheduler or job server that options name, or None where there is none to be asked."""
    from apache_beam.options.pipeline_options import PortableOptions

    everything = options.get_all_options()
    endpoint = options.view_as(PortableOptions).job_endpoint or everything.get("address") or ""
    scheme, _, rest = endpoint.rpartition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("", "tcp", "tls") or not colon or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


def _additions(name: str, args: list[str], given: PipelineOptions, workers: int) -> list[str]:
    """What a runner needs beside what the user gave; where they chose otherwise it is theirs, with a warning."""
    if name == "local":
        chosen = any(arg.startswith("--direct_num_workers") for arg in args)
        return [] if chosen else [f"--direct_num_workers={workers}"]
    if name == "DaskRunner":
        chosen_options = given.get_all_options()
        size, count = chosen_options.get("partition_size"), chosen_options.get("npartitions")
        if size is None and count is None:
            return ["--dask_partition_size=1"]
        if size != 1:
            _log.warning(
                "the items of one Dask partition are done one after another on one worker: "
                "without --dask_npartitions and --dask_partition_size each item is a task of its own"
            )
    if name in ("PrismRunner", "PortableRunner") and not any(a.startswith("--job_server_timeout") for a in args):
        return [f"--job_server_timeout={_FOLLOW_SECONDS}"]
    return []


@contextlib.contextmanager
def _quiet(threads: bool) -> Iterator[None]:
    """What Beam and its runners say of errors, in many lines, is said in one by the driver."""
    loggers = [logging.getLogger(name) for name in (None, "apache_beam", "distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    hook = threading.excepthook
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    if threads:
        threading.excepthook = lambda args: _log.debug("a thread of the runner ended: %s", args.exc_value)
    try:
        yield
    finally:
        threading.excepthook = hook
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _check_futures(result: Any) -> None:
    """Raises BuildError for work that the scheduler has not done: Beam's result of Dask takes lost work for done."""
    lost = [future for future in getattr(result, "futures", ()) if future.status != "finished"]
    if lost:
        raise BuildError(f"the connection to the Dask scheduler was lost; {_AGAIN}")


def _end(pipeline: Any, cancel: bool) -> None:
    """Ends what a runner leaves behind: a job that nobody waits for, a client and its threads."""
    result = getattr(pipeline, "result", None)
    with contextlib.suppress(Exception):
        if cancel and result is not None:
            result.cancel()
    for thread in threading.enumerate():
        if thread.name == "wait_until_finish_read":  # ends by an exception of its own when the server is gone
            thread.join(5)
    with contextlib.suppress(Exception):
        if (client := getattr(result, "client", None)) is not None:
            client.close(timeout=5)


def _require_dask() -> None:
    for package in ("dask", "distributed"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "dask", "--runner=DaskRunner")
    import apache_beam.runners.dask.dask_runner  # noqa: F401 - makes its options known to Beam


def _check_endpoint(name: str, options: PipelineOptions) -> None:
    from apache_beam.options.pipeline_options import PortableOptions

    portable = options.view_as(PortableOptions)
    if name == "PortableRunner" and not portable.job_endpoint:
        raise OptionError("--runner=PortableRunner needs --job_endpoint=HOST:PORT, where its job server listens")
    if portable.job_endpoint and portable.job_endpoint != "embed" and server_address(options) is None:
        raise OptionError(f"--job_endpoint={portable.job_endpoint} is not of the form HOST:PORT")


def _sentence(error: Exception, name: str) -> str | None:
    """What a person is to know of an engine's failure; None where it is none of the engine's own."""
    kind = type(error).__name__
    if kind == "KilledWorker":
        return (
            "the workers that had an item died, one after another (killed, or out of memory: then lower --run-bytes, "
            f"or give a worker fewer threads or more memory); {_AGAIN}"
        )
    if kind in ("FutureCancelledError", "CancelledError", "CommClosedError"):
        return f"the connection to the Dask scheduler was lost ({_last_line(error)}); {_AGAIN}"
    if kind in ("FutureTimeoutError", "_MultiThreadedRendezvous", "_InactiveRpcError"):
        said = getattr(error, "details", lambda: "no answer")() or "no answer"
        return f"the job server, or a worker pool, does not answer any more ({said.strip()[:200]}); {_AGAIN}"
    text = str(error)
    if "SDK worker disconnected" in text or "Channel closed prematurely" in text:
        return f"a worker died (killed, or out of memory: then lower --run-bytes or give it more); {_AGAIN}"
    if "control connection" in text:
        return (
            "the job server waited in vain for a worker: see that the worker pool of --environment_config runs, "
            f"reaches the job server and finds a `python` with pileshard[beam]; then {_AGAIN}"
        )
    if isinstance(error, OSError) and "timed out" in text.lower():
        return f"{name}: {_last_line(error)}; {_AGAIN}"
    return None


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _standard(options: PipelineOptions) -> Any:
    from apache_beam.options.pipeline_options import StandardOptions

    return options.view_as(StandardOptions)


def _parsed(args: list[str], beam_args: Sequence[str]) -> PipelineOptions:
    from apache_beam.options.pipeline_options import PipelineOptions

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return PipelineOptions(args)
    except SystemExit:
        reason = said.getvalue().strip().rpartition("error: ")[2]
        raise OptionError(f"Apache Beam refuses the options {' '.join(beam_args)}: {reason}") from None


def _refuse_unknown(args: list[str], name: str) -> None:
    """A mistyped `--runner` or address must not end in a build on this machine."""
    from apache_beam.options import pipeline_options

    parser = pipeline_options._BeamArgumentParser(allow_abbrev=False)
    for cls in pipeline_options.PipelineOptions.__subclasses__():
        with contextlib.suppress(Exception):
            cls._add_argparse_args(parser)
    for arg in parser.parse_known_args(args)[1]:
        raise OptionError(f"Apache Beam's {'local runner' if name == 'local' else name} knows no option {arg}")
