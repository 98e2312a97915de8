"""Figures 1, 5 and 8 to 12: what is masked, read and kept, in samples of the tasks and in texts; what is stable."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lab.engine.experiment import Experiment, Need, trio, with_seeds
from lab.engine.lab import Lab
from lab.engine.pruning import at_limit, full_rows, search
from lab.engine.records import Cell, Claim, Measured, Reproduction, differences
from lab.engine.store import Trained
from lab.experiments.synthetic import assignment_runs, copy_runs, parity_runs
from lab.scales import MEMORY, PAIR, SELECTIVE, STANDARD, Scale
from selattn.data.task import Task
from selattn.evaluation.traces import PAPER, MeanF, Run, Trace, Words, mean_f, smallest_f, trace, watched
from selattn.models.loading import load
from selattn.pruning.folder import read_path
from selattn.views import plot

_ALIVE = 1.0  # a pair with F below it is alive: what the memory loss counts, tau
Floats = NDArray[np.floating[Any]]


def _selective(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    return trio(scale, seeds, kinds=(SELECTIVE,))


def _traced(lab: Lab, kind: str, seed: int, runs: Sequence[Run] = ()) -> Trace:
    """The paper's example text as a model reads it."""
    model = lab.trained(kind, seed)
    return trace(model.model, PAPER, runs, name=model.need.run.name)


def _lower(F: Floats) -> Floats:
    """The pairs of a row and an earlier token, but for the first, which is never masked; flat."""
    size = F.shape[0]
    rows, columns = np.tril_indices(size, -1)
    return np.asarray(F)[rows, columns][columns > 0]


def alive(F: Floats) -> float:
    """The share of pairs with F below 1."""
    return float((_lower(F) < _ALIVE).mean())


def shares_by_text(lab: Lab, model: Trained, count: int) -> list[list[float]]:
    """The share of living pairs of each layer, for each of `count` held-out documents that fill the context."""
    loaded = load(model.model)
    context = loaded.description.context
    key = {"part": "alive", "model": loaded.fingerprint, "count": count, "text": lab.tokens(loaded)}

    def measure() -> list[list[float]]:
        shares = []
        with torch.no_grad():
            for ids in full_rows(lab, model, count, context):
                views = watched(loaded.model).watch(torch.tensor([ids]), weights=False)
                shares.append([alive(F) for view in views if (F := smallest_f(view.f)) is not None])
        return shares

    return lab.part(key, list[list[float]], measure)


def mean_over_texts(lab: Lab, model: Trained, name: str) -> MeanF:
    """F averaged over held-out documents, as many as the scale asks for or as there are."""
    context = load(model.model).description.context
    count = len(full_rows(lab, model, lab.scale.mean_rows, context))
    mean = mean_f(model.model, lab.text(), count, step=1 / 8)
    return dataclasses.replace(mean, model=name)


def correlation(these: Sequence[float] | Floats, those: Sequence[float] | Floats) -> float | None:
    """Pearson's; None where one of them does not vary."""
    a, b = np.asarray(these, float), np.asarray(those, float)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def rank_correlation(these: Sequence[float], those: Sequence[float]) -> float | None:
    """Spearman's; equal values share the mean of their ranks."""

    def ranks(values: Sequence[float]) -> list[float]:
        ordered = sorted(values)
        return [statistics.fmean(place for place, other in enumerate(ordered) if other == value) for value in values]

    return correlation(ranks(these), ranks(those))


# --- Figure 5


