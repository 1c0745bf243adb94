"""The command line. Exit codes: 0 done, 1 failed or faults found, 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pileshard.errors import OptionError, PileshardError
from pileshard.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    passed_on: list[str] = []
    if "--" in args:
        at = args.index("--")
        args, passed_on = args[:at], args[at + 1 :]
    parser = _parser()
    options = parser.parse_args(args)
    if passed_on and options.command not in ("build", "repair", "verify"):
        parser.error("only `build`, `repair` and `verify` take options after --")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("pileshard").setLevel(logging.INFO)
    try:
        return int(options.run(options, passed_on))
    except OptionError as error:
        print(f"pileshard {options.command}: {error}", file=sys.stderr)
        return 2
    except PileshardError as error:
        print(f"pileshard {options.command}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"pileshard {options.command}: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = "; the same command continues it" if options.command in ("build", "repair") else ""
        print(f"pileshard {options.command}: interrupted{again}", file=sys.stderr)
        return 1


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def entry() -> None:
    """The console script: as `main`, and ends at once, even where an engine's threads do not."""
    signal.signal(signal.SIGTERM, _interrupt)
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pileshard", description="From jsonl.zst to the tensors of a training step.")
    parser.add_argument("--version", action="version", version=f"pileshard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_build(commands)
    _add_verify(commands)
    _add_repair(commands)
    _add_status(commands)
    _add_inspect(commands)
    return parser


def _storage_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--storage-option",
        action="append",
        default=[],
        metavar="K=V",
        help="an option of the fsspec file system (endpoint, credentials, ...), never written anywhere",
    )


def _parse_storage_options(pairs: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"--storage-option {pair!r} is not of the form K=V")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _add_build(commands: Any) -> None:
    command = commands.add_parser(
        "build",
        help="build a dataset, or continue a build that stopped",
        description="Turns jsonl.zst (gzip, plain) inputs into shards. The same command continues a build that "
        "stopped, and gives the same bytes. Options after -- go to Apache Beam, e.g. -- --runner=FlinkRunner.",
    )
    add = command.add_argument
    add("--input", action="append", nargs="+", required=True, metavar="URL", help="fsspec URLs, paths or globs")
    add("--output", required=True, metavar="URL", help="root of the dataset")
    add("--tokenizer", required=True, metavar="FILE", help="a tokenizer.json")
    add("--eod", metavar="TOKEN", help="end-of-document token (default: the tokenizer's own)")
    add("--seed", type=int, default=0, metavar="N", help="of the order of documents (default 0)")
    add("--shard-bytes", default="1GB", metavar="SIZE", help="target size of a shard (default 1GB)")
    add("--validation", type=float, default=0.0, metavar="F", help="share of documents held out (default 0)")
    add("--parts-per-input", type=int, default=1, metavar="N", help="work items an input is cut into (default 1)")
    add("--dedup", default="none", choices=["none", "exact"], help="drop texts that occurred before (default none)")
    add(
        "--special-tokens",
        default="text",
        choices=["text", "token", "reject"],
        help="special tokens that a text holds literally: encode them as text (default), as tokens, or reject the line",
    )
    add("--engine", default="auto", choices=["auto", "fast", "reference"], help="tokenizer engine (default auto)")
    add("--on-bad-input", default="fail", choices=["fail", "skip"], help="a damaged input (default fail)")
    add(
        "--max-rejected",
        type=float,
        default=0.01,
        metavar="F",
        help="share of rejected lines to stop at (default 0.01)",
    )
    add("--text-key", default="text", metavar="KEY", help="dotted path of the text (default text)")
    add("--source-key", default="meta.pile_set_name", metavar="KEY", help="of the source (default meta.pile_set_name)")
    add("--workers", type=int, metavar="N", help="processes on this machine (default: its cores)")
    add("--temp-url", metavar="URL", help="where runs lie (default: the output)")
    add("--run-bytes", default="256MiB", metavar="SIZE", help="size of a run: a worker's memory (default 256MiB)")
    add("--plan-only", action="store_true", help="say what the build would do and take, from a sample; write nothing")
    add("--keep-runs", action="store_true", help="keep runs and receipts after the build")
    _storage_options(command)
    command.set_defaults(run=_build)


