"""A cluster on one machine: three hosts, a directory that the first serves to all, and a Dask cluster on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.hosts import EXPORTED, SHARED, Host, Program, Switch
from tests.cluster.mount import Export

#: How a test waits: generously, and looking.
PATIENCE = 240.0

_DASK = {
    # A worker whose host vanished is noticed after these; the defaults are minutes.
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "30 s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "15 s",
    # A worker that is busy for long on a loaded machine is no reason to give it up.
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "20",
}


@dataclass
class Lab:
    """Three hosts with a shared directory.

    Attributes:
      hosts: `hosts[0]` serves the directory and mounts it as the others do.
      export: the server on the first host.
      disk: the exported directory as the tests see it, past all mounts.
    """

    hosts: list[Host]
    export: Export
    disk: Path
    _workers: dict[int, Program] = field(default_factory=dict)

    @property
    def scheduler(self) -> str:
        return f"tcp://{self.hosts[0].address}:8786"

    def attach(self, host: Host) -> None:
        host.attach(self.export)

    def start_scheduler(self) -> None:
        host = self.hosts[0]
        arguments = ["-m", "dask", "scheduler", "--host", host.address, "--port", "8786", "--no-dashboard"]
        host.start_python("scheduler", *arguments, environment=_DASK)

    def start_worker(self, host: Host) -> Program:
        arguments = ["-m", "dask", "worker", self.scheduler, "--host", host.address, "--nthreads", "1"]
        more = ["--nworkers", "1", "--no-dashboard", "--memory-limit", "0"]
        return host.start_python("worker", *arguments, *more, environment=_DASK)

    def wait_for_workers(self, count: int) -> None:
        """Waits until the scheduler knows exactly so many workers."""
        script = (
            "import sys, time; from distributed import Client\n"
            f"client = Client({self.scheduler!r}, timeout={PATIENCE})\n"
            f"end = time.monotonic() + {PATIENCE}\n"
            f"while len(client.scheduler_info(n_workers=-1)['workers']) != {count}:\n"
            "    assert time.monotonic() < end, client.scheduler_info()\n"
            "    time.sleep(0.1)\n"
        )
        self.hosts[0].python("-c", script)

    def start_build(self, host: Host, output: str, *more: str, engine: str = "dask", name: str = "build") -> Program:
        """Starts a build of the inputs on the shared directory from a host."""
        arguments = ["-m", "beam_jobs.build", "--input", SHARED / "inputs/*.zst", "--output", SHARED / output]
        arguments += ["--tokenizer", SHARED / "inputs/tokenizer.json", "--shard-bytes", "64KB", "--max-rejected", "1"]
        beam = ["--", "--runner=DaskRunner", f"--dask_client_address={self.scheduler}"] if engine == "dask" else []
        return host.start_python(name, *arguments, *more, *beam, environment=_DASK)


def wait_until(holds: Callable[[], object], program: Program | None = None) -> None:
    """Waits until something holds, or a program that should make it so has ended."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if program is not None and not program.running:
            return
        if time.monotonic() > end:
            raise TimeoutError(program.printed()[-5000:] if program is not None else "in vain")
        time.sleep(0.02)


@contextmanager
def laboratory(place: Path) -> Iterator[Lab]:
    """Starts three hosts, and leaves nothing of them.

    Args:
      place: a directory of the test for the disk of the first host, and logs.
    """
    disk, logs = place / "disk", place / "logs"
    disk.mkdir()
    logs.mkdir()
    with contextlib.ExitStack() as stack:
        switch = Switch()
        stack.callback(switch.kill)
        hosts: list[Host] = []
        for number, name in enumerate(("alpha", "beta", "gamma"), start=1):
            host = Host(number, name, switch, logs, disk if number == 1 else None)
            stack.callback(host.kill)
            hosts.append(host)
        export = Export(EXPORTED, hosts[0].address, prefix=hosts[0].prefix)
        stack.callback(export.kill)
        export.start()
        lab = Lab(hosts, export, disk)
        for host in hosts:
            lab.attach(host)
        yield lab
