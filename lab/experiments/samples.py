"""Figures 1 and 8: what is masked and read in samples of the synthetic tasks, and in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from lab.engine.experiment import Experiment, Need, trio, with_seeds
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, differences
from lab.engine.store import Trained
from lab.experiments.synthetic import assignment_runs, copy_runs, parity_runs
from lab.scales import PAIR, SELECTIVE, STANDARD, Scale
from selattn.data.task import Task
from selattn.evaluation.traces import Trace, Words, trace
from selattn.views.plot import attention, tokens

TEXT = "A day after former president Barack Obama visited Columbia, ibuprofen was sold out in Uclan."
_TASKS = {"variable assignment": assignment_runs, "copy": copy_runs, "parity": parity_runs}
_SAMPLES = 16


def _sample(model: Trained, seed: int = 0) -> Words:
    """A sample of the task that a model was trained on."""
    task = model.need.run.data
    assert isinstance(task, Task)
    ids = task.dataset(seed, 1)[0]["input_ids"].tolist()
    return Words(ids, [task.tokens[i] if place == 0 else f" {task.tokens[i]}" for place, i in enumerate(ids)])


def _traced(model: Trained, number: int = 0, name: str | None = None) -> Trace:
    """What a model does with a sample of its task."""
    return trace(model.model, _sample(model, number), name=name or model.need.run.name)


# --- Figure 1


def _masking_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """A selective model for each task, and one for text."""
    found = with_seeds({name: runs(scale)[SELECTIVE] for name, runs in _TASKS.items()}, seeds)
    return found | trio(scale, seeds, kinds=(SELECTIVE,))


def _masking(lab: Lab) -> Measured:
    """How much masking leaves of tokens that are still needed, and of others, in the layer that masks most."""
    assigned, parity, copied = [], [], []
    for seed in lab.seeds:
        assigned.append(_assignment(_traced(lab.trained("variable assignment", seed))))
        parity.append(_parity(_traced(lab.trained("parity", seed))))
        copied.append(_copy(_traced(lab.trained("copy", seed))))
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
    shown = {name: _traced(lab.trained(name, lab.seeds[0])).to_json() for name in _TASKS}
    model = lab.trained(SELECTIVE, lab.seeds[0])
    shown["text"] = trace(model.model, TEXT, name=model.need.run.name).to_json()
    return Measured(tuple(cells), tuple(claims), ("One sample for each seed; the layer with the most masking.",), shown)


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


def _masking_draw(record: Reproduction) -> dict[str, Figure]:
    """A picture for each task, and one for text."""
    return {name: tokens(Trace.from_json(found)) for name, found in record.details.items()}


# --- Figure 8


def _patterns(lab: Lab) -> Measured:
    """How much of a value's attention goes to its own variable, and of the question's to the right value."""
    count = 2 if lab.scale.name == "smoke" else _SAMPLES
    cells, right = [], {}
    for kind in PAIR:
        found = [
            [_traced(model, k, kind) for k in range(count)] for model in (lab.trained(kind, seed) for seed in lab.seeds)
        ]
        layers = found[0][0].layers
        first = tuple(_mean([_value_on_variable(each) for each in traces]) for traces in found)
        cells.append(Cell("first layer: a value on itself and its variable", kind, first, digits=1, percent=True))
        for layer in range(1, layers):
            values = tuple(_mean([_question_on_answer(each, layer) for each in traces]) for traces in found)
            cells.append(Cell(f"layer {layer}: the question on the right value", kind, values, digits=1, percent=True))
            right[kind] = values
    claim = Claim(
        "The selective model's question reads the last assignment, and the standard one's does not so clearly.",
        differences(right[SELECTIVE], right[STANDARD]),
        "share of the question's attention on the right value in the last layer, selective less standard",
    )
    shown = {kind: lab.trained(kind, lab.seeds[0]) for kind in PAIR}
    details = {kind: _traced(model, name=kind).to_json() for kind, model in shown.items()}
    return Measured(tuple(cells), (claim,), (f"Means over {count} samples and the heads.",), details)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _value_on_variable(trace: Trace) -> float:
    """Values stand at even places, from 2 on; the variable before each."""
    weights = trace.weights(0)
    places = range(2, trace.size - 1, 2)
    return _mean([float(weights[place, place] + weights[place, place - 1]) for place in places])


def _question_on_answer(trace: Trace, layer: int) -> float:
    """The question is the last token but one: a variable; its last assignment stands before it."""
    ids, question = trace.ids, trace.size - 2
    last = max(place for place in range(1, question, 2) if ids[place] == ids[question])
    return float(trace.weights(layer)[question, last + 1])


def _patterns_draw(record: Reproduction) -> Figure:
    """One sample in both models."""
    return attention(*(Trace.from_json(record.details[kind]) for kind in (SELECTIVE, STANDARD)))


EXPERIMENTS = (
    Experiment(
        "masking",
        "Figure 1",
        "what is masked and what is read in Variable Assignment, Copy, Parity* and text",
        _masking_needs,
        _masking,
        _masking_draw,
    ),
    Experiment(
        "attention-patterns",
        "Figure 8",
        "attention of all layers on Variable Assignment, selective beside standard",
        lambda scale, seeds: with_seeds(assignment_runs(scale), seeds),
        _patterns,
        _patterns_draw,
    ),
)
