"""The command `pileshard verify`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Literal

from pileshard.commands.options import add_storage_options, check_target, parse_storage_options, write_report
from pileshard.errors import OptionError


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "verify",
        help="prove a dataset from its bytes",
        description="Exit code 0: sound; 1: faults found, each named; 2: wrong usage. Options after -- go to Apache "
        "Beam, which then does the work.",
    )
    argument = command.add_argument
    argument("url", metavar="URL", help="root of the dataset")
    argument(
        "--level",
        default="full",
        choices=["quick", "full", "deep"],
        help="quick: manifest, sizes, indexes; full (default): every byte, record and token; deep: the inputs too, "
        "each read whole once: their hashes, every line's account, and a sample of documents tokenized again by the "
        "reference and compared",
    )
    argument(
        "--sample",
        default="1000",
        metavar="N",
        help="documents that the level deep tokenizes again (about 2.5 MB/s a core), or `all` (default 1000)",
    )
    argument("--sample-seed", type=int, default=0, metavar="N", help="another seed chooses other documents (default 0)")
    argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes over shards and inputs, at most four a core and one for each shard or input (default: one a "
        "core where the work is long enough, else threads)",
    )
    argument("--beam", action="store_true", help="let Apache Beam do the work")
    argument(
        "--temp-url", metavar="URL", help="where Beam's workers leave what they found (default: the dataset's _build)"
    )
    argument("--json", metavar="FILE", help="write the report as JSON (- for standard output)")
    add_storage_options(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from pileshard.audit.processes import at_most
    from pileshard.audit.terminal import Display
    from pileshard.audit.verify import verify

    if args.sample != "all" and not args.sample.isdecimal():
        raise OptionError(f"--sample {args.sample!r} is neither a number of documents nor all")
    storage_options = parse_storage_options(args.storage_option)
    workers: int | Literal["auto"] = "auto" if args.workers is None else args.workers
    engine = None
    if args.beam or beam_args:
        from beam_jobs.audit_pipeline import beam_engine

        workers = args.workers if args.workers is not None else os.cpu_count() or 1
        if not beam_args:  # Beam's processes are on this machine, too
            workers = at_most(workers)
        engine = beam_engine(args.temp_url, beam_args, workers)
    check_target("--json", args.json)
    report = verify(
        args.url,
        level=args.level,
        storage_options=storage_options,
        sample="all" if args.sample == "all" else int(args.sample),
        sample_seed=args.sample_seed,
        workers=workers,
        engine=engine,
    )
    if args.json != "-":
        print(Display.of(sys.stdout).text(report.text()))
    if args.json:
        write_report(args.json, report.to_json())
    return 0 if report.sound else 1
