"""Where a search stops: `Until(tolerance=0.01)`, or on the command line

baseline=MODEL   before the loss exceeds that of another model, on the same text
tolerance=NATS   before the loss exceeds the model's own, unpruned, by more
loss=NATS        before the loss exceeds this
factor=X         as soon as the memory factor, layers * N / sum of K_l, is as large
tokens=T         as soon as sum of K_l is no more than this
floor            when no layer can give more
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selattn.errors import SelattnError, nearest

FORMS = ("baseline=MODEL", "tolerance=NATS", "loss=NATS", "factor=X", "tokens=TOTAL", "floor")
_NAMES = [form.partition("=")[0] for form in FORMS]


@dataclass(frozen=True)
class Until:
    """What stops a search; several conditions stop it at the first that is met.

    Attributes:
        baseline: the model whose loss is the limit, by name; its loss has to be put into `loss`.
        tolerance: nats above the unpruned loss.
        loss: the largest loss allowed.
        factor: the memory factor wanted.
        tokens: the sum of budgets wanted.
    """

    baseline: str | None = None
    tolerance: float | None = None
    loss: float = math.inf
    factor: float = math.inf
    tokens: int = 0

    def words(self) -> list[str]:
        """The conditions as a user writes them; what they are parsed to is this."""
        found = [] if self.baseline is None else [f"baseline={self.baseline}"]
        found += [] if self.tolerance is None else [f"tolerance={self.tolerance!r}"]
        found += [f"loss={self.loss!r}"] if self.loss < math.inf else []
        found += [f"factor={self.factor!r}"] if self.factor < math.inf else []
        found += [f"tokens={self.tokens}"] if self.tokens else []
        return found or ["floor"]

    def limit(self, unpruned: float) -> float:
        """The largest loss allowed, given the unpruned one."""
        return self.loss if self.tolerance is None else min(self.loss, unpruned + self.tolerance)

    def reached(self, budgets: Sequence[int], context: int) -> bool:
        """Whether the memory is as small as wanted."""
        total = sum(budgets)
        return total <= self.tokens or len(budgets) * context / total >= self.factor

    def check_size(self, layers: int, context: int, floor: int) -> None:
        """Raise for a memory that no search can reach."""
        least = layers * floor
        if 0 < self.tokens < least:
            raise SelattnError(f"{self.tokens} tokens in all cannot be reached: {layers} layers keep at least {least}")
        most = context / floor
        if most < self.factor < math.inf:
            raise SelattnError(f"a factor of {self.factor:g} cannot be reached: with {floor} tokens it is {most:g}")

    def check_loss(self, unpruned: float) -> None:
        """Raise for a loss that no search can reach."""
        limit = self.limit(unpruned)
        if unpruned > limit:
            of = f" (that of {self.baseline})" if self.baseline else ""
            raise SelattnError(
                f"a loss of at most {limit:.4f}{of} cannot be reached: without pruning the model has {unpruned:.4f} "
                "on the search set"
            )


def parse_until(texts: Sequence[str]) -> Until:
    """From the command line; `baseline` is only named here."""
    until = Until()
    seen: set[str] = set()
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in _NAMES or (name != "floor") != bool(equals and value):
            near = nearest(name, _NAMES)
            hint = f"choose {', '.join(FORMS)}" if near is None else f"did you mean {FORMS[_NAMES.index(near)]}?"
            raise SelattnError(f"unknown condition {text!r}; {hint}")
        if name in seen:
            raise SelattnError(f"{name} is given twice: give it once")
        seen.add(name)
        if name == "baseline":
            until = dataclasses.replace(until, baseline=value)
        elif name != "floor":
            changes: dict[str, Any] = {name: _number(name, value)}
            until = dataclasses.replace(until, **changes)
    return until


_MUST_BE = {
    "tolerance": "a finite number of at least 0",
    "loss": "a finite number of at least 0",
    "factor": "a finite number above 0",
    "tokens": "a whole number above 0",
}


def _number(name: str, value: str) -> float | int:
    try:
        number = int(value) if name == "tokens" else float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (number == 0 and name in ("tokens", "factor")):
        raise SelattnError(f"{name} must be {_MUST_BE[name]}, not {value!r}")
    return number
