"""Figure 8: attention of all layers on Variable Assignment, selective beside standard."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from lab.engine.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from lab.engine.lab import Lab
from lab.engine.pictures import sample, stored, traced
from lab.engine.tasks import NAMES
from lab.engine.trio import with_seeds
from lab.engine.verdicts import differences
from lab.experiments.variable_assignment import runs
from lab.runs.scales import Scale
from selattn.evaluation.traces import Trace
from selattn.views.plot import attention

_SAMPLES = 16


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The models of Variable Assignment."""
    return with_seeds(runs(scale), seeds)


def evaluate(lab: Lab) -> Found:
    """How much of a value's attention goes to its own variable, and of the question's to the right value."""
    count = 2 if lab.scale.name == "smoke" else _SAMPLES
    cells, right = [], {}
    for kind in NAMES:
        found = [
            [traced(model, sample(model, k), name=kind) for k in range(count)]
            for model in (lab.trained(kind, seed) for seed in lab.seeds)
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
        differences(right["selective"], right["standard"]),
        "share of the question's attention on the right value in the last layer, selective less standard",
    )
    shown = {kind: lab.trained(kind, lab.seeds[0]) for kind in NAMES}
    details = {kind: stored(traced(model, sample(model), name=kind)) for kind, model in shown.items()}
    return Found(tuple(cells), (claim,), (f"Means over {count} samples and the heads.",), details)


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


def draw(record: Reproduction) -> Figure:
    """One sample in both models."""
    return attention(*(Trace.from_json(record.details[kind]) for kind in ("selective", "standard")))


EXPERIMENT = Experiment(
    name="attention-patterns",
    paper="Figure 8",
    sentence="attention of all layers on Variable Assignment, selective beside standard",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
