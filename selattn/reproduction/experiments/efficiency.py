"""Section 6.2 and Figure 6: how much less memory at the standard model's loss, and keeping the gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from selattn.evaluation.results import Tradeoff
from selattn.models.loading import load
from selattn.report.plot import tradeoff as draw_tradeoff
from selattn.reproduction.frame import Cell, Claim, Experiment, Found, Need, Reproduction
from selattn.reproduction.lab import Lab
from selattn.reproduction.pruned import (
    ALL,
    GAIN,
    LONG,
    AtLimit,
    at_limit,
    curve_of,
    factor_at,
    products_saved,
    search,
    tradeoff,
    whole,
)
from selattn.reproduction.scales import Scale
from selattn.reproduction.trio import TITLES, WHO, trio
from selattn.reproduction.verdicts import differences
from selattn.utils.typed import to_json

# At a context of 512, d=12: factors at the baseline's loss, on long examples, and keeping the gain.
_PAPER = {
    ("selective", "equal", ALL): 5.0,
    ("memory", "equal", ALL): 16.0,
    ("memory", "equal", LONG): 12.0,
    ("memory", "gain", ALL): 3.0,
}
CURVES = {"selective": "selective", "memory": "memory loss"}


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three models that are trained longest."""
    return trio(scale, seeds)


def evaluate(lab: Lab) -> Found:
    """Searches, the trade-off on unseen documents, and what is read off there."""
    found = [tradeoff(lab, seed) for seed in lab.seeds]
    context = found[0].context
    cells = [Cell(f"loss, {text}", "standard", tuple(base_loss(each, text) for each in found)) for text in (ALL, LONG)]
    factors: dict[tuple[str, str, str], tuple[float | None, ...]] = {}
    for kind, curve in CURVES.items():
        column = TITLES[kind]
        points = [curve_of(each, curve).points for each in found]
        for text in (ALL, LONG):
            losses = [whole(each, text) for each in points]
            cells.append(Cell(f"loss, {text}", column, tuple(losses)))
            limits = {"equal": [base_loss(each, text) for each in found], "gain": [loss + GAIN for loss in losses]}
            for what, allowed in limits.items():
                values = tuple(
                    factor_at(each, text, limit, context) for each, limit in zip(points, allowed, strict=True)
                )
                factors[kind, what, text] = values
                name = "times less memory at the standard loss" if what == "equal" else "times less keeping the gain"
                cells.append(Cell(f"{name}, {text}", column, values, _PAPER.get((kind, what, text)), digits=1))
        cells += _by_search(column, [_searched(lab, kind, seed) for seed in lab.seeds], context)
    lab.settings["gain"] = GAIN
    return Found(tuple(cells), _claims(factors), _notes(lab), {"tradeoffs": [to_json(each) for each in found]})


def _searched(lab: Lab, kind: str, seed: int) -> AtLimit | None:
    model = lab.trained(kind, seed)
    return at_limit(lab, model, search(lab, model), lab.trained("standard", seed))


def _by_search(column: str, found: Sequence[AtLimit | None], context: int) -> list[Cell]:
    """The paper's own procedure: budgets that meet the threshold on the search set, and their loss elsewhere."""
    factors = tuple(None if each is None else each.factor for each in found)
    losses = tuple(None if each is None else each.loss for each in found)
    products = tuple(None if each is None else products_saved(each.budgets, context) for each in found)
    return [
        Cell("factor of the budgets searched", column, factors, digits=1),
        Cell("their loss, unseen documents", column, losses),
        Cell("times fewer products", column, products, digits=1),
    ]


def base_loss(found: Tradeoff, text: str) -> float:
    """The standard model's loss on a text, with its whole cache."""
    assert found.baseline is not None
    return found.baseline.loss[text]


def _claims(factors: Mapping[tuple[str, str, str], tuple[float | None, ...]]) -> tuple[Claim, ...]:
    at = "times less memory at the standard model's loss (0: above it with everything kept)"
    own = f"times less memory within {GAIN} nats of its own unpruned loss"
    factors = {what: tuple(value or 0.0 for value in values) for what, values in factors.items()}
    found = []
    for kind in CURVES:
        for what, text, claim in (
            ("equal", ALL, "holds the standard model's loss with several times less memory"),
            ("equal", LONG, "does so on documents that fill the context"),
            ("gain", ALL, "keeps its own loss with several times less memory"),
        ):
            found.append(
                Claim(
                    f"{WHO[kind]} {claim}.",
                    factors[kind, what, text],
                    at if what == "equal" else own,
                    than=1.0,
                    paper=_PAPER.get((kind, what, text)),
                    digits=1,
                )
            )
    more = differences(factors["memory", "equal", ALL], factors["selective", "equal", ALL])
    what = "factor at the standard model's loss with the memory loss less that without (0: no factor)"
    return (*found, Claim("The memory loss saves more memory.", more, what, paper=11.0, digits=1))


def _notes(lab: Lab) -> tuple[str, ...]:
    context = load(lab.trained("standard", lab.seeds[0]).model).description.context
    return (
        f"Context {context}; budgets searched on {lab.scale.search_rows} held-out documents down to 2 tokens a layer, "
        f"losses on {lab.scale.report_rows} others.",
        "A factor is layers * N / tokens held, where the curve on unseen documents crosses the loss; between points "
        "log(tokens) is interpolated. The paper's are for d=12 after 524,288 steps.",
        f"Keeping the gain allows {GAIN} nats above the unpruned loss.",
        "The paper does not say whether its 12X, 18X, 24X (long) and 3X, 4X, 4X (keeping the gain) are with the memory "
        "loss; they are put beside ours with it.",
    )


def draw(record: Reproduction) -> Figure:
    """Loss against KV size, of the first seed; all seeds are in the table."""
    found = dict(record.details["tradeoffs"][0])
    found["curves"] = [curve for curve in found["curves"] if curve["name"] in CURVES.values()]
    return draw_tradeoff(found)


EXPERIMENT = Experiment(
    name="efficiency",
    paper="Figure 6 and section 6.2",
    sentence="how much less memory selective attention needs, at the standard loss and keeping its gain",
    needs=needs,
    evaluate=evaluate,
    figure=draw,
)
