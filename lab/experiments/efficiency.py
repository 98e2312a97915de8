"""Section 6.2, Figures 6 and 7: memory saved at the standard loss and at the own; H2O, TOVA and Window+4 beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from lab.engine.experiment import TITLES, WHO, Experiment, Need, trio, with_seeds
from lab.engine.lab import Lab
from lab.engine.pruning import (
    ALL,
    GAIN,
    LONG,
    POLICIES,
    AtLimit,
    at_limit,
    curve_of,
    factor_at,
    nearest_point,
    products_saved,
    search,
    tradeoff,
    whole,
)
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.scales import KINDS, Scale, scale_of
from selattn.evaluation.tradeoff import Baseline, Tradeoff
from selattn.utils.typed import from_json, to_json
from selattn.views.plot import tradeoff as draw_tradeoff

# At a context of 512, d=12: factors at the baseline's loss, on long examples, and keeping the gain.
_PAPER = {
    ("selective", "equal", ALL): 5.0,
    ("memory", "equal", ALL): 16.0,
    ("memory", "equal", LONG): 12.0,
    ("selective", "gain", ALL): 3.0,
}
CURVES = {"selective": "selective", "memory": "memory loss"}
_LESS = 2.0  # times: what "several times less" is held against
_SEARCHED = ("factor of the budgets searched", "their loss, unseen documents", "times fewer products")
EQUAL, OWN = "times less memory at the standard loss", "times less memory at the own loss"


def evaluate(lab: Lab) -> Measured:
    """The trade-offs on unseen documents, and budgets that the searches find for the standard model's loss."""
    tradeoffs = [tradeoff(lab, seed) for seed in lab.seeds]
    cells = []
    for kind in CURVES:
        cells += _by_search(TITLES[kind], [_searched(lab, kind, seed) for seed in lab.seeds], tradeoffs[0].context)
    lab.settings["gain"] = GAIN
    return Measured(tuple(cells), details={"tradeoffs": [to_json(each) for each in tradeoffs]})


def conclude(record: Reproduction) -> Reproduction:
    """Losses, and factors at the standard model's loss and at the own, from the trade-offs."""
    tradeoffs = [from_json(Tradeoff, each) for each in record.details["tradeoffs"]]
    context = tradeoffs[0].context
    cells = [
        Cell(f"loss, {text}", "standard", tuple(base_loss(each, text) for each in tradeoffs)) for text in (ALL, LONG)
    ]
    factors: dict[tuple[str, str, str], Values] = {}
    for name, curve, column in _columns():
        points = [curve_of(each, curve).points for each in tradeoffs]
        for text in (ALL, LONG):
            losses = [whole(each, text) for each in points]
            limits = {"equal": [base_loss(each, text) for each in tradeoffs], "gain": [loss + GAIN for loss in losses]}
            if name in CURVES:
                cells.append(Cell(f"loss, {text}", column, tuple(losses)))
            for what, row in (("equal", EQUAL), ("gain", OWN)):
                values = tuple(
                    factor_at(each, text, limit, context) for each, limit in zip(points, limits[what], strict=True)
                )
                factors[name, what, text] = values
                cells.append(Cell(f"{row}, {text}", column, values, _PAPER.get((name, what, text)), digits=1))
    cells += [cell for cell in record.cells if cell.row in _SEARCHED]
    return replace(record, cells=tuple(cells), claims=_claims(factors), notes=_notes(record, context))


def _columns() -> list[tuple[str, str, str]]:
    """Name, curve and column of every way to evict: selective models, and the standard one by H2O, TOVA, Window+4."""
    ours = [(kind, curve, TITLES[kind]) for kind, curve in CURVES.items()]
    return ours + [(name, name, f"standard, {name}") for name in POLICIES]


def _searched(lab: Lab, kind: str, seed: int) -> AtLimit | None:
    model = lab.trained(kind, seed)
    return at_limit(lab, model, search(lab, model), lab.trained("standard", seed))


def _by_search(column: str, limits: Sequence[AtLimit | None], context: int) -> list[Cell]:
    """The paper's own procedure: budgets that meet the threshold on the search set, and their loss elsewhere."""
    factors = tuple(None if each is None else each.factor for each in limits)
    losses = tuple(None if each is None else each.loss for each in limits)
    products = tuple(None if each is None else products_saved(each.budgets, context) for each in limits)
    return [
        Cell("factor of the budgets searched", column, factors, digits=1),
        Cell("their loss, unseen documents", column, losses),
        Cell("times fewer products", column, products, digits=1),
    ]


def base_loss(measured: Tradeoff, text: str) -> float:
    """The standard model's loss on a text, with its whole cache."""
    assert measured.baseline is not None
    return measured.baseline.loss[text]


