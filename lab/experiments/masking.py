"""Figure 1: what is masked and read in Variable Assignment, Copy, Parity* and text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import sample, stored, traced
from lab.engine.trio import trio, with_seeds
from lab.engine.verdicts import differences
from lab.experiments import copy_task, parity_task, variable_assignment
from lab.runs.scales import Scale
from selattn.evaluation.traces import Trace
from selattn.views.plot import tokens

TEXT = "A day after former president Barack Obama visited Columbia, ibuprofen was sold out in Uclan."
_TASKS = {"variable assignment": variable_assignment, "copy": copy_task, "parity": parity_task}


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """A selective model for each task, and one for text."""
    found = with_seeds({name: task.runs(scale)["selective"] for name, task in _TASKS.items()}, seeds)
    return found | trio(scale, seeds, kinds=("selective",))


def evaluate(lab: Lab) -> Found:
    """How much masking leaves of tokens that are still needed, and of others, in the layer that masks most."""
    assigned, parity, copied = [], [], []
    for seed in lab.seeds:
        assigned.append(_assignment(_traced(lab, "variable assignment", seed)))
        parity.append(_parity(_traced(lab, "parity", seed)))
        copied.append(_copy(_traced(lab, "copy", seed)))
    rows = {
        "Variable Assignment: values that hold, values that were overwritten": assigned,
        "Parity*: the last two tokens, earlier ones": parity,
        "Copy: the string when copying begins, when it is copied": copied,
    }
    cells, claims = [], []
    for row, found in rows.items():
        needed, stale = (tuple(each[k] for each in found) for k in (0, 1))
        cells.append(Cell(row, "left of those needed: e^-F", needed, digits=2))
        cells.append(Cell(row, "left of the others: e^-F", stale, digits=2))
        text = f"Selective attention masks what is no longer needed ({row.partition(':')[0]})."
        claims.append(Claim(text, differences(needed, stale), "left of those needed less left of the others"))
    shown = {name: stored(_traced(lab, name, lab.seeds[0])) for name in _TASKS}
    shown["text"] = stored(traced(lab.trained("selective", lab.seeds[0]), TEXT))
    return Found(tuple(cells), tuple(claims), ("One sample for each seed; the layer with the most masking.",), shown)


def _traced(lab: Lab, name: str, seed: int) -> Trace:
    model = lab.trained(name, seed)
    return traced(model, sample(model))


def _left(trace: Trace, row: int, places: Sequence[int]) -> float | None:
    """The mean of e^-F of some tokens in a row of the layer that masks most; None of no tokens."""
    layer = max(range(trace.layers), key=lambda layer: float(trace.F(layer).sum()))
    F = trace.F(layer)
    return sum(math.exp(-float(F[row, place])) for place in places) / len(places) if places else None


def _assignment(trace: Trace) -> tuple[float | None, float | None]:
    """At the question: values of each variable's last assignment, and of earlier ones."""
    question = trace.size - 2
    last = {trace.ids[place]: place + 1 for place in range(1, question, 2)}
    values = range(2, question, 2)
    stale = [place for place in values if place not in last.values()]
    return _left(trace, question, list(last.values())), _left(trace, question, stale)


def _parity(trace: Trace) -> tuple[float | None, float | None]:
    """At the last but one token, which is to give the last: the two tokens it needs, and earlier ones."""
    row = trace.size - 2
    return _left(trace, row, [row - 1, row]), _left(trace, row, list(range(1, row - 1)))


def _copy(trace: Trace) -> tuple[float | None, float | None]:
    """The tokens of the string where copying begins, and the same where it has ended."""
    begins = trace.ids.index(2)  # <SEP>
    ends = trace.ids.index(3) if 3 in trace.ids else trace.size - 1  # <EOS>
    string = list(range(1, begins))
    return _left(trace, begins, string), _left(trace, ends, string)


def draw(record: Reproduction) -> dict[str, Figure]:
    """A picture for each task, and one for text."""
    return {name: tokens(Trace.from_json(found)) for name, found in record.details.items()}


EXPERIMENT = Experiment(
    name="masking",
    paper="Figure 1",
    sentence="what is masked and what is read in Variable Assignment, Copy, Parity* and text",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
