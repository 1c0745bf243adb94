"""The command line. Exit codes: 0 done, 1 failed or faults found, 2 wrong usage."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence

from pileshard.commands import build, clean, inspect, repair, stats, status, verify
from pileshard.errors import MissingExtraError, OptionError, PileshardError
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
    if getattr(options, "url", None) == "":
        parser.error(f"{options.command}: the URL is empty")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Redacting("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("pileshard").setLevel(logging.INFO)
    try:
        code = int(options.run(options, passed_on))
        sys.stdout.flush()
        return code
    except OptionError as error:
        return _failed(options.command, str(error), 2)
    except MissingExtraError as error:
        beam = " --beam" if options.command == "verify" else ""
        return _failed(options.command, str(error.for_command(f"pileshard {options.command}{beam}")))
    except PileshardError as error:
        return _failed(options.command, str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 128 + signal.SIGPIPE  # as other programs end whose reader, such as `head`, has seen enough
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


def _reader_is_gone() -> bool:
    """Whether nobody reads the standard output any more, rather than a connection elsewhere being broken."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no poll on this system, or no file behind the stream
        return False


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def entry() -> None:
    """The console script: as `main`, and ends at once, even where an engine's threads do not."""
    signal.signal(signal.SIGTERM, _interrupt)
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # that a disk is full was said, and is in the exit code
            stream.flush()
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pileshard", description="From jsonl.zst to the tensors of a training step.")
    parser.add_argument("--version", action="version", version=f"pileshard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (build, verify, repair, status, clean, inspect, stats):
        module.add(commands)
    return parser
