"""The entry point: finds the command, runs it, and turns bad input into one line and an exit code."""

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from selattn import __version__
from selattn.cli import (
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
    serve,
    train,
    zoo,
)
from selattn.cli._options import PLACEHOLDERS, Parser
from selattn.errors import SelattnError, advice

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
    "serve": serve,
    "train": train,
    "zoo": zoo,
}

# Errors that are the fault of the machine or of what is read, told from our own mistakes, which keep their traceback.
# Bad input that a command knows of is a `SelattnError`; this is the net below: a full disk, a size beyond all memory.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Not ENOENT and its like: whether a file is there is looked at first, so a file that is missing later is a mistake.
SYSTEM = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.ETXTBSY, errno.ENOMEM, errno.EAGAIN, errno.ENXIO, errno.ENODEV),
)
# How torch says it, which has no exception of its own for a CPU; the last is of a size beyond all memory.
_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|Storage size calculation overflowed"
)
_BYTES = re.compile(r"tried to allocate (\d+) bytes")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how libraries in Rust, safetensors and tokenizers, say what failed

# Exit codes besides 0: bad input as argparse has it, Ctrl-C as shells have it, a closed pipe as rich has it.
BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 1
SAID = "\nselattn: interrupted\n"


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command in it; importing and building it loads nothing heavy."""
    parser = Parser(
        prog="selattn",
        description="Selective attention: tokens that decide which earlier tokens are no longer needed.",
        epilog=PLACEHOLDERS,
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
        line = fault(error)
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


def fault(error: BaseException) -> str | None:
    """One line on an error that is not ours; None if it may be."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        asked = _BYTES.search(str(error))
        size = f" for {int(asked[1]):,} bytes at once" if asked else ""
        return f"there is not enough memory{size}: choose smaller sizes"
    if isinstance(error, UnicodeDecodeError):
        return f"what is read is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
    if isinstance(error, UnicodeEncodeError):
        return f"a name or a text is not UTF-8: {error.object[error.start : error.end]!a}"
    if isinstance(error, OSError):
        return _system(error.errno, None if error.filename is None else str(error.filename))
    inside = _OS_ERROR.search(str(error))
    return _system(int(inside[1]), None) if inside else None


def _system(number: int | None, file: str | None) -> str | None:
    if number in FULL:
        return f"cannot write {file or 'all of it'}: {os.strerror(number)}; free some space, or write elsewhere"
    if number in SYSTEM:
        return f"cannot use {file}: {os.strerror(number)}" if file else f"the system refuses: {os.strerror(number)}"
    return None
