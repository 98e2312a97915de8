"""The entry point: finds the command, runs it, and turns bad input into one line and an exit code."""

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from selattn import __version__
from selattn.cli import (
    _faults,
    _interrupts,
    bench,
    convert,
    data,
    eval,
    explore,
    generate,
    info,
    plot,
    prune,
    train,
    zoo,
)
from selattn.cli._parser import PLACEHOLDERS, CommandsFormatter, Parser
from selattn.errors import SelattnError
from selattn.utils.suggest import advice

COMMANDS = {
    "bench": bench,
    "convert": convert,
    "data": data,
    "eval": eval,
    "explore": explore,
    "generate": generate,
    "info": info,
    "plot": plot,
    "prune": prune,
    "train": train,
    "zoo": zoo,
}

# Exit codes besides 0: bad input as argparse has it, Ctrl-C as shells have it, a closed pipe as rich has it.
BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 1
SAID = "\nselattn: interrupted\n"


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command in it; importing and building it loads nothing heavy."""
    parser = Parser(
        prog="selattn",
        description="Selective attention: tokens that decide which earlier tokens are no longer needed.",
        epilog=PLACEHOLDERS,
        formatter_class=CommandsFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"selattn {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="<command>")
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    return parser


def check_command(argv: Sequence[str]) -> None:
    """Raise for an unknown command, naming the nearest one; argparse would list them all."""
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is None or name in COMMANDS:
        return
    hint = advice(name, COMMANDS, "see 'selattn --help' for the list")
    raise SelattnError(f"unknown command {name!r}; {hint}")


def dispatch(argv: Sequence[str]) -> int:
    """Parse and run; errors are left to the caller."""
    check_command(argv)
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        raise SelattnError("no command given; see 'selattn --help' for the list")
    return COMMANDS[args.command].run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return guarded(dispatch, sys.argv[1:] if argv is None else argv)


def guarded(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """The exit code of a command; bad input is one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a bar character shows a question mark; it does not get a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        with _interrupts.heard(INTERRUPTED, SAID):
            try:
                return command(argv)
            finally:
                sys.stdout.flush()  # here, where it can be told what is wrong: Python's own at exit is too late for it
    except SelattnError as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        print(SAID, end="", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        give_up(sys.stdout)  # the reader, `head` for example, has seen enough
        return BROKEN_PIPE
    except Exception as error:
        line = _faults.fault(error)
        if line is None:
            raise
        return refuse(line)


def refuse(message: str) -> int:
    """Say in one line what was wrong; words that fill a screen, such as a name of 5,000 characters, are cut."""
    give_up(sys.stdout)
    line = re.sub(r"\S{300,}", lambda word: f"{word[0][:80]}...{word[0][-20:]}", " ".join(message.split()))
    with suppress(OSError):
        print("selattn: error:", line, file=sys.stderr)
    give_up(sys.stderr)
    return BAD_INPUT


def give_up(stream: TextIO) -> None:
    """Of a stream that cannot be written: Python flushes it again at exit, so give it a place to."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
