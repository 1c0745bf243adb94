"""The command `pileshard stats`."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
from typing import Any

from pileshard.commands.options import add_storage_options, check_target, parse_storage_options, write_report
from pileshard.errors import OptionError

_CARD = "README.md"
_CROISSANT = "croissant.json"


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    command = commands.add_parser(
        "stats",
        help="a dataset in numbers: tables, a page with plots, a card",
        description="Documents, tokens, lengths, density, shards and rejected lines, from the manifest and the "
        "indexes. Exit code 0: done; 1: no dataset, or a damaged one; 2: wrong usage.",
    )
    argument = command.add_argument
    argument("url", metavar="URL", help="root of the dataset")
    argument("--vocab", action="store_true", help="how the vocabulary is used, too: reads every token")
    argument("--json", metavar="FILE", help="write all numbers as JSON (- for standard output)")
    argument("--html", metavar="FILE", help="write one self-contained page with tables and plots")
    argument(
        "--card",
        metavar="DIR",
        help=f"write a card of the dataset, {_CARD} and {_CROISSANT}, into a directory: the dataset's root, to publish "
        "it, or another one to look at it first",
    )
    argument("--overwrite", action="store_true", help="replace a card that is there")
    argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes over shards, at most four a core (default: threads of one; with --vocab this machine's cores)",
    )
    add_storage_options(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from pileshard.audit.statistics import collect
    from pileshard.audit.statistics_text import statistics_text

    storage_options = parse_storage_options(args.storage_option)
    # What cannot be written is told before hours of reading.
    for option, path in (("--json", args.json), ("--html", args.html)):
        check_target(option, path)
    if args.html == "-":
        raise OptionError("--html takes the name of a file")
    _check_apart(args, storage_options)
    if args.html:
        from pileshard.audit.plots import need_plots

        need_plots()
    if args.card:
        _check_card(args.card, storage_options, args.overwrite)
    statistics = collect(args.url, storage_options, vocab=args.vocab, workers=args.workers)
    if args.json:
        write_report(args.json, statistics.to_json())
    if args.html:
        from pileshard.audit.page import page

        write_report(args.html, page(statistics).encode())
    if args.card:
        _write_card(args.url, args.card, storage_options, statistics)
    if args.json != "-":
        print(statistics_text(statistics))
    return 0


def _check_apart(args: argparse.Namespace, storage_options: dict[str, Any]) -> None:
    """No two of what is written go into one file, by whatever names."""
    from pileshard.format.storage import Storage

    written = [("--json", args.json if args.json != "-" else None), ("--html", args.html)]
    if args.card and (card := Storage(args.card, storage_options)).is_local:
        written += [("--card", card.path(name)) for name in (_CARD, _CROISSANT)]
    named: dict[str, str] = {}
    for option, path in written:
        if path is not None and (first := named.setdefault(os.path.realpath(path), option)) != option:
            raise OptionError(f"{first} and {option} would both write {path}; name another file for one of them")


def _check_card(directory: str, storage_options: dict[str, Any], overwrite: bool) -> None:
    from pileshard.format.storage import Storage

    target = Storage(directory, storage_options)
    there = [name for name in (_CARD, _CROISSANT) if target.exists(name)]
    if there and not overwrite:
        raise OptionError(
            f"{target.url_of(there[0])}: is there, and may hold words of your own; give another directory, or "
            "--overwrite"
        )


def _write_card(url: str, directory: str, storage_options: dict[str, Any], statistics: Any) -> None:
    from pileshard.audit.card import card
    from pileshard.audit.croissant import croissant
    from pileshard.audit.figures import last_of
    from pileshard.audit.redact import public_url
    from pileshard.format.manifest import Manifest
    from pileshard.format.paths import MANIFEST
    from pileshard.format.storage import Storage

    storage, target = Storage(url, storage_options), Storage(directory, storage_options)
    data = storage.read_bytes(MANIFEST)
    manifest = Manifest.from_bytes(data, storage.url_of(MANIFEST))
    described = croissant(
        manifest,
        last_of(statistics.url),
        hashlib.sha256(data).hexdigest(),
        len(data),
        storage.size(manifest.tokenizer_path),
    )
    for name, content in ((_CARD, card(manifest, statistics).encode()), (_CROISSANT, described)):
        if target.is_local:
            os.makedirs(target.root, exist_ok=True)
            write_report(target.path(name), content)  # not `write_bytes`, which leaves a _build where none is wanted
        else:
            target.write_bytes(name, content)
    secret = sum(public_url(entry.url) != entry.url for entry in manifest.inputs)
    if secret:
        logging.getLogger("pileshard").warning(
            "%s itself names %d inputs with a user, password or query in their URLs; publish it only if they are no "
            "secret",
            storage.url_of(MANIFEST),
            secret,
        )
