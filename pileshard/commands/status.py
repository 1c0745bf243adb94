"""The command `pileshard status`."""

from __future__ import annotations

import argparse
import time
from typing import Any

from pileshard.commands.options import add_storage_options, parse_storage_options


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser("status", help="how far a build is, from any machine that sees the output")
    command.add_argument("url", metavar="URL", help="output of the build")
    command.add_argument("--json", action="store_true", help="print JSON (schemas/status.schema.json)")
    command.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=15.0,
        metavar="SECONDS",
        help="print it again every so often (default 15) while something works on it",
    )
    add_storage_options(command)
    command.set_defaults(run=run)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 86400")
    return seconds


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import msgspec

    from beam_jobs.status import Passerby, status_lines
    from pileshard.format.storage import Storage

    passerby = Passerby(Storage(args.url, parse_storage_options(args.storage_option)))
    while True:
        found = passerby.look()
        print(msgspec.json.encode(found).decode() if args.json else "\n".join(status_lines(found)), flush=True)
        if args.watch is None or found.state != "running":
            return 0
        time.sleep(args.watch)