def _f_of_a_text(lab: Lab) -> Measured:
    """How dense each layer is on that text."""
    traces = [_traced(lab, SELECTIVE, seed) for seed in lab.seeds]
    cells, shares = [], []
    for layer in range(traces[0].layers):
        living = tuple(alive(each.F(layer)) for each in traces)
        shares.append(living)
        cells.append(Cell(f"layer {layer}", "pairs alive, F < 1", living, digits=1, percent=True))
        cells.append(
            Cell(f"layer {layer}", "mean F", tuple(float(_lower(each.F(layer)).mean()) for each in traces), digits=1)
        )
    ratio = tuple(max(each) / max(min(each), 1e-6) for each in zip(*shares, strict=True))
    claim = Claim(
        "Some layers are mostly dense, others are sparse.", ratio,
        "pairs alive in the densest layer over those in the sparsest", than=2.0, digits=1,
    )  # fmt: skip
    return Measured(tuple(cells), (claim,), (f"The first {traces[0].size} tokens of the text.",), traces[0].to_json())


# --- Figure 9


def _mean_f(lab: Lab) -> Measured:
    """The share of living pairs of each layer, and its spread over texts beside its spread over layers."""
    shares = [shares_by_text(lab, lab.trained(SELECTIVE, seed), lab.scale.mean_rows) for seed in lab.seeds]
    layers = len(shares[0][0])
    cells, ratios = [], []
    for layer in range(layers):
        by_seed = [[text[layer] for text in texts] for texts in shares]
        row = f"layer {layer}"
        cells.append(Cell(row, "pairs alive, mean", tuple(map(statistics.fmean, by_seed)), digits=1, percent=True))
        cells.append(Cell(row, "deviation over texts", tuple(map(statistics.pstdev, by_seed)), digits=1, percent=True))
    for texts in shares:
        columns = list(zip(*texts, strict=True))
        between = statistics.pstdev([statistics.fmean(column) for column in columns])
        within = statistics.fmean(statistics.pstdev(column) for column in columns)
        ratios.append(within / between if between else None)
    claim = Claim(
        "The sparsity of a layer is stable across texts.", tuple(ratios),
        "deviation over texts (mean of the layers) over the deviation between layers", than=1.0, side="below", digits=2,
    )  # fmt: skip
    mean = mean_over_texts(lab, lab.trained(SELECTIVE, lab.seeds[0]), f"selective, seed {lab.seeds[0]}")
    return Measured(
        tuple(cells), (claim,), (f"{len(shares[0])} held-out documents that fill the context.",), mean.to_json()
    )


# --- Figure 10: two trainings, with other first weights and another order of the data


def _two_seeds(seeds: Sequence[int]) -> list[int]:
    """The seeds, at least two of them."""
    return list(seeds) if len(seeds) > 1 else [seeds[0], seeds[0] + 1]


def _stability(lab: Lab) -> Measured:
    """The correlation of the averages of two trainings in the same layer, beside that of different layers."""
    seeds = _two_seeds(lab.seeds)
    means = [mean_over_texts(lab, lab.trained(SELECTIVE, seed), f"selective, seed {seed}") for seed in seeds]
    flat = [[np.log1p(_lower(mean.F(layer))) for layer in range(mean.layers)] for mean in means]
    pairs = list(combinations(range(len(seeds)), 2))
    layers = range(means[0].layers)
    correlations = {
        (i, j): tuple(correlation(flat[a][i], flat[b][j]) for a, b in pairs) for i in layers for j in layers
    }
    what = "correlation of log(1 + F) in two trainings"
    cells = [Cell(f"layer {layer}", what, correlations[layer, layer], digits=2) for layer in layers]
    same, others = ([values for (i, j), values in correlations.items() if (i == j) == alike] for alike in (True, False))
    more = tuple(_less([each[k] for each in same], [each[k] for each in others]) for k in range(len(pairs)))
    claim = Claim(
        "Sparsity patterns are sometimes stable across trainings.", more,
        "mean correlation of the same layer less that of different layers", digits=2,
    )  # fmt: skip
    details = {"first": means[0].to_json(), "second": means[1].to_json()}
    return Measured(tuple(cells), (claim,), details=details)


def _stability_conclude(record: Reproduction) -> Reproduction:
    """Which trainings a number is of, and what is to be known of it."""
    names = [f"{a} and {b}" for a, b in combinations(_two_seeds(record.seeds), 2)]
    notes = (
        "A number for each pair of trainings; three trainings make three pairs, which are not independent.",
        "F grows with distance in every layer, so that different layers are alike, too.",
    )
    return replace(record, settings={**record.settings, "values": names}, notes=notes)


