"""The command `pileshard status`."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

from pileshard.commands.options import add_storage_options, parse_storage_options
from pileshard.errors import OptionError

_EVERY = 15.0


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser("status", help="how far a build is, from any machine that sees the output")
    command.add_argument("url", metavar="URL", nargs="?", help="output of the build")
    command.add_argument("--json", action="store_true", help="print JSON (schemas/status.schema.json)")
    command.add_argument(
        "--watch",
        nargs="?",
        const="",
        metavar="SECONDS",
        help="print it again every so often (default 15) while something works on it",
    )
    add_storage_options(command)
    command.set_defaults(run=run)


def _url_and_seconds(url: str | None, watch: str | None) -> tuple[str, float | None]:
    """The output, and how often to look at it: in `--watch URL` the URL stands where the seconds may."""
    if url is None:
        url, watch = watch, ""
    if not url:
        raise OptionError("the URL of the output is missing")
    if not watch:
        return url, None if watch is None else _EVERY
    with contextlib.suppress(ValueError):
        if 1 <= float(watch) <= 86_400:
            return url, float(watch)
    raise OptionError(f"--watch {watch}: is no number of seconds between 1 and 86400")


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import msgspec

    from beam_jobs.status import Passerby, status_lines
    from pileshard.format.storage import Storage

    url, watch = _url_and_seconds(args.url, args.watch)
    passerby = Passerby(Storage(url, parse_storage_options(args.storage_option)))
    while True:
        found = passerby.look()
        print(msgspec.json.encode(found).decode() if args.json else "\n".join(status_lines(found)), flush=True)
        if watch is None or found.state != "running":
            return 0
        time.sleep(watch)
