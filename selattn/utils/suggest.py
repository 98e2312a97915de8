"""One "did you mean" for every name that a user can mistype."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like a mistyped one; None if none is like it."""
    found = difflib.get_close_matches(word, list(known), 1, cutoff)
    return found[0] if found else None


def unknown(what: str, word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The line to say: `unknown policy 'h20' (did you mean 'h2o'?): choose selective, h2o, tova`."""
    known = list(known)
    near = nearest(word, known, cutoff)
    hint = f" (did you mean {near!r}?)" if near else ""
    return f"unknown {what} {word!r}{hint}: choose {', '.join(known)}"