def _build(args: argparse.Namespace, beam_args: list[str]) -> int:
    from beam_jobs.build import build, forecast
    from beam_jobs.options import BuildOptions, parse_size
    from pileshard.audit.tables import account_lines, source_table

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
        run_bytes=parse_size(args.run_bytes, "--run-bytes"),
        storage_options=_parse_storage_options(args.storage_option),
        beam_args=tuple(beam_args),
    )
    if args.plan_only:
        print("\n".join(forecast(options)))
        return 0
    result = build(options)
    print(source_table(result.manifest))
    print()
    for line in account_lines(result.manifest):
        print(line)
    if result.seconds:
        print(", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in result.seconds.items()))
        print(f"built {args.output}")
    else:
        print(f"{args.output} was complete already; nothing was done")
    return 0


def _add_verify(commands: Any) -> None:
    command = commands.add_parser(
        "verify",
        help="prove a dataset from its bytes",
        description="Exit code 0: sound; 1: faults found, each named; 2: wrong usage. Options after -- go to Apache "
        "Beam, which then does the work.",
    )
    add = command.add_argument
    add("url", metavar="URL", help="root of the dataset")
    add(
        "--level",
        default="full",
        choices=["quick", "full", "deep"],
        help="quick: manifest, sizes, indexes; full (default): every byte, record and token; deep: the inputs too, "
        "each read whole once: their hashes, every line's account, and a sample of documents tokenized again by the "
        "reference and compared",
    )
    add(
        "--sample",
        default="1000",
        metavar="N",
        help="documents that the level deep tokenizes again (about 2.5 MB/s a core), or `all` (default 1000)",
    )
    add("--sample-seed", type=int, default=0, metavar="N", help="another seed chooses other documents (default 0)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="processes over shards and inputs (default: one with threads; level deep: this machine's cores)",
    )
    add("--beam", action="store_true", help="let Apache Beam do the work")
    add("--temp-url", metavar="URL", help="where Beam's workers leave what they found (default: the dataset's _build)")
    add("--json", metavar="FILE", help="write the report as JSON (- for standard output)")
    _storage_options(command)
    command.set_defaults(run=_verify)


def _verify(args: argparse.Namespace, beam_args: list[str]) -> int:
    from pileshard.audit.verify import verify

    if args.sample != "all" and not args.sample.isdecimal():
        raise OptionError(f"--sample {args.sample!r} is neither a number of documents nor all")
    storage_options = _parse_storage_options(args.storage_option)
    workers = args.workers
    if workers is None and (args.level == "deep" or args.beam or beam_args):
        workers = os.cpu_count() or 1
    engine = None
    if args.beam or beam_args:
        from beam_jobs.audit_pipeline import beam_engine

        engine = beam_engine(args.temp_url, beam_args, workers)
    report = verify(
        args.url,
        level=args.level,
        storage_options=storage_options,
        sample="all" if args.sample == "all" else int(args.sample),
        sample_seed=args.sample_seed,
        workers=workers,
        engine=engine,
    )
    if args.json:
        data = report.to_json()
        if args.json == "-":
            sys.stdout.buffer.write(data)
        else:
            with open(args.json, "wb") as file:
                file.write(data)
    if args.json != "-":
        print(report.text())
    return 0 if report.sound else 1


def _add_repair(commands: Any) -> None:
    command = commands.add_parser(
        "repair",
        help="make damaged files again, to the same bytes",
        description="Verifies, and makes what is damaged again: from the shard, from kept runs, or from the inputs, "
        "which must be as they were. A file is replaced only by one that has the manifest's sha256. The same command "
        "continues a repair that stopped. Exit code 0: sound now; 1: not; 2: wrong usage. Options after -- go to "
        "Apache Beam.",
    )
    add = command.add_argument
    add("url", metavar="URL", help="root of the dataset")
    add("--workers", type=int, metavar="N", help="processes on this machine (default: its cores)")
    add("--temp-url", metavar="URL", help="where runs lie, kept ones too (default: the dataset's _build)")
    add("--tokenizer", metavar="FILE", help="the build's tokenizer.json, where the dataset's is damaged")
    add("--engine", default="auto", choices=["auto", "fast", "reference"], help="tokenizer engine (default auto)")
    add("--remove-surplus", action="store_true", help="remove files that the manifest does not name")
    _storage_options(command)
    command.set_defaults(run=_repair)


def _repair(args: argparse.Namespace, beam_args: list[str]) -> int:
    from beam_jobs.repair import RepairOptions, repair

    report = repair(
        RepairOptions(
            url=args.url,
            workers=args.workers,
            temp_url=args.temp_url,
            tokenizer=args.tokenizer,
            engine=args.engine,
            remove_surplus=args.remove_surplus,
            storage_options=_parse_storage_options(args.storage_option),
            beam_args=tuple(beam_args),
        )
    )
    print(report.text())
    return 0 if report.sound else 1


def _add_status(commands: Any) -> None:
    command = commands.add_parser("status", help="how far a build is, from any machine that sees the output")
    command.add_argument("url", metavar="URL", help="output of the build")
    _storage_options(command)
    command.set_defaults(run=_status)


def _status(args: argparse.Namespace, _: list[str]) -> int:
    from beam_jobs.monitor import status_lines
    from pileshard.format.storage import Storage

    print("\n".join(status_lines(Storage(args.url, _parse_storage_options(args.storage_option)))))
    return 0


def _add_inspect(commands: Any) -> None:
    command = commands.add_parser(
        "inspect",
        help="what stands at a position, or where a document went",
        description="Give the options of the order that the training run was given.",
    )
    add = command.add_argument
    add("url", metavar="URL", help="root of the dataset")
    add("--position", type=int, action="append", default=[], metavar="P", help="a position; may be given again")
    add("--document", action="append", default=[], metavar="INPUT:LINE", help="input by number, URL or its end")
    add("--seed", type=int, default=0, metavar="N", help="of the order (default 0)")
    add("--seq-len", type=int, metavar="N", help="default 2048")
    add("--split", choices=["train", "validation"], help="default train")
    add("--slots", type=int, metavar="N", help="default 768")
    add("--weights", metavar="JSON", help='numbers by source, or "pile"')
    add("--epochs", metavar="JSON", help='numbers by source, or "pile"')
    add("--exclude", action="append", metavar="SOURCE", help="a source left out; may be given again")
    add("--packing", choices=["concat", "best_fit", "document"], help="default concat")
    add("--fim-rate", type=float, metavar="F", help="share of documents filled in the middle (default 0)")
    add("--fim-spm-rate", type=float, metavar="F", help="share of those in the order suffix, prefix, middle (0.5)")
    add("--fim-ids", type=int, nargs=3, metavar="ID", help="ids that open prefix, middle and suffix")
    add("--json", action="store_true", help="print JSON, one object a line")
    _storage_options(command)
    command.set_defaults(run=_inspect)


def _mixture_option(name: str, text: str | None) -> Any:
    if text is None or text == "pile":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f'{name} {text!r} is neither JSON such as {{"ArXiv": 1.5}} nor pile') from None


def _inspect(args: argparse.Namespace, _: list[str]) -> int:
    import msgspec

    from pileshard.audit import inspect
    from pileshard.corpus import open_corpus

    if not args.position and not args.document:
        raise OptionError("give --position or --document")
    corpus = open_corpus(args.url, _parse_storage_options(args.storage_option))
    decoder = inspect.load_decoder(corpus)
    views: list[tuple[Any, str]] = []
    if args.position:
        options = {
            "seq_len": args.seq_len,
            "split": args.split,
            "slots": args.slots,
            "weights": _mixture_option("--weights", args.weights),
            "epochs": _mixture_option("--epochs", args.epochs),
            "exclude": args.exclude,
            "packing": args.packing,
            "fim_rate": args.fim_rate,
            "fim_spm_rate": args.fim_spm_rate,
            "fim_ids": args.fim_ids,
        }
        plan = corpus.plan(args.seed, **inspect.plan_options(options))
        for position in args.position:
            row = inspect.inspect_position(plan, position, decoder)
            views.append((row, inspect.row_text(row, colour=sys.stdout.isatty())))
    for name in args.document:
        url, colon, line = name.rpartition(":")
        if not colon or not line.isdecimal():
            raise OptionError(f"--document {name!r} is not of the form INPUT:LINE")
        document = inspect.inspect_document(corpus, url, int(line), decoder)
        views.append((document, inspect.document_text(document)))
    for view, text in views:
        print(msgspec.json.encode(view).decode() if args.json else text)
    return 0
