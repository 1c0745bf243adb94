"""Programs that tests run as servers, installed on demand into a folder that later runs find again.

PILESHARD_TEST_TOOLS names the folder; by default it is ~/.cache/pileshard-tests. `python tests/servers/tools.py`
installs all of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = Path(os.environ.get("PILESHARD_TEST_TOOLS") or Path.home() / ".cache" / "pileshard-tests")

#: Go programs: module, package below it, version.
GO_PROGRAMS = {
    "versitygw": ("github.com/versity/versitygw", "cmd/versitygw", "v1.8.0"),
    "prism": ("github.com/apache/beam/sdks/v2", "go/cmd/prism", "v2.77.0"),
    "fake-gcs-server": ("github.com/fsouza/fake-gcs-server", "", "v1.56.1"),
}
#: npm packages: version, and the script that node runs.
NPM_PROGRAMS = {"azurite": ("3.35.0", "node_modules/azurite/dist/src/blob/main.js")}


class NotInstallableError(Exception):
    """A program cannot be had on this machine."""


def command(name: str) -> list[str]:
    """The command that runs a program, which is installed first if need be (minutes).

    Raises:
      NotInstallableError: Go or npm is missing, or the installation failed.
    """
    return _go_program(name) if name in GO_PROGRAMS else _npm_program(name)


def _go_program(name: str) -> list[str]:
    module, package, version = GO_PROGRAMS[name]
    program = TOOLS / f"{name}-{version}" / name
    if not program.exists():
        go = _required("go", name)
        with _installing(program.parent) as folder:
            source = f"{module}/{package}@{version}" if package else f"{module}@{version}"
            _run([go, "install", source], {"GOBIN": str(folder)})
    return [str(program)]


def _npm_program(name: str) -> list[str]:
    version, script = NPM_PROGRAMS[name]
    path = TOOLS / f"{name}-{version}" / script
    node = _required("node", name)
    if not path.exists():
        npm = _required("npm", name)
        with _installing(path.parents[script.count("/")]) as folder:
            _run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{name}@{version}"], {})
    return [node, str(path)]


def _required(tool: str, purpose: str) -> str:
    found = shutil.which(tool)
    if found is None:
        raise NotInstallableError(f"{purpose} is installed with {tool}, which is not on this machine")
    return found


@contextmanager
def _installing(target: Path) -> Iterator[Path]:
    """A folder to install into, which gets its name when it is complete; one process at a time."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with open(TOOLS / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield target
            return
        folder = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        arguments, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise NotInstallableError(f"`{' '.join(arguments)}` failed: {done.stdout[-500:]}")


if __name__ == "__main__":
    for tool in [*GO_PROGRAMS, *NPM_PROGRAMS]:
        print(tool, "installing" if "-v" not in sys.argv else "", flush=True)
        print("  " + " ".join(command(tool)), flush=True)
