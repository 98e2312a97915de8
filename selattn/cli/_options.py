"""Options: how they are read and checked before anything is loaded, and those of commands that read text."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from selattn.errors import SelattnError, require
from selattn.utils.records import check_output

if TYPE_CHECKING:
    from selattn.data import Reading
    from selattn.evaluation.text import Text

LARGEST = 2**63 - 1  # as torch and itertools count
LARGEST_SEED = 2**32 - 1  # of numpy's generators
SOURCES = "c4, wikitext, lm1b, hub:OWNER/NAME, a file, a folder, or embedded"
READING = ("column", "separator", "validation")
TEXT = ("split", "layout", *READING)

PLACEHOLDERS = """\
in commands and on their help pages:
  MODEL    a model's folder, a run's folder, or zoo:NAME (see 'selattn zoo')
  TEXT     c4, wikitext, lm1b, hub:OWNER/NAME, embedded (Python's own documentation), or
           a file or folder of yours: .txt, .jsonl, or .gz of these
  FOLDER   a folder of yours; one that is written is made if need be
  BUDGETS  how many tokens each layer may keep: 64, or 8,48,8, or a budgets file, or the
           folder that 'selattn prune' has written
  N, K     N tokens are the context, K of them are kept by a layer
"""


class CommandsFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves room for the longest command; argparse forgets by how much it indents them."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        longest = max(map(len, action.choices), default=0) if action.nargs == argparse.PARSER and action.choices else 0
        self._action_max_length = max(self._action_max_length, longest + 2 * self._indent_increment)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are raised like all bad input, and which knows which options were given.

    `args.given` has their names: those at their defaults are not among them.
    """

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing and exiting."""
        message = re.sub(r"^argument (\S+): (?=must )", r"\1 ", message)
        raise SelattnError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Where a command has `--set FIELD=VALUE`, a bare FIELD=VALUE means the same, wherever it stands."""
        if args is not None and "--set" in self._option_string_actions:
            taken = {name for name, action in self._option_string_actions.items() if action.nargs != 0}
            pairs = zip(["", *args], args, strict=False)
            args = [f"--set={w}" if re.match(r"[a-z][\w.]*=", w) and before not in taken else w for before, w in pairs]
        options = [each for each in self._actions if each.option_strings and each.default is not argparse.SUPPRESS]
        defaults = {action.dest: action.default for action in options}
        for action in options:
            action.default = argparse.SUPPRESS
        try:
            found, others = super().parse_known_args(args, namespace)
        finally:
            for action in options:
                action.default = defaults[action.dest]
        given = getattr(found, "given", None) or frozenset(vars(found))  # those of a command are told by its own parser
        for name, default in defaults.items():
            if not hasattr(found, name):
                setattr(found, name, default)
        found.given = given
        return found, others


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`; for argparse, which puts the option's name in front."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {number}")
        if number > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, not {number}")
        return number

    return read


seed = whole(0, LARGEST_SEED)


def at_least_0(text: str) -> float:
    """Reads a number that is not negative, nor infinite; for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, not {text!r}")
    return number


def name(text: str) -> str:
    """Reads what is not empty; for argparse. An empty path would be the working directory, or the default."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def path(text: str) -> Path:
    """Reads the name of a file or folder; for argparse."""
    return Path(name(text))


def given(args: argparse.Namespace, options: Iterable[str]) -> list[str]:
    """Those of the options that the user has given."""
    return [f"--{option.replace('_', '-')}" for option in options if option in args.given]


def refuse(args: argparse.Namespace, options: Iterable[str], why: str) -> None:
    """Raise if one of these was given: nothing would read it, and its user would never know."""
    found = given(args, options)
    if found:
        raise SelattnError(f"{' and '.join(found)} would change nothing: {why}")


def html_file(text: str) -> Path:
    """Reads the name of an HTML file; for argparse. By any other name it could take the place of a result."""
    found = path(text)
    if found.suffix not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"must end with .html, not {text!r}")
    return found


def add_html(parser: argparse.ArgumentParser) -> None:
    """`--html FILE`: a report of what came of the command."""
    parser.add_argument("--html", type=html_file, metavar="FILE", help="write a report there: one file, with figures")


def check_files(args: argparse.Namespace, options: Iterable[str]) -> None:
    """Whether these files can be written, each another one: before long work rather than after it."""

    if getattr(args, "html", None) or getattr(args, "figure", None):
        require("matplotlib")
    seen: dict[Path, str] = {}
    for option in options:
        file: Path | None = getattr(args, option)
        check_output(file)
        if file is None:
            continue
        other = seen.setdefault(file.absolute(), option)
        if other != option:
            raise SelattnError(f"--{other} and --{option} are both {file}: give each a name of its own")


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """How text is read and cut into rows."""
    parser.add_argument("--split", default="validation", help="of the text (default: validation)")
    parser.add_argument("--layout", default="documents", help="documents, one in each row (default), or packed")
    parser.add_argument(
        "--context", type=whole(2), metavar="N", help="tokens of a row (default: the model's context size)"
    )
    add_reading_options(parser)
    parser.add_argument(
        "--no-eos", action="store_true", help="documents do not end with </s>: as the model was trained"
    )
    parser.add_argument("--batch", type=whole(1), default=8, metavar="N", help="rows at a time (default: 8)")
    parser.add_argument("--seed", type=seed, default=0, help="of the order of the rows (default: 0)")


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """How a source is read: the settings of `selattn.data.Reading`."""
    parser.add_argument("--column", default="text", help="where .jsonl and the hub have the text (default: text)")
    parser.add_argument(
        "--separator",
        default="blank",
        help="between documents of .txt: blank, line, single, file, article, or such a line (default: blank)",
    )
    parser.add_argument(
        "--validation",
        type=float,
        default=0.02,
        metavar="F",
        help="the share of the documents that is held out, 1 for all of them (default: 0.02)",
    )


def check_reading(args: argparse.Namespace, sources: Sequence[str]) -> None:
    """Raise for a setting that none of the sources has a use for."""
    if args.given.isdisjoint(READING):
        return
    from selattn.data.sources import settings_of

    useful = {setting for source in sources for setting in settings_of(source)}
    refuse(args, [name for name in READING if name not in useful], f"{', '.join(sources)} has no use for it")


def reading_of(args: argparse.Namespace, limit: int | None = None) -> Reading:
    """The settings that the options name."""
    from selattn.data import Reading

    return Reading(args.column, args.separator, args.validation, limit)


def text_of(args: argparse.Namespace, source: str, long: bool = False) -> Text:
    """The text that the options name."""
    from selattn.evaluation.text import Text

    return Text(source, args.split, args.layout, long, args.seed, not args.no_eos, reading_of(args))


def texts_of(args: argparse.Namespace) -> dict[str, Text]:
    """The texts of a command that takes several, by name; with --long each is followed by its long documents alone."""
    from selattn.evaluation.text import text_names

    found = {}
    for source, name in text_names(args.data).items():
        found[name] = text_of(args, source)
        if args.long:
            found[f"{name}, long"] = text_of(args, source, long=True)
    return found
