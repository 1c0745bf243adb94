"""Beam runners on loopback, each as a user has it: servers and workers are processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.servers.stores import S3_SECRET, free_port
from tests.servers.tools import command

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 120.0

#: Variables that workers have beside those of the tests, as pods have those of a Secret.
SECRETS = {"PILESHARD_TEST_SECRET": S3_SECRET}

#: What a user adds to `pileshard build` for each engine.
NAMES = ("local", "dask", "prism-loopback", "prism-external")


@dataclass
class RunningEngine:
    """An engine that runs.

    Attributes:
      name: of NAMES.
      beam_args: what makes a build use it.
      processes: of the engine, by what they are; their output lies in files of the same names in `folder`.
      folder: for their logs.
      start_worker: starts one more worker process.
    """

    name: str
    beam_args: tuple[str, ...]
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    start_worker: Callable[[], None] | None = None

    def start(self, what: str, arguments: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """Starts a process of the engine."""
        # Not in the checkout: a worker is to find the package as it is installed, or by PYTHONPATH.
        with open(self.folder / f"{what}.log", "ab") as log:
            process = subprocess.Popen(
                arguments,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **SECRETS, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[what] = process
        return process

    def log(self, what: str) -> str:
        """What a process has said."""
        return (self.folder / f"{what}.log").read_text(errors="replace")

    def workers(self, driver: int) -> list[int]:
        """Numbers of the processes that do items for a driver; its own, where it does them itself."""
        if self.name == "dask":
            return [p.pid for what, p in self.processes.items() if what.startswith("worker") and p.poll() is None]
        if self.name == "prism-loopback":
            return [driver]
        parent, mark = (driver, "beam_jobs.local_worker") if self.name == "local" else (self._pool(), "SdkHarness")
        found = []
        with contextlib.suppress(psutil.Error):  # a child that ended while it was looked at
            for child in psutil.Process(parent).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if mark in " ".join(child.cmdline()):
                        found.append(child.pid)
        return found

    def _pool(self) -> int:
        return self.processes["pool"].pid

    def stop(self) -> None:
        """Ends what was started, and what that started."""
        for process in self.processes.values():
            children = []
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(process.pid).children(recursive=True)
            if process.poll() is None:
                process.kill()
            process.wait()
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()


@contextmanager
def running(name: str, folder: Path, workers: int = 2, threads: int = 1) -> Iterator[RunningEngine]:
    """An engine for the time of the block.

    Args:
      name: one of NAMES.
      folder: an empty one.
      workers: processes (Dask).
      threads: of each (Dask).

    Raises:
      NotInstallableError: its program cannot be had here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine = RunningEngine(name, (), folder)
    try:
        if name == "dask":
            _start_dask(engine, workers, threads)
        elif name != "local":
            _start_prism(engine)
        yield engine
    finally:
        engine.stop()


def _start_dask(engine: RunningEngine, workers: int, threads: int) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    python = [sys.executable, "-m"]
    port = address.rpartition(":")[2]
    engine.start(
        "scheduler",
        [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
    )
    count = 0

    def start_worker() -> None:
        nonlocal count
        what = f"worker{count}"
        count += 1
        arguments = ["--nthreads", str(threads), "--no-nanny", "--no-dashboard", "--death-timeout", "120"]
        arguments += ["--local-directory", str(engine.folder / what)]
        engine.start(what, [*python, "distributed.cli.dask_worker", address, *arguments])

    for _ in range(workers):
        start_worker()
    engine.start_worker = start_worker
    engine.beam_args = ("--runner=DaskRunner", f"--dask_client_address={address}")
    await_log(engine, "scheduler", lambda said: said.count("Register worker") >= workers)


def _start_prism(engine: RunningEngine) -> None:
    port = free_port()
    engine.start("prism", [*command("prism"), f"--job_port={port}", "--serve_http=false", "--log_level=debug"])
    engine.beam_args = ("--runner=PrismRunner", f"--job_endpoint=127.0.0.1:{port}")
    await_log(engine, "prism", lambda said: "Serving JobManagement" in said)
    if engine.name == "prism-external":
        pool = free_port()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the pool starts `python`
        arguments = ["-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={pool}"]
        engine.start("pool", [sys.executable, *arguments], PATH=path)
        engine.beam_args += ("--environment_type=EXTERNAL", f"--environment_config=127.0.0.1:{pool}")
        await_log(engine, "pool", lambda said: "Started worker pool" in said)


def await_log(engine: RunningEngine, what: str, ready: Callable[[str], bool]) -> None:
    """Waits until a process has said something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not ready(engine.log(what)):
        if engine.processes[what].poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start: {engine.log(what)[-2000:]}")
        time.sleep(0.05)


def kill(pid: int) -> None:
    """Ends a process as a power cut does."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
