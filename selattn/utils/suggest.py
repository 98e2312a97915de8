"""One line for a user: "did you mean" for a mistyped name, and what an error of another library says."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like a mistyped one; None if none is like it."""
    found = difflib.get_close_matches(word, list(known), 1, cutoff)
    return found[0] if found else None


def advice(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """What to say of a mistyped word: `did you mean 'h2o'?`, or else `otherwise`, by default what there is."""
    known = list(known)
    near = nearest(word, known)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"there are {', '.join(known)}" if otherwise is None else otherwise


def unknown(what: str, word: str, known: Iterable[str], forms: Iterable[str] | None = None) -> str:
    """The line where all that there is fits in: `unknown policy 'h20' (did you mean 'h2o'?): choose selective, h2o`.

    `forms` is what the known words are listed as, if that is more than the words.
    """
    known = list(known)
    hint = advice(word, known, "")
    return f"unknown {what} {word!r}{f' ({hint})' if hint else ''}: choose {', '.join(forms or known)}"


def first_line(error: Exception) -> str:
    """What an error of another library says, in one line."""
    if isinstance(error, KeyError):  # which says no more than the name
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]  # what was announced belongs to it