def _claims(factors: Mapping[tuple[str, str, str], Values]) -> tuple[Claim, ...]:
    at = "times less memory at the standard model's loss (0: above it with everything kept)"
    own = f"times less memory within {GAIN} nats of its own unpruned loss"
    known = {what: tuple(value or 0.0 for value in values) for what, values in factors.items()}
    claims = []
    for kind in CURVES:
        for what, text, claim in (
            ("equal", ALL, "{} holds the standard model's loss with less than half the memory."),
            ("equal", LONG, "On long documents {} holds the standard model's loss with less than half the memory."),
            ("gain", ALL, "{} keeps its own loss with less than half the memory."),
        ):
            who = WHO[kind] if claim.startswith("{}") else WHO[kind][0].lower() + WHO[kind][1:]
            claims.append(
                Claim(
                    claim.format(who),
                    known[kind, what, text],
                    at if what == "equal" else own,
                    than=_LESS,
                    paper=_PAPER.get((kind, what, text)),
                    digits=1,
                )
            )
    more = differences(known["memory", "equal", ALL], known["selective", "equal", ALL])
    what = "factor at the standard model's loss with the memory loss less that without (0: no factor)"
    claims.append(Claim("The memory loss saves more memory.", more, what, paper=11.0, digits=1))
    return tuple(claims)


def _notes(record: Reproduction, context: int) -> tuple[str, ...]:
    scale = scale_of(record.scale, record.settings)
    return (
        f"Context {context}; budgets searched on {scale.search_rows} held-out documents down to 2 tokens a layer, "
        f"losses on {scale.report_rows} others. Long documents have at least 90% of the context.",
        "A factor is layers * N / tokens held, where the curve on unseen documents crosses the loss; between points "
        "log(tokens) is interpolated. The paper's are for d=12 after 524,288 steps.",
        f"At the own loss: within {GAIN} nats of what the model has with everything kept; for a selective model that "
        "is to keep its gain. H2O, TOVA and Window+4 evict from the standard model: their own loss is that one's. They "
        "have the same budget in every layer, where the selective models have searched ones: their columns cannot be "
        "compared with each other.",
        "The paper does not say with which of its losses its 12X, 18X, 24X (long documents) are, which follow on the "
        "memory loss. Its 3X, 4X, 4X (keeping the gain) are 'the rightmost point on the flat part of the blue graphs', "
        "and blue is plain selective attention in its Figure 3.",
    )


def draw(record: Reproduction) -> Figure:
    """Loss against KV size, of the first seed; all seeds are in the table."""
    shown = dict(record.details["tradeoffs"][0])
    shown["curves"] = [curve for curve in shown["curves"] if curve["name"] in CURVES.values()]
    return draw_tradeoff(shown)


# --- By context size

# By context: selective, with the memory loss, that on long examples, and keeping the gain; d=12.
_BY_CONTEXT = {512: (5.0, 16.0, 12.0, 3.0), 1024: (7.0, 25.0, 18.0, 4.0), 2048: (8.0, 47.0, 24.0, 4.0)}
_AT_ALL, _AT_LONG = "at the standard loss, all documents", "at the standard loss, long documents"
_KEPT = "keeping the gain, all documents"