def _less(same: Sequence[float | None], others: Sequence[float | None]) -> float | None:
    """The mean of one pair of trainings' correlations less that of others; None where none is known."""
    means = [[value for value in values if value is not None] for values in (same, others)]
    return float(np.mean(means[0]) - np.mean(means[1])) if all(means) else None


# --- Figure 11

_BUDGETS = (8, 48, 8, 8, 24, 8, 168, 16, 8, 64, 8, 8)  # of its d=12 model, 16 times less

_BUDGET, _MEAN, _WHOLE = "budget", "mean F", "all layers"  # columns, and the row of what is said of all
_QUARTER = 4  # times less memory, where the standard model's loss is never met


def _persisted(lab: Lab) -> Measured:
    """Budgets at the standard model's loss, or if that is never reached those of a quarter of the memory."""
    budgets, means = [], []
    for seed in lab.seeds:
        model = lab.trained(MEMORY, seed)
        folder = search(lab, model)
        limit = at_limit(lab, model, folder, lab.trained(STANDARD, seed))
        path = read_path(folder)
        quarter = min(path, key=lambda step: abs(step.factor - _QUARTER)).budgets
        budgets.append(quarter if limit is None else limit.budgets)
        mean = mean_over_texts(lab, model, f"memory loss, seed {seed}")
        means.append([float(_lower(mean.F(layer)).mean()) for layer in range(mean.layers)])
    cells = []
    for layer in range(len(budgets[0])):
        cells.append(Cell(f"layer {layer}", _BUDGET, tuple(float(each[layer]) for each in budgets), digits=0))
        cells.append(Cell(f"layer {layer}", _MEAN, tuple(each[layer] for each in means), digits=1))
    shown = _traced(lab, MEMORY, lab.seeds[0], [("selective", list(budgets[0]))])
    return Measured(tuple(cells), details=shown.to_json())


def _persisted_conclude(record: Reproduction) -> Reproduction:
    """The factor of each seed's budgets, and how they go with F."""
    layers = [cell.row for cell in record.cells if cell.column == _BUDGET and cell.row != _WHOLE]
    budgets, means = (
        [tuple(map(float, each)) for each in zip(*(record.cell(row, column).values for row in layers), strict=True)]
        for column in (_BUDGET, _MEAN)
    )
    context = int(record.models[0].run["data"]["context"])
    factors = tuple(len(layers) * context / sum(each) for each in budgets)
    cells = [cell for cell in record.cells if cell.row != _WHOLE]
    cells.append(Cell(_WHOLE, "times less memory", factors, paper=16.0, digits=1))
    claim = Claim(
        "The larger a layer's budget, the smaller its F.",
        tuple(rank_correlation(k, f) for k, f in zip(budgets, means, strict=True)),
        f"rank correlation of budgets and mean F over {len(layers)} layers", side="below", digits=2,
    )  # fmt: skip
    notes = (
        f"Budgets at the standard model's loss; of a seed that is above it with everything kept, those of {_QUARTER} "
        "times less memory.",
        f"The paper's budgets are {list(_BUDGETS)}, a mean of {statistics.fmean(_BUDGETS):.1f} tokens at a context of "
        "512, for d=12; it gives no number for how they go with F.",
    )
    return replace(record, cells=tuple(cells), claims=(claim,), notes=notes)


# --- Figure 12

_NEAR = 16  # tokens


def _words(lab: Lab) -> Measured:
    """The last row of F of every layer, and the text as the models read it."""
    traces = [_traced(lab, SELECTIVE, seed) for seed in lab.seeds]
    ends = [_end(each) for each in traces]
    return Measured(details={**traces[0].to_json(), "ends": ends})


def _end(traced: Trace) -> dict[str, Any]:
    """The part of a trace that a claim needs."""
    return {
        "tokens": list(traced.tokens),
        "kept": [(traced.F(layer)[-1] < _ALIVE).tolist() for layer in range(traced.layers)],
    }


