"""The command `pileshard clean`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pileshard.commands.options import add_storage_options, parse_storage_options


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "clean",
        help="remove what dead attempts left behind",
        description="Removes what killed builds left in an output: half-written files, runs that no receipt names, "
        "heartbeats, unfinished uploads, and directories of dead drivers on this machine. What a dataset needs, and "
        "what the same build command would continue from, stays. Refuses while a build lives. Exit code 0: done; "
        "1: refused or failed.",
    )
    argument = command.add_argument
    argument("url", metavar="URL", help="output of the build")
    argument("--temp-url", metavar="URL", help="where runs lie, if elsewhere")
    argument("--dry-run", action="store_true", help="say what would be removed; remove nothing")
    argument("--kept-runs", action="store_true", help="of a complete dataset, what `build --keep-runs` kept too")
    argument("--force", action="store_true", help="even where something seems to work on the output")
    add_storage_options(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from beam_jobs.leftovers import end_uploads, find_leftovers, live_command
    from pileshard.errors import BuildError
    from pileshard.format.storage import Storage

    options = parse_storage_options(args.storage_option)
    storage = Storage(args.url, options)
    temp = Storage(args.temp_url, options) if args.temp_url else None
    live = live_command(storage)
    if live and not (args.force or args.dry_run):
        raise BuildError(f"{args.url}: {live}; wait until it has ended, or give --force if it is gone for sure")
    if live:
        print(f"{args.url}: {live}", file=sys.stderr)
    found = find_leftovers(storage, temp, kept_runs=args.kept_runs)
    for leftover in found:
        if not args.dry_run:
            leftover.remove()
        print(f"{'would remove' if args.dry_run else 'removed'} {leftover}")
    places = [storage] if temp is None else [storage, temp]
    uploads = sum(end_uploads(place, args.dry_run) for place in places)
    if uploads:
        print(f"{'would end' if args.dry_run else 'ended'} {uploads:,} uploads that dead attempts had begun")
    if not found and not uploads:
        print(f"{args.url}: nothing to remove")
    return 0
