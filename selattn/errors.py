"""The one exception that means "the input was wrong", as opposed to "the program is"."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Iterable

# Packages that only some of the library needs, by the name they are imported under, and the extra that installs them.
EXTRAS = {
    **dict.fromkeys(("accelerate", "datasets", "peft", "sentencepiece", "tensorboard"), "train"),
    "matplotlib": "view",
    "lm_eval": "eval",
    "triton": "gpu",
    "gguf": "gguf",
}

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk, of a user's share of it, of one file


class SelattnError(ValueError):
    """Bad input: one line that says what was wrong and what to do instead.

    The command line prints that line and exits with 2, without a traceback. Anything else that is raised
    is a bug, and keeps its traceback.
    """


class UnknownSourceError(SelattnError):
    """A text is neither a known name nor a file or folder."""


class MissingExtraError(SelattnError, ImportError):
    """A package of an extra is not installed."""


def missing(package: str) -> str | None:
    """The line that says which extra installs a package; None if it is installed. Nothing is imported."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{package.replace('_', '-')} is not installed: pip install 'selattn[{EXTRAS[package]}]'"


def require(*packages: str) -> None:
    """Refuse to proceed without these packages; stands before their import."""
    for package in packages:
        if (line := missing(package)) is not None:
            raise MissingExtraError(line)


class CannotWriteError(SelattnError):
    """The system refuses to write a file.

    Attributes:
        reason: the system's words.
        full: whether there is no space left.
    """

    def __init__(self, path: object, error: OSError, advice: str = "") -> None:
        self.reason, self.full = error.strerror or str(error), error.errno in FULL
        if not advice and self.full:
            advice = "free some space, or write elsewhere"
        super().__init__(f"cannot write {shortened(path)}: {self.reason}" + (f"; {advice}" if advice else ""))


class NotFiniteError(SelattnError):
    """A model computes what is no number."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}: the model's weights are damaged, or too large for its precision; take an earlier checkpoint, "
            "or load it in fp32"
        )


class DivergedError(SelattnError):
    """A training has ended with a loss that is no number.

    Attributes:
        step: at which that was seen.
    """

    def __init__(self, loss: float, step: int) -> None:
        self.step = step
        super().__init__(
            f"the loss is {loss} at step {step}: the run has diverged; lower optimizer.lr, or raise schedule.warmup"
        )


def shortened(name: object, most: int = 160) -> str:
    """A name for a message: of one that is longer than any name should be, both ends."""
    text = str(name)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]} ({len(text):,} characters)"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like a mistyped one, if any is."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), 1, cutoff)), None)


def advice(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """For a mistyped word: `did you mean 'h2o'?`, or else `otherwise`, by default the list of all known words."""
    known = list(known)
    near = nearest(word, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"there are {', '.join(known)}" if otherwise is None else otherwise


def unknown(what: str, word: str, known: Iterable[str], forms: Iterable[str] | None = None) -> str:
    """A whole message: `unknown policy 'h20' (did you mean 'h2o'?): choose selective, h2o`.

    `forms` are listed in place of the known words, such as `local:N` for `local`.
    """
    known = list(known)
    hint = advice(word, known, "")
    return f"unknown {what} {word!r}{f' ({hint})' if hint else ''}: choose {', '.join(forms or known)}"


def first_line(error: Exception) -> str:
    """The message of another library's error in one line."""
    if isinstance(error, KeyError):  # whose message is the name alone
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]  # a colon announces the next line