def _words_conclude(record: Reproduction) -> Reproduction:
    """How much of the text each layer still sees from the end, of full stops and of other tokens."""
    ends = record.details.get("ends") or [_end(Trace.from_json(record.details))]
    seeds = record.seeds[: len(ends)]
    cells, most = [], []
    for layer in range(len(ends[0]["kept"])):
        shares = [_shares(end["tokens"], end["kept"][layer]) for end in ends]
        columns = [tuple(each[k] for each in shares) for k in range(3)]
        for name, values in zip(("tokens kept", "full stops kept", "other tokens kept"), columns, strict=True):
            cells.append(Cell(f"layer {layer}", name, values, digits=1, percent=True))
        most.append(differences(columns[1], columns[2]))
    best = tuple(max((v for v in values if v is not None), default=None) for values in zip(*most, strict=True))
    claim = Claim(
        "Some layer persists the full stops.", best,
        "full stops kept less other tokens kept, in the layer where that is most",
        than=0.1, digits=2,
    )  # fmt: skip
    notes = [
        f"Kept: F < 1 in the last row. The last {_NEAR} tokens are left out: what is near is kept, whatever it is.",
    ]
    if len(ends) < len(record.models):
        notes.append("Of other seeds the last row of F was not recorded.")
    return replace(record, seeds=seeds, cells=tuple(cells), claims=(claim,), notes=tuple(notes))


def _shares(tokens: Sequence[str], kept: Sequence[bool]) -> tuple[float | None, float | None, float | None]:
    """Of all tokens but the last few, of full stops, and of the others."""
    alive = np.array(kept[:-_NEAR], dtype=bool)
    stops = np.array([token.strip() == "." for token in tokens[:-_NEAR]], dtype=bool)

    def share(chosen: NDArray[np.bool_]) -> float | None:
        return float(alive[chosen].mean()) if chosen.any() else None

    return share(np.ones_like(stops)), share(stops), share(~stops)


# --- Figures 1 and 8: samples of the synthetic tasks

TEXT = "A day after former president Barack Obama visited Columbia, ibuprofen was sold out in Uclan."
_TASKS = {"variable assignment": assignment_runs, "copy": copy_runs, "parity": parity_runs}
_SAMPLES = 16


def _sample(model: Trained, seed: int = 0) -> Words:
    """A sample of the task that a model was trained on."""
    task = model.need.run.data
    assert isinstance(task, Task)
    ids = task.dataset(seed, 1)[0]["input_ids"].tolist()
    return Words(ids, [task.tokens[i] if place == 0 else f" {task.tokens[i]}" for place, i in enumerate(ids)])


def _traced_sample(model: Trained, number: int = 0, name: str | None = None) -> Trace:
    """A sample of its task, as a model reads it."""
    return trace(model.model, _sample(model, number), name=name or model.need.run.name)


# --- Figure 1


def _masking_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """A selective model for each task, and one for text."""
    needs = with_seeds({name: runs(scale)[SELECTIVE] for name, runs in _TASKS.items()}, seeds)
    return needs | trio(scale, seeds, kinds=(SELECTIVE,))


def _masking(lab: Lab) -> Measured:
    """How much masking leaves of tokens that are still needed, and of others, in the layer that masks most."""
    assigned, parity, copied = [], [], []
    for seed in lab.seeds:
        assigned.append(_assignment(_traced_sample(lab.trained("variable assignment", seed))))
        parity.append(_parity(_traced_sample(lab.trained("parity", seed))))
        copied.append(_copy(_traced_sample(lab.trained("copy", seed))))
    rows = {
        "Variable Assignment: values that hold, values that were overwritten": assigned,
        "Parity*: the last two tokens, earlier ones": parity,
        "Copy: the string when copying begins, when it is copied": copied,
    }
    cells, claims = [], []
    for row, pairs in rows.items():
        needed, stale = (tuple(each[k] for each in pairs) for k in (0, 1))
        cells.append(Cell(row, "left of those needed: e^-F", needed, digits=2))
        cells.append(Cell(row, "left of the others: e^-F", stale, digits=2))
        text = f"Selective attention masks what is no longer needed ({row.partition(':')[0]})."
        claims.append(Claim(text, differences(needed, stale), "left of those needed less left of the others"))
    shown = {name: _traced_sample(lab.trained(name, lab.seeds[0])).to_json() for name in _TASKS}
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


