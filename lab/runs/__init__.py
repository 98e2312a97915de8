"""The lab's runs by name: `python -m lab train NAME`, or `selattn train lab.runs:NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.runs import paper, synthetic, t5, zoo
from selattn.errors import SelattnError, shortened
from selattn.training import presets
from selattn.training.config import RunConfig
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
    Group("The zoo", zoo.RUNS),
)
RUNS: dict[str, Callable[[], RunConfig]] = {name: run for group in GROUPS for name, run in group.runs.items()}


def find_run(name: str) -> RunConfig:
    """The run of that name, the lab's or the library's; for a mistyped one the nearest is suggested."""
    if name in RUNS:
        return RUNS[name]()
    if name in presets.RUNS:
        return presets.find_run(name)
    hint = advice(name, [*RUNS, *presets.RUNS], "see 'python -m lab train --list'")
    raise SelattnError(f"unknown run {shortened(name)!r}; {hint}")
