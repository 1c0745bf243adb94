"""The command `pileshard build`."""

from __future__ import annotations

import argparse
from typing import Any

from pileshard.commands.options import add_storage_options, parse_storage_options
from pileshard.errors import OptionError


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "build",
        help="build a dataset, or continue a build that stopped",
        description="Turns jsonl.zst (gzip, plain) inputs into shards. The same command continues a build that "
        "stopped, and gives the same bytes. Options after -- go to Apache Beam, e.g. -- --runner=FlinkRunner.",
    )
    argument = command.add_argument
    argument("--input", action="append", nargs="+", required=True, metavar="URL", help="fsspec URLs, paths or globs")
    argument("--output", required=True, metavar="URL", help="root of the dataset")
    argument("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json")
    argument("--eod", metavar="TOKEN", help="end-of-document token (default: the tokenizer's own)")
    argument("--seed", type=int, default=0, metavar="N", help="of the order of documents (default 0)")
    argument("--shard-bytes", default="1GB", metavar="SIZE", help="target size of a shard (default 1GB)")
    argument("--validation", type=float, default=0.0, metavar="F", help="share of documents held out (default 0)")
    argument(
        "--parts-per-input",
        type=parts,
        default="auto",
        metavar="N",
        help="work items an input is cut into (default auto: as many as keep all workers at work)",
    )
    argument(
        "--dedup", default="none", choices=["none", "exact"], help="drop texts that occurred before (default none)"
    )
    argument(
        "--special-tokens",
        default="text",
        choices=["text", "token", "reject"],
        help="special tokens that a text holds literally: encode them as text (default), as tokens, or reject the line",
    )
    argument("--engine", default="auto", choices=["auto", "fast", "reference"], help="tokenizer engine (default auto)")
    argument("--on-bad-input", default="fail", choices=["fail", "skip"], help="a damaged input (default fail)")
    argument(
        "--max-rejected",
        type=float,
        default=0.01,
        metavar="F",
        help="share of rejected lines to stop at (default 0.01)",
    )
    argument("--text-key", default="text", metavar="KEY", help="dotted path of the text (default text)")
    argument(
        "--source-key", default="meta.pile_set_name", metavar="KEY", help="of the source (default meta.pile_set_name)"
    )
    argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes on this machine (default: its cores); with another engine, how many items it does at once",
    )
    argument("--temp-url", metavar="URL", help="where runs lie (default: the output)")
    argument(
        "--worker-memory",
        default="1GiB",
        metavar="SIZE",
        help="what a worker may hold for each item that it does at once (default 1GiB)",
    )
    argument("--run-bytes", metavar="SIZE", help="size of a run (default: by --worker-memory)")
    argument(
        "--retry-seconds",
        type=float,
        default=90.0,
        metavar="S",
        help="how long storage is tried again where a fault may pass, until the build stops (default 90)",
    )
    argument(
        "--no-space-check",
        action="store_true",
        help="do not compare the space that is needed with what is free (quotas are not seen, nor compression)",
    )
    argument(
        "--plan-only", action="store_true", help="say what the build would do and take, from a sample; write nothing"
    )
    argument("--json", action="store_true", help="with --plan-only: print JSON (schemas/forecast.schema.json)")
    argument("--keep-runs", action="store_true", help="keep runs and receipts after the build")
    add_storage_options(command)
    command.set_defaults(run=run)


def parts(text: str) -> int | str:
    """The value of `--parts-per-input`."""
    return text if text == "auto" else int(text)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import msgspec

    from beam_jobs.build import build, forecast
    from beam_jobs.forecast import forecast_text
    from beam_jobs.options import BuildOptions, parse_size
    from pileshard.audit.tables import account_lines, source_table

    if args.json and not args.plan_only:
        raise OptionError("--json goes with --plan-only; what a build gives is told by manifest.json in its output")
    options = BuildOptions(
        inputs=tuple(url for urls in args.input for url in urls),
        output=args.output,
        tokenizer=args.tokenizer,
        eod=args.eod,
        seed=args.seed,
        shard_bytes=parse_size(args.shard_bytes, "--shard-bytes"),
        validation=args.validation,
        dedup=args.dedup,
        special_tokens=args.special_tokens,
        text_key=args.text_key,
        source_key=args.source_key,
        parts_per_input=args.parts_per_input,
        engine=args.engine,
        on_bad_input=args.on_bad_input,
        max_rejected=args.max_rejected,
        workers=args.workers,
        temp_url=args.temp_url,
        keep_runs=args.keep_runs,
        worker_memory=parse_size(args.worker_memory, "--worker-memory"),
        run_bytes=parse_size(args.run_bytes, "--run-bytes") if args.run_bytes else None,
        retry_seconds=args.retry_seconds,
        space_check=not args.no_space_check,
        storage_options=parse_storage_options(args.storage_option),
        beam_args=tuple(beam_args),
    )
    if args.plan_only:
        found = forecast(options)
        print(msgspec.json.encode(found).decode() if args.json else "\n".join(forecast_text(found)))
        return 0
    result = build(options)
    print(source_table(result.manifest))
    print()
    for line in account_lines(result.manifest):
        print(line)
    if result.seconds:
        print(", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in result.seconds.items()))
        for stage, time in result.times.items():
            print(f"{stage}: {time.line()}")
        print(f"built {args.output}")
    else:
        print(f"{args.output} was complete already; nothing was done")
    return 0