# --- Figure 8


def _patterns(lab: Lab) -> Measured:
    """How much of a value's attention goes to its own variable, and of the question's to the right value."""
    count = 2 if lab.scale.name == "smoke" else _SAMPLES
    cells, right = [], {}
    for kind in PAIR:
        by_seed = [
            [_traced_sample(model, k, kind) for k in range(count)]
            for model in (lab.trained(kind, seed) for seed in lab.seeds)
        ]
        layers = by_seed[0][0].layers
        first = tuple(_mean([_value_on_variable(each) for each in traces]) for traces in by_seed)
        cells.append(Cell("first layer: a value on itself and its variable", kind, first, digits=1, percent=True))
        for layer in range(1, layers):
            values = tuple(_mean([_question_on_answer(each, layer) for each in traces]) for traces in by_seed)
            cells.append(Cell(f"layer {layer}: the question on the right value", kind, values, digits=1, percent=True))
            right[kind] = values
    claim = Claim(
        "The selective model's question reads the last assignment, and the standard one's does not so clearly.",
        differences(right[SELECTIVE], right[STANDARD]),
        "share of the question's attention on the right value in the last layer, selective less standard",
    )
    shown = {kind: lab.trained(kind, lab.seeds[0]) for kind in PAIR}
    details = {kind: _traced_sample(model, name=kind).to_json() for kind, model in shown.items()}
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


EXPERIMENTS = (
    Experiment(
        "f-of-a-text",
        "Figure 5",
        "F of the paper's own example text",
        _selective,
        _f_of_a_text,
        lambda record: plot.masking(Trace.from_json(record.details)),
    ),
    Experiment(
        "mean-f",
        "Figure 9",
        "F averaged over many texts",
        _selective,
        _mean_f,
        lambda record: plot.masking_mean(MeanF.from_json(record.details)),
    ),
    Experiment(
        "stability",
        "Figure 10",
        "F averaged over many texts in two trainings",
        lambda scale, seeds: _selective(scale, _two_seeds(seeds)),
        _stability,
        lambda record: plot.stability(
            MeanF.from_json(record.details["first"]), MeanF.from_json(record.details["second"])
        ),
        conclude=_stability_conclude,
    ),
    Experiment(
        "persisted",
        "Figure 11",
        "what remains in the cache after pruning, layer by layer",
        lambda scale, seeds: trio(scale, seeds, kinds=(STANDARD, MEMORY)),
        _persisted,
        lambda record: plot.kept(Trace.from_json(record.details)),
        conclude=_persisted_conclude,
    ),
    Experiment(
        "selected-words",
        "Figure 12",
        "what the last token finds masked, word by word",
        _selective,
        _words,
        lambda record: plot.words(Trace.from_json(record.details)),
        conclude=_words_conclude,
    ),
    Experiment(
        "masking",
        "Figure 1",
        "what is masked and what is read in Variable Assignment, Copy, Parity* and text",
        _masking_needs,
        _masking,
        lambda record: {name: plot.tokens(Trace.from_json(each)) for name, each in record.details.items()},
    ),
    Experiment(
        "attention-patterns",
        "Figure 8",
        "attention of all layers on Variable Assignment, selective beside standard",
        lambda scale, seeds: with_seeds(assignment_runs(scale), seeds),
        _patterns,
        lambda record: plot.attention(*(Trace.from_json(record.details[kind]) for kind in (SELECTIVE, STANDARD))),
    ),
)
