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
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11 s",
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
    _dask: dict[str, Program] = field(default_factory=dict)

    @property
    def scheduler(self) -> str:
        """Address of the Dask scheduler, on the first host."""
        return f"tcp://{self.hosts[0].address}:8786"

    def attach(self, host: Host) -> None:
        host.attach(self.export)

    def heal(self) -> None:
        """Starts what is dead, ends what mounts were told to do, and waits for the cluster to be whole."""
        self.export.start()
        for host in self.hosts:
            for name in ("build", "rank"):
                host.stop_programs(name)
            if not host.running:
                host.start()
            if host.mount is None:
                self.attach(host)
            assert host.mount is not None
            host.mount.set(latency=0.0, cache=0.0, timeout=None)
            host.mount.faults.clear()
        alpha, *others = self.hosts
        if alpha.name in self._dask and not self.dask(alpha).running:
            for host in others:  # they are about to end, for there is no scheduler
                host.stop_programs("worker")
        scheduler = ["scheduler", "--host", alpha.address, "--port", "8786"]
        self._start_dask(alpha, *scheduler)
        for host in others:
            worker = ["worker", self.scheduler, "--host", host.address, "--nworkers", "1", "--nthreads", "1"]
            self._start_dask(host, *worker, "--memory-limit", "0")
        self.wait_for_workers(len(others))

    def dask(self, host: Host) -> Program:
        """The scheduler or worker on a host."""
        return self._dask[host.name]

    def _start_dask(self, host: Host, role: str, *arguments: str) -> None:
        program = self._dask.get(host.name)
        if program is None or not program.running:
            command = ["-m", "dask", role, *arguments, "--no-dashboard"]
            self._dask[host.name] = host.start_python(role, *command, environment=_DASK)

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

    def start_build(self, host: Host, output: str, *more: str) -> Program:
        """Starts a build of the inputs on the shared directory, driven from a host."""
        arguments = ["-m", "beam_jobs.build", "--input", SHARED / "inputs/*.zst", "--output", SHARED / output]
        arguments += ["--tokenizer", SHARED / "inputs/tokenizer.json", "--shard-bytes", "64KB", "--max-rejected", "1"]
        arguments += ["--parts-per-input", "2", "--run-bytes", "100000", *more]
        beam = ["--", "--runner=DaskRunner", f"--dask_client_address={self.scheduler}"]
        return host.start_python(f"build-{output}", *arguments, *beam, environment=_DASK)


def wait_until(holds: Callable[[], object], program: Program) -> None:
    """Waits until something holds, which a program that is running makes so."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert program.running, f"it ended before: {program.printed()[-5000:]}"
        assert time.monotonic() < end, f"in vain: {program.printed()[-5000:]}"
        time.sleep(0.05)


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
        yield Lab(hosts, export, disk)
