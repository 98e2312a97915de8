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
    from selattn.evaluation import Text

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
  FOLDER   a folder of yours; one to write into is made if need be
  BUDGETS  how many tokens each layer may keep: 64, or 8,48,8, or a budgets file, or the
           folder that 'selattn prune' has written
  POLICY   which token a full layer evicts: selective, h2o, tova, window+4, ..., or
           package.module:Class of your own
  N, K     N tokens are the context, K of them are kept by a layer
"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Fills the paragraphs of a description, except those with indented lines; leaves room for the longest command."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super(argparse.RawDescriptionHelpFormatter, self)._fill_text
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(each if "\n  " in each else fill(each, width, indent) for each in paragraphs)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        longest = max(map(len, action.choices), default=0) if action.nargs == argparse.PARSER and action.choices else 0
        self._action_max_length = max(self._action_max_length, longest + 2 * self._indent_increment)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are raised like all bad input; `args.parser` is the parser of the command."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **{"formatter_class": Formatter, **how})
        self.set_defaults(parser=self)

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
        return super().parse_known_args(args, namespace)


def add_command(subparsers: argparse._SubParsersAction[Any], name: str, summary: str, about: str | None) -> Parser:
    """The parser of a command; `about` is the docstring of its module, whose first words are its name."""
    text = str(about).partition(": ")[2]
    parser: Parser = subparsers.add_parser(name, help=summary, description=text[:1].upper() + text[1:])
    return parser


def number(
    parser: argparse._ActionsContainer,
    flag: str,
    about: str,
    default: Any = None,
    *,
    least: int = 1,
    most: int = LARGEST,
    metavar: str = "N",
    nargs: str | None = None,
) -> None:
    """Add an option that is a whole number; with `nargs="+"` several."""
    shown = "" if default is None else f" (default: {' '.join(map(str, default)) if nargs else default})"
    how: Any = {"type": whole(least, most), "default": default, "metavar": metavar, "nargs": nargs}
    parser.add_argument(flag, help=about + shown, **how)


def file(parser: argparse._ActionsContainer, flag: str, about: str, metavar: str = "FILE", **how: Any) -> None:
    """Add an option that is the name of a file or folder."""
    parser.add_argument(flag, type=path, metavar=metavar, help=about, **how)


def add_seed(parser: argparse._ActionsContainer, about: str, default: int | None = 0) -> None:
    """Add `--seed`."""
    number(parser, "--seed", about, default, least=0, most=LARGEST_SEED, metavar="S")


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
    """Reads a number that is neither negative nor infinite; for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0, not {text!r}")
    return number


def name(text: str) -> str:
    """Reads a text that is not empty; for argparse. An empty path would be the working directory, or the default."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def path(text: str) -> Path:
    """Reads the name of a file or folder; for argparse."""
    return Path(name(text))


def html_file(text: str) -> Path:
    """Reads the name of an HTML file; for argparse. A report by any other name might overwrite a result."""
    file = path(text)
    if file.suffix not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"must end with .html, not {text!r}")
    return file


def given(args: argparse.Namespace, options: Iterable[str]) -> list[str]:
    """The options that differ from their defaults."""
    return [f"--{each.replace('_', '-')}" for each in options if getattr(args, each) != args.parser.get_default(each)]


def refuse(args: argparse.Namespace, options: Iterable[str], why: str) -> None:
    """Raise if one of these was given: it would be ignored without a word."""
    unread = given(args, options)
    if unread:
        raise SelattnError(f"{' and '.join(unread)} would change nothing: {why}")


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add `--html FILE`: a report of the command's results."""
    parser.add_argument("--html", type=html_file, metavar="FILE", help="write a report there: one file, with figures")


def check_files(args: argparse.Namespace, options: Iterable[str]) -> None:
    """Raise if a file cannot be written, or if two are the same: before long work rather than after it."""
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
    """Add how a text is read and cut into rows."""
    group = parser.add_argument_group("how a text is read")
    group.add_argument("--split", default="validation", help="of the text (default: validation)")
    group.add_argument("--layout", default="documents", help="documents, one in each row (default), or packed")
    number(group, "--context", "tokens of a row (default: the model's context size)", least=2)
    add_reading_options(group)
    group.add_argument(
        "--no-eos", action="store_true", help="documents do not end with </s>, for models trained that way"
    )
    number(group, "--batch", "rows at a time", 8)
    add_seed(group, "of the order of the rows")


def add_reading_options(parser: argparse._ActionsContainer) -> None:
    """Add the settings of `selattn.data.Reading`."""
    parser.add_argument(
        "--column", default="text", metavar="NAME", help="the text's field in .jsonl and on the hub (default: text)"
    )
    parser.add_argument(
        "--separator",
        default="blank",
        metavar="WHAT",
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
    """Raise for a setting that is of no use to any of the sources."""
    if not given(args, READING):
        return
    from selattn.data.sources import settings_of

    useful = {setting for source in sources for setting in settings_of(source)}
    refuse(args, [name for name in READING if name not in useful], f"{', '.join(sources)} has no use for it")


def reading_of(args: argparse.Namespace, limit: int | None = None) -> Reading:
    """The `Reading` that the options name."""
    from selattn.data import Reading

    return Reading(args.column, args.separator, args.validation, limit)


def text_of(args: argparse.Namespace, source: str, long: bool = False) -> Text:
    """The text that the options name."""
    from selattn.evaluation import Text

    return Text(source, args.split, args.layout, long, args.seed, not args.no_eos, reading_of(args))


def texts_of(args: argparse.Namespace) -> dict[str, Text]:
    """The texts of a command that takes several, by name; with --long each is followed by its long documents alone."""
    from selattn.evaluation.text import text_names

    texts = {}
    for source, name in text_names(args.data).items():
        texts[name] = text_of(args, source)
        if args.long:
            texts[f"{name}, long"] = text_of(args, source, long=True)
    return texts
