"""The command `pileshard inspect`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from pileshard.commands.options import add_storage_options, parse_storage_options
from pileshard.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pileshard.audit.terminal import Display
    from pileshard.corpus import Corpus

_CHARACTERS = 200

#: Options of the order, which says what stands at a position and nothing else.
_ORDER = ("seed", "seq_len", "slots", "weights", "epochs", "exclude", "packing", "fim_rate", "fim_spm_rate", "fim_ids")


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "inspect",
        help="what stands at a position, in a shard, or where documents went",
        description="Shows rows of the order (--position), documents (--document), a shard's records (--shard), or "
        "searches documents by source and length (--find).",
    )
    argument = command.add_argument
    argument("url", metavar="URL", help="root of the dataset")
    argument("--position", type=int, action="append", default=[], metavar="P", help="a position; may be given again")
    argument("--document", action="append", default=[], metavar="INPUT:LINE", help="input by number, URL or its end")
    argument("--shard", action="append", default=[], metavar="PATH", help="a shard by path, its end, or number")
    argument("--find", action="store_true", help="search documents through the indexes")
    argument("--split", choices=["train", "validation"], help="of --position (default train) or --find (default both)")
    argument("--json", action="store_true", help="print JSON, one object a line (schemas/inspect-*.schema.json)")
    add_storage_options(command)
    argument = command.add_argument_group("with --shard").add_argument
    argument("--head", type=int, metavar="N", help="records to show (default 5)")
    argument("--first", type=int, metavar="RECORD", help="number of the first one (default 0)")
    argument = command.add_argument_group("with --find").add_argument
    argument("--source", action="append", metavar="SOURCE", help="of the documents; may be given again")
    argument("--min-tokens", type=int, metavar="N", help="of a document, its end-of-document id counted")
    argument("--max-tokens", type=int, metavar="N", help="likewise")
    argument("--longest", type=int, metavar="N", help="show the N longest")
    argument("--shortest", type=int, metavar="N", help="show the N shortest")
    argument("--limit", type=int, metavar="N", help="show the first N (default 10); all that fit are counted")
    argument = command.add_argument_group("with --shard or --find").add_argument
    argument("--characters", type=int, metavar="N", help=f"of each text (default {_CHARACTERS})")
    argument = command.add_argument_group("with --position: the options of the order, as the run was given them")
    argument = argument.add_argument
    argument("--seed", type=int, metavar="N", help="of the order (default 0)")
    argument("--seq-len", type=int, metavar="N", help="default 2048")
    argument("--slots", type=int, metavar="N", help="default 768")
    argument("--weights", metavar="JSON", help='numbers by source, or "pile"')
    argument("--epochs", metavar="JSON", help='numbers by source, or "pile"')
    argument("--exclude", action="append", metavar="SOURCE", help="a source left out; may be given again")
    argument("--packing", choices=["concat", "best_fit", "document"], help="default concat")
    argument("--fim-rate", type=float, metavar="F", help="share of documents filled in the middle (default 0)")
    argument("--fim-spm-rate", type=float, metavar="F", help="share of those in the order suffix, prefix, middle (0.5)")
    argument("--fim-ids", type=int, nargs=3, metavar="ID", help="ids that open prefix, middle and suffix")
    command.set_defaults(run=run)


def _mixture_option(name: str, text: str | None) -> Any:
    if text is None or text == "pile":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f'{name} {text!r} is neither JSON such as {{"ArXiv": 1.5}} nor pile') from None


def _check(args: argparse.Namespace) -> None:
    """Each option belongs to something that is asked for, and is in its range."""
    if not (args.position or args.document or args.shard or args.find):
        raise OptionError("say what to show: --position, --document, --shard or --find")
    owners = {
        "--position": (bool(args.position), _ORDER),
        "--position or --find": (bool(args.position) or args.find, ("split",)),
        "--shard": (bool(args.shard), ("head", "first")),
        "--find": (args.find, ("source", "min_tokens", "max_tokens", "longest", "shortest", "limit")),
        "--shard or --find": (bool(args.shard) or args.find, ("characters",)),
    }
    for owner, (given, names) in owners.items():
        for name in names:
            value, option = getattr(args, name), f"--{name.replace('_', '-')}"
            if value is not None and not given:
                raise OptionError(f"{option} goes with {owner}")
            least = 1 if name in ("head", "longest", "shortest", "limit") else 0
            if isinstance(value, int) and value < least:
                raise OptionError(f"{option} {value} is below {least}")
    if sum(value is not None for value in (args.longest, args.shortest, args.limit)) > 1:
        raise OptionError("give one of --longest, --shortest and --limit: each says how many documents are shown")


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import msgspec

    from pileshard.audit.terminal import Display
    from pileshard.corpus import open_corpus

    _check(args)
    display = Display.of(sys.stdout)
    corpus = open_corpus(args.url, parse_storage_options(args.storage_option))
    for view, text in list(_views(args, corpus, display)):
        print(display.json(msgspec.json.encode(view).decode()) if args.json else text)
    return 0


def _views(args: argparse.Namespace, corpus: Corpus, display: Display) -> Iterator[tuple[Any, str]]:
    """All that is asked for, as a struct and as text."""
    from pileshard.audit import browse, inspect, search

    decoder = inspect.load_decoder(corpus)
    characters = _CHARACTERS if args.characters is None else args.characters
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
        plan = corpus.plan(args.seed or 0, **inspect.plan_options(options))
        for position in args.position:
            row = inspect.inspect_position(plan, position, decoder)
            yield row, inspect.row_text(row, display, (corpus.manifest.eod_id, corpus.manifest.eod_token))
    for name in args.document:
        url, colon, line = name.rpartition(":")
        if not colon or not line.isdecimal():
            raise OptionError(f"--document {name!r} is not of the form INPUT:LINE")
        document = inspect.inspect_document(corpus, url, int(line), decoder)
        yield document, inspect.document_text(document, display)
    for name in args.shard:
        count = 5 if args.head is None else args.head
        shard = browse.inspect_shard(corpus, name, decoder, first=args.first or 0, count=count, characters=characters)
        yield shard, browse.shard_text(shard, display)
    if args.find:
        order: search.Order = "longest" if args.longest else "shortest" if args.shortest else "dataset"
        found = search.search(
            corpus,
            decoder,
            sources=args.source or (),
            split=args.split,
            min_tokens=args.min_tokens,
            max_tokens=args.max_tokens,
            order=order,
            limit=args.longest or args.shortest or args.limit or 10,
            characters=characters,
        )
        yield found, search.search_text(found, display)
