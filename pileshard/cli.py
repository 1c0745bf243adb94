"""The command line. Exit codes: 0 done, 1 failed or faults found, 2 wrong usage."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from pileshard.commands import build, clean, inspect, repair, stats, status, verify
from pileshard.errors import OptionError, PileshardError
from pileshard.format.secrets import redact
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacting("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("pileshard").setLevel(logging.INFO)
    try:
        return int(options.run(options, passed_on))
    except OptionError as error:
        return _failed(options.command, str(error), 2)
    except PileshardError as error:
        return _failed(options.command, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed(options.command, f"{where}{error.strerror or error}")
    except KeyboardInterrupt:
        again = "; the same command continues it" if options.command in ("build", "repair") else ""
        return _failed(options.command, f"interrupted{again}")
    except Exception:
        return _failed(options.command, f"this is a defect of pileshard, please report it\n{traceback.format_exc()}")


def _failed(command: str, message: str, code: int = 1) -> int:
    print(redact(f"pileshard {command}: {message}"), file=sys.stderr)
    return code


class _Redacting(logging.Formatter):
    """Lines of the log without what is secret in them."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


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
    for module in (build, verify, repair, status, clean, inspect, stats):
        module.add(commands)
    return parser
