"""The shipped runs. A run is a function without arguments that returns a whole `RunConfig`, under its name here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from selattn.errors import SelattnError, shortened
from selattn.training.config import RunConfig
from selattn.training.runs import paper, synthetic, t5, text, zoo
from selattn.utils.suggest import advice


@dataclass(frozen=True)
class Group:
    """Runs that belong together."""

    title: str
    runs: dict[str, Callable[[], RunConfig]]


GROUPS = (
    Group("The paper's language models", paper.RUNS),
    Group("T5, with span corruption", t5.RUNS),
    Group("Synthetic tasks", synthetic.RUNS),
    Group("Text on a laptop", text.RUNS),
    Group("The zoo", zoo.RUNS),
)
RUNS: dict[str, Callable[[], RunConfig]] = {name: run for group in GROUPS for name, run in group.runs.items()}


def find_run(name: str) -> RunConfig:
    """The run of that name; for a mistyped one the nearest is suggested."""
    if name not in RUNS:
        hint = advice(name, RUNS, "see 'selattn train --list'")
        raise SelattnError(f"unknown run {shortened(name)!r}; {hint}")
    return RUNS[name]()
