"""Options: numbers that are checked before anything is loaded, and options that nothing would read."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from selattn.errors import SelattnError, require

LARGEST = 2**63 - 1  # as torch and itertools count
LARGEST_SEED = 2**32 - 1  # of numpy's generators


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
    """Those of the options that the user has given; an option that was not given is None, False or empty."""
    return [f"--{option.replace('_', '-')}" for option in options if getattr(args, option) not in (None, False, [])]


def refuse(args: argparse.Namespace, options: Iterable[str], why: str) -> None:
    """Raise if one of these was given: nothing would read it, and its user would never know."""
    found = given(args, options)
    if found:
        raise SelattnError(f"{' and '.join(found)} would change nothing: {why}")


def fill(args: argparse.Namespace, defaults: dict[str, Any]) -> None:
    """Give options that were not given their defaults; done late, so that `given` knows them apart."""
    for option, value in defaults.items():
        if getattr(args, option) is None:
            setattr(args, option, value)


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
    from selattn.utils.records import check_output

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
