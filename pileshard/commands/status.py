"""The command `pileshard status`."""

from __future__ import annotations

import argparse
from typing import Any

from pileshard.commands.options import add_storage_options, parse_storage_options


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser("status", help="how far a build is, from any machine that sees the output")
    command.add_argument("url", metavar="URL", help="output of the build")
    command.add_argument("--json", action="store_true", help="print JSON (schemas/status.schema.json)")
    add_storage_options(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import msgspec

    from beam_jobs.monitor import status, status_lines
    from pileshard.format.storage import Storage

    found = status(Storage(args.url, parse_storage_options(args.storage_option)))
    print(msgspec.json.encode(found).decode() if args.json else "\n".join(status_lines(found)))
    return 0
