"""Object stores on loopback: each the real protocol, served by a program of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from tests.servers.tools import command

# Else every open tries gRPC for a minute.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

#: No word that could stand in a text by chance: tests look for it where it must not be.
#: What the S3 server takes.
S3_SECRET = "x9TqVb3LmWcR7pYsK2hD"
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Store:
    """A running object store with one bucket.

    Attributes:
      kind: s3, gcs or azure.
      port: on 127.0.0.1.
      bucket: its name.
      process: the server.
    """

    kind: str
    port: int
    bucket: str
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def protocol(self) -> str:
        return {"s3": "s3", "gcs": "gs", "azure": "abfs"}[self.kind]

    def url(self, name: str = "") -> str:
        """A URL in the bucket: of that name, or a new one."""
        return f"{self.protocol}://{self.bucket}/{name or uuid.uuid4().hex}"

    def options(self, port: int | None = None, **options: Any) -> dict[str, Any]:
        """fsspec's options, for the server itself or a proxy before it; without the client's own retries there."""
        address = f"http://127.0.0.1:{port or self.port}"
        if self.kind == "s3":
            config: dict[str, Any] = {"connect_timeout": 5, "read_timeout": 30}
            if port:
                config["retries"] = {"max_attempts": 0}
            made = {"key": "user", "secret": S3_SECRET, "endpoint_url": address, "config_kwargs": config}
        elif self.kind == "gcs":
            made = {"endpoint_url": address, "token": "anon", "project": "tests"}
        else:
            parts = {
                "DefaultEndpointsProtocol": "http",
                "AccountName": _AZURE_ACCOUNT,
                "AccountKey": _AZURE_KEY,
                "BlobEndpoint": f"{address}/{_AZURE_ACCOUNT}",
            }
            made = {"connection_string": ";".join(f"{name}={value}" for name, value in parts.items())}
        return {**made, **options}

    def filesystem(self) -> Any:
        """Another client of the store: one that shares nothing with the code under test."""
        return fsspec.filesystem(self.protocol, **self.options(), skip_instance_cache=True, use_listings_cache=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(kind: str) -> Iterator[Store]:
    """A store for the time of the block.

    Raises:
      NotInstallableError: its program cannot be had here.
    """
    name = {"s3": "versitygw", "gcs": "fake-gcs-server", "azure": "azurite"}[kind]
    program = command(name)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix=f"pileshard-{name}-", ignore_cleanup_errors=True) as folder:
        environment = dict(os.environ)
        if kind == "s3":
            environment |= {"ROOT_ACCESS_KEY": "user", "ROOT_SECRET_KEY": S3_SECRET}
            (Path(folder) / "data").mkdir()
            arguments = ["--port", f"127.0.0.1:{port}", "posix", f"{folder}/data"]
        elif kind == "gcs":
            arguments = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
            arguments += ["-public-host", f"127.0.0.1:{port}", "-backend", "memory"]
        else:
            arguments = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--blobPort", str(port)]
        with open(Path(folder) / "log", "wb") as log:
            process = subprocess.Popen(
                [*program, *arguments], env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _await(process, port, Path(folder) / "log")
            store = Store(kind, port, f"bucket-{uuid.uuid4().hex[:8]}", process)
            store.filesystem().mkdir(store.bucket)
            yield store
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"a server did not start: {log.read_text(errors='replace')[-1000:]}")
        time.sleep(0.05)
