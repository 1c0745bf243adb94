"""The command `pileshard inspect`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from pileshard.commands.options import add_storage_options, parse_storage_options
from pileshard.errors import OptionError


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "inspect",
        help="what stands at a position, or where a document went",
        description="Give the options of the order that the training run was given.",
    )
    argument = command.add_argument
    argument("url", metavar="URL", help="root of the dataset")
    argument("--position", type=int, action="append", default=[], metavar="P", help="a position; may be given again")
    argument("--document", action="append", default=[], metavar="INPUT:LINE", help="input by number, URL or its end")
    argument("--seed", type=int, default=0, metavar="N", help="of the order (default 0)")
    argument("--seq-len", type=int, metavar="N", help="default 2048")
    argument("--split", choices=["train", "validation"], help="default train")
    argument("--slots", type=int, metavar="N", help="default 768")
    argument("--weights", metavar="JSON", help='numbers by source, or "pile"')
    argument("--epochs", metavar="JSON", help='numbers by source, or "pile"')
    argument("--exclude", action="append", metavar="SOURCE", help="a source left out; may be given again")
    argument("--packing", choices=["concat", "best_fit", "document"], help="default concat")
    argument("--fim-rate", type=float, metavar="F", help="share of documents filled in the middle (default 0)")
    argument("--fim-spm-rate", type=float, metavar="F", help="share of those in the order suffix, prefix, middle (0.5)")
    argument("--fim-ids", type=int, nargs=3, metavar="ID", help="ids that open prefix, middle and suffix")
    argument("--json", action="store_true", help="print JSON, one object a line")
    add_storage_options(command)
    command.set_defaults(run=run)


def _mixture_option(name: str, text: str | None) -> Any:
    if text is None or text == "pile":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f'{name} {text!r} is neither JSON such as {{"ArXiv": 1.5}} nor pile') from None


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import msgspec

    from pileshard.audit import inspect
    from pileshard.corpus import open_corpus

    if not args.position and not args.document:
        raise OptionError("give --position or --document")
    corpus = open_corpus(args.url, parse_storage_options(args.storage_option))
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
