"""Whether a number bears a claim out. A difference needs 3 seeds whose spread does not reach the bound."""

from __future__ import annotations

import statistics

from lab.engine.frame import Claim

LEAST = 3  # seeds; fewer are called one run, or two
_EQUAL = 1e-9


def verdict(claim: Claim, scale: str) -> str:
    """In a few words: holds, fails, too small to tell; of too few seeds which way they point. With the caveat."""
    found = _verdict(claim, scale)
    return f"{found}, {claim.caveat}" if claim.caveat else found


def _verdict(claim: Claim, scale: str) -> str:
    if scale == "smoke" and not claim.exact:
        return "not tested (smoke)"
    known = [value for value in claim.values if value is not None]
    if not known or len(known) < len(claim.values):
        return "not measured" if not known else "too small to tell (a seed is missing)"
    right = [_right(claim, value) for value in known]
    if claim.exact:
        return "holds" if all(right) else "fails"
    if len(known) < LEAST:
        runs = "one run" if len(known) == 1 else f"{len(known)} runs"
        if claim.side != "equal" and all(value == claim.than for value in known):
            return f"{runs}: no difference"
        if len(set(right)) > 1:
            return f"{runs}: they disagree"
        return f"{runs}: {'as claimed' if right[0] else 'against the claim'}"
    clear = abs(statistics.fmean(known) - claim.than) > statistics.stdev(known)
    if len(set(right)) > 1 or not clear:
        return "too small to tell"
    return "holds" if right[0] else "fails"


def _right(claim: Claim, value: float) -> bool:
    if claim.side == "equal":
        return abs(value - claim.than) <= _EQUAL * max(1.0, abs(claim.than))
    return value > claim.than if claim.side == "above" else value < claim.than


def differences(these: tuple[float | None, ...], those: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """these - those, seed by seed; None where one is missing."""
    return tuple(None if a is None or b is None else a - b for a, b in zip(these, those, strict=True))