def _contexts_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three kinds at every context size."""
    runs = {
        f"{kind}, {context} tokens": scale.run(kind, context=context, batch=scale.context_batch)
        for context in sorted(scale.contexts)
        for kind in KINDS
    }
    return with_seeds(runs, seeds)


def _evaluate_contexts(lab: Lab) -> Measured:
    """The factors at each context size, on unseen documents."""
    cells, at = [], {}
    for context in sorted(lab.scale.contexts):
        tradeoffs = [tradeoff(lab, seed, others=False, suffix=f", {context} tokens") for seed in lab.seeds]
        for kind, curve in CURVES.items():
            points = [curve_of(each, curve).points for each in tradeoffs]
            own = [whole(each, ALL) + GAIN for each in points]
            for what, text, limits in (
                (_AT_ALL, ALL, [base_loss(each, ALL) for each in tradeoffs]),
                (_AT_LONG, LONG, [base_loss(each, LONG) for each in tradeoffs]),
                (_KEPT, ALL, own),
            ):
                values = tuple(
                    factor_at(each, text, limit, context) for each, limit in zip(points, limits, strict=True)
                )
                at[context, kind, what] = values
                row = f"{context} tokens: times less memory {what}"
                cells.append(Cell(row, TITLES[kind], values, _paper_by_context(context, kind, what), digits=1))
    low, high = min(lab.scale.contexts), max(lab.scale.contexts)
    claims = [
        Claim(
            f"The memory that is saved grows with the context ({TITLES[kind]}).",
            tuple(
                None if a is None or b is None else a / b
                for a, b in zip(at[high, kind, _AT_ALL], at[low, kind, _AT_ALL], strict=True)
            ),
            f"factor at {high} tokens over the factor at {low}",
            than=1.0,
            paper=paper,
            digits=2,
        )
        for kind, paper in (("selective", 1.6), ("memory", 2.9))
    ]
    lab.settings["gain"] = GAIN
    notes = (
        f"Factors where the curve on unseen documents crosses the loss; the gain counts as kept within {GAIN} nats.",
        "The paper: contexts of 512, 1,024 and 2,048, d=12.",
    )
    return Measured(tuple(cells), tuple(claims), notes)


def _paper_by_context(context: int, kind: str, what: str) -> float | None:
    if context not in _BY_CONTEXT:
        return None
    selective, memory, long, gain = _BY_CONTEXT[context]
    places = {("selective", _AT_ALL): selective, ("selective", _KEPT): gain}
    places |= {("memory", _AT_ALL): memory, ("memory", _AT_LONG): long}
    return places.get((kind, what))


# --- Figure 7: every way to evict at the same KV size

_SHOWN = 0.6  # nats above the standard model's loss: what is worse is left out of the figure
_CURVES = ("selective", "memory loss", *POLICIES)


def _compare(lab: Lab) -> Measured:
    """The loss of every method at the same sizes, on all documents and on long ones."""
    tradeoffs = [tradeoff(lab, seed) for seed in lab.seeds]
    context = tradeoffs[0].context
    sizes = [context // 2**k for k in range(1, 8) if context // 2**k >= 4]
    bases = [each.baseline for each in tradeoffs if each.baseline is not None]
    cells, at = [], {}
    for name in _CURVES:
        points = [curve_of(each, name).points for each in tradeoffs]
        for text in (ALL, LONG):
            for size in sizes:
                values = tuple(nearest_point(each, size).loss[text] for each in points)
                at[name, text, size] = values
                cells.append(Cell(f"loss, {size} tokens a layer, {text}", name, values))
            factors = tuple(
                factor_at(each, text, base.loss[text], context) for each, base in zip(points, bases, strict=True)
            )
            cells.append(Cell(f"times less memory at the standard loss, {text}", name, factors, digits=1))
    for text in (ALL, LONG):
        losses = tuple(base.loss[text] for base in bases)
        cells.append(Cell(f"loss, {sizes[0]} tokens a layer, {text}", "standard, whole cache", losses))
    return Measured(tuple(cells), details={"tradeoff": _over_seeds(at, sizes, bases, context)})


def _compare_conclude(record: Reproduction) -> Reproduction:
    """Nothing is claimed of it: only the selective models have searched budgets."""
    notes = (
        "H2O, TOVA and Window+4 evict from the standard model with the same budget in every layer; selective models "
        "have searched budgets of their own for each layer, of the same mean. So their columns cannot be compared with "
        "each other.",
        "What each selective model saves within a little of its own loss is in the experiment 'efficiency'. Sparse "
        "attention has to be trained: see the experiment 'sparse'.",
    )
    return replace(record, claims=(), notes=notes)


def _over_seeds(
    at: Mapping[tuple[str, str, int], Sequence[float]], sizes: Sequence[int], bases: Sequence[Baseline], context: int
) -> dict[str, Any]:
    """The data of a figure: at each size the mean of the seeds, and all of them."""

    def point(name: str, size: int) -> dict[str, Any]:
        losses = {text: list(at[name, text, size]) for text in (ALL, LONG)}
        return {"kv_size": size, "loss": {text: fmean(each) for text, each in losses.items()}, "losses": losses}

    return {
        "texts": [ALL, LONG],
        "context": context,
        "curves": [{"name": name, "points": [point(name, size) for size in sizes]} for name in _CURVES],
        "baseline": {
            "name": "standard",
            "loss": {text: fmean(base.loss[text] for base in bases) for text in (ALL, LONG)},
        },
    }


def _compare_draw(record: Reproduction) -> Figure:
    """Loss against KV size: means over the seeds, and bands from the smallest to the largest."""
    measured = record.details["tradeoff"]
    figure = draw_tradeoff(measured)
    for axes, text in zip(figure.axes, measured["texts"], strict=True):
        axes.set_ylim(top=min(axes.get_ylim()[1], measured["baseline"]["loss"][text] + _SHOWN))
    return figure


EXPERIMENTS = (
    Experiment(
        "efficiency",
        "Figure 6 and section 6.2",
        "how much less memory selective attention needs, at the standard loss and keeping its gain",
        trio,
        evaluate,
        draw,
        conclude=conclude,
    ),
    Experiment(
        "efficiency-contexts",
        "Figure 6 and section 6.2, by context size",
        "how the memory that is saved grows with the context size",
        _contexts_needs,
        _evaluate_contexts,
    ),
    Experiment(
        "comparison",
        "Figure 7",
        "selective attention beside H2O, TOVA and Window+4 at the same KV size",
        trio,
        _compare,
        _compare_draw,
        conclude=_compare_conclude,
    ),
)
