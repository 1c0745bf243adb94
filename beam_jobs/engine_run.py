"""A pipeline on a runner, from the first connection to its end; what the runner's errors mean, in a sentence."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_jobs.local_runner import driver_prefix, local_runner, run_with_workers
from pileshard.errors import BuildError, PileshardError

if TYPE_CHECKING:
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

_log = logging.getLogger("pileshard.build")

#: Name of Beam's own runner on this machine.
LOCAL = "local"

#: How long a scheduler or job server may take to answer, in seconds.
ANSWER_SECONDS = 20

_AGAIN = "run the same command again, which continues the build"
_MEMORY = "killed, or out of memory: then lower --run-bytes, or give a worker fewer threads or more memory"


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
        _mute_runners()
        if self.name == LOCAL and self.processes > 1:
            run_with_workers(lambda: self._run(apply))
        else:
            self._run(apply)

    @contextlib.contextmanager
    def dealt(self, elements: Sequence[Any], do: Any) -> Iterator[tuple[Sequence[Any], Any]]:
        """What the pipeline is made of, so that its elements are begun in their order and no process waits for another.

        Args:
          elements: of the pipeline.
          do: the DoFn that does them.
        """
        if self.name != LOCAL or self.processes == 1:
            yield elements, do
            return
        from beam_jobs.in_turn import InTurn

        with tempfile.TemporaryDirectory(prefix=driver_prefix(), ignore_cleanup_errors=True) as directory:
            yield range(self.processes), InTurn(do, elements, directory)

    def await_server(self) -> None:
        """Raises BuildError where the scheduler or job server does not answer in time."""
        import grpc  # type: ignore[import-untyped,unused-ignore]

        address = server_address(self.options)
        if address is None:
            return
        try:
            with socket.create_connection(address, timeout=ANSWER_SECONDS) as connection:
                if _scheduler(self.options).startswith("tcp://"):
                    connection.recv(1)  # a Dask scheduler speaks first; its client would wait for that for ever
            if endpoint := _job_endpoint(self.options):
                with grpc.insecure_channel(endpoint) as channel:
                    grpc.channel_ready_future(channel).result(timeout=ANSWER_SECONDS)
        except (OSError, grpc.FutureTimeoutError) as error:
            where, reason = f"{address[0]}:{address[1]}", getattr(error, "strerror", None) or "timed out"
            raise BuildError(
                f"{self.name}: nothing answers at {where} ({reason}); start it there or mend the address"
            ) from error

    def _run(self, apply: Callable[[Pipeline], Any]) -> None:
        import apache_beam as beam

        self.await_server()
        pipeline = None
        with quiet():
            try:
                runner = local_runner(self.processes) if self.name == LOCAL else None
                with beam.Pipeline(runner=runner, options=self.options) as pipeline:
                    # For transforms of other languages; one that waits for the end is left behind by a killed driver.
                    shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
                    apply(pipeline)
                _check_futures(pipeline.result)
            except BaseException as error:
                _end(pipeline, cancel=True)
                if not isinstance(error, Exception) or isinstance(error, PileshardError):
                    raise
                sentence = _sentence(error)
                if sentence is None and self.name != LOCAL and getattr(pipeline, "result", None) is None:
                    sentence = f"{self.name}: {one_line(error)}"  # the runner has not begun
                if sentence is None:
                    raise
                raise BuildError(sentence) from error
            _end(pipeline, cancel=False)


def server_address(options: PipelineOptions) -> tuple[str, int] | None:
    """Host and port of the scheduler or job server that options name, or None where there is none to be asked."""
    endpoint = _job_endpoint(options) or _scheduler(options)
    scheme, _, rest = endpoint.rpartition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("", "tcp", "tls") or not colon or not port.isdecimal():
        return None
    return host.strip("[]"), int(port)


def _job_endpoint(options: PipelineOptions) -> str:
    from apache_beam.options.pipeline_options import PortableOptions

    return options.view_as(PortableOptions).job_endpoint or ""


def _scheduler(options: PipelineOptions) -> str:
    return options.get_all_options().get("address") or ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What Beam and its runners say of errors, in many lines, is said in one by the driver."""
    loggers = [logging.getLogger(name) for name in (None, "apache_beam", "distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@functools.cache
def _mute_runners() -> None:
    """Keeps what threads of a runner have to say of their end off the terminal, from now on: it may come late.

    They end in exceptions when their server is gone, and Beam's workers in this process print those of the items.
    """
    from apache_beam.runners.worker import sdk_worker

    sdk_worker.print = lambda *_, **__: None
    hook = threading.excepthook

    def mute(args: threading.ExceptHookArgs) -> None:
        frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(args.exc_traceback))
        if any(name.partition(".")[0] in ("apache_beam", "distributed", "grpc") for name in frames):
            _log.debug("a thread of the runner ended: %s", args.exc_value)
        else:
            hook(args)

    threading.excepthook = mute


def _check_futures(result: Any) -> None:
    """Raises BuildError for work that the scheduler has not done: Beam's result of Dask takes lost work for done."""
    if any(future.status != "finished" for future in getattr(result, "futures", ())):
        raise BuildError(f"the connection to the Dask scheduler was lost; {_AGAIN}")


def _end(pipeline: Any, cancel: bool) -> None:
    """Ends what a runner leaves behind: a job that nobody waits for, a client and its threads."""
    result = getattr(pipeline, "result", None)
    with contextlib.suppress(Exception):
        if cancel and result is not None:
            result.cancel()
    with contextlib.suppress(Exception):
        if (client := getattr(result, "client", None)) is not None:
            client.close(timeout=5)


def _sentence(error: Exception) -> str | None:
    """What a person is to know of an engine's failure; None where it is none of the engine's own."""
    kind, text = type(error).__name__, str(error)
    if kind == "KilledWorker":
        return f"the workers that had an item died, one after another ({_MEMORY}); {_AGAIN}"
    if kind in ("FutureCancelledError", "CancelledError", "CommClosedError"):
        return f"the connection to the Dask scheduler was lost ({one_line(error)}); {_AGAIN}"
    if kind in ("FutureTimeoutError", "_MultiThreadedRendezvous", "_InactiveRpcError"):
        said = getattr(error, "details", lambda: None)() or "no answer"
        return f"the job server, or a worker pool, does not answer any more ({said.strip()[:200]}); {_AGAIN}"
    if "SDK worker disconnected" in text or "Channel closed prematurely" in text:
        return f"a worker died ({_MEMORY}); {_AGAIN}"
    if "control connection" in text:
        return (
            "the job server waited in vain for a worker: see that the worker pool of --environment_config runs, "
            f"reaches the job server and finds a `python` with pileshard[beam]; then {_AGAIN}"
        )
    return None


def one_line(error: BaseException) -> str:
    """An error's text in one line: all of it, or the last line where it holds a traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback" in str(error):
        lines = lines[-1:]
    return "; ".join(lines)[:500] or type(error).__name__
