"""The command `pileshard repair`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pileshard.commands.options import add_storage_options, check_target, parse_storage_options, write_report


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "repair",
        help="make damaged files again, to the same bytes",
        description="Verifies, and makes what is damaged again: from the shard, from kept runs, or from the inputs, "
        "which must be as they were. A file is replaced only by one that has the manifest's sha256. The same command "
        "continues a repair that stopped. Refuses while a build or another repair works on the dataset. Exit code 0: "
        "sound now; 1: not; 2: wrong usage. Options after -- go to Apache Beam.",
    )
    argument = command.add_argument
    argument("url", metavar="URL", help="root of the dataset")
    argument("--workers", type=int, metavar="N", help="processes on this machine (default: its cores)")
    argument("--temp-url", metavar="URL", help="where runs lie, kept ones too (default: the dataset's _build)")
    argument("--tokenizer", metavar="FILE", help="the build's tokenizer.json, where the dataset's is damaged")
    argument("--engine", default="auto", choices=["auto", "fast", "reference"], help="tokenizer engine (default auto)")
    argument("--remove-surplus", action="store_true", help="remove files that the manifest does not name")
    argument("--json", metavar="FILE", help="write the report as JSON (- for standard output)")
    add_storage_options(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from beam_jobs.repair import RepairOptions, repair
    from pileshard.audit.terminal import Display

    check_target("--json", args.json)
    report = repair(
        RepairOptions(
            url=args.url,
            workers=args.workers,
            temp_url=args.temp_url,
            tokenizer=args.tokenizer,
            engine=args.engine,
            remove_surplus=args.remove_surplus,
            storage_options=parse_storage_options(args.storage_option),
            beam_args=tuple(beam_args),
        )
    )
    if args.json != "-":
        print(Display.of(sys.stdout).text(report.text()))
    if args.json:
        write_report(args.json, report.to_json())
    return 0 if report.sound else 1
