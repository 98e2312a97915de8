"""The entry point: finds the command, runs it, and turns bad input into one line and an exit code."""

import argparse
import difflib
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from selattn import __version__
from selattn.cli import bench, convert, data, demo, eval, generate, info, prune, seeds, study, train, zoo
from selattn.errors import SelattnError

COMMANDS = {
    "bench": bench,
    "convert": convert,
    "data": data,
    "demo": demo,
    "eval": eval,
    "generate": generate,
    "info": info,
    "prune": prune,
    "seeds": seeds,
    "study": study,
    "train": train,
    "zoo": zoo,
}

# Exit codes besides 0: bad input as argparse has it, Ctrl-C as shells have it, a closed pipe as rich has it.
BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 1


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are raised like all bad input, not printed below the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing and exiting."""
        raise SelattnError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Where a command has `--set FIELD=VALUE`, a bare FIELD=VALUE means the same, wherever it stands."""
        if args is not None and "--set" in self._option_string_actions:
            taken = {name for name, action in self._option_string_actions.items() if action.nargs != 0}
            pairs = zip(["", *args], args, strict=False)
            args = [f"--set={w}" if re.match(r"[a-z][\w.]*=", w) and before not in taken else w for before, w in pairs]
        return super().parse_known_args(args, namespace)


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command in it; importing and building it loads nothing heavy."""
    parser = Parser(
        prog="selattn",
        description="Selective attention: tokens that decide which earlier tokens are no longer needed.",
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
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    advice = f"did you mean '{near[0]}'?" if near else "see 'selattn --help' for the list"
    raise SelattnError(f"unknown command '{name}'; {advice}")


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
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a bar character shows a question mark; it does not get a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except SelattnError as error:
        print("selattn: error:", " ".join(str(error).split()), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("\nselattn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, `head` for example, has seen enough. Python flushes again at exit: give it a place to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
