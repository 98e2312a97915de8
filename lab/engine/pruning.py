"""Budgets of trained models: searches down to the floor, and the trade-off beside other ways to evict.

Budgets are searched on some held-out documents and reported on others, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.engine.lab import Lab
from lab.engine.store import Trained
from lab.scales import KINDS
from selattn.cache import Budgets
from selattn.evaluation.losses import Batch, log_perplexity, make_batches
from selattn.evaluation.tradeoff import Curve, MeasuredCurve, Point, Tradeoff, measure_tradeoff, size_at
from selattn.models.loading import Loaded, load
from selattn.pruning import Step, Until, chosen, prune, read_path, read_search

FLOOR = 2  # tokens that every layer keeps in the end
GAIN = 0.005  # nats above the unpruned loss at which the gain still counts as kept
POLICIES = {"H2O": "h2o", "TOVA": "tova", "Window+4": "window+4"}
ALL, LONG = "all documents", "long documents"


@dataclass(frozen=True)
class AtLimit:
    """Budgets that a search finds for a loss, and what they give on other documents.

    Attributes:
        budgets: K_l, the last of the path that meet the limit on the search set.
        factor: layers * N / sum of K_l.
        loss: on the reported documents.
        limit: the largest loss allowed on the search set.
    """

    budgets: tuple[int, ...]
    factor: float
    loss: float
    limit: float


def search(lab: Lab, model: Trained, policy: str = "selective", context: int | None = None) -> Path:
    """The folder of a search down to the floor; one that was interrupted resumes."""
    loaded, scale = load(model.model), lab.scale
    folder = lab.place(
        "search",
        model=loaded.fingerprint,
        text=lab.tokens(loaded),
        rows=scale.search_rows,
        step=scale.search_step,
        policy=policy,
        context=context,
    )
    lab.settings |= {"search_rows": scale.search_rows, "search_step": scale.search_step, "search_floor": FLOOR}
    if not (folder / "record.json").exists():
        lab.overview.say(f"searching budgets of {model.need.run.name}, seed {model.need.run.seed}")
        prune(
            loaded,
            lab.text(),
            Until(),
            out=folder,
            rows=scale.search_rows,
            report_rows=scale.report_rows,
            step=scale.search_step,
            floor=FLOOR,
            lazy=True,
            policy=policy,
            context=context,
            team=lab.team,
        )
    return folder


def batches(lab: Lab, loaded: Loaded, context: int, searched: bool, long: bool = False) -> list[Batch]:
    """The documents that searches see, or those that are reported on."""
    rows = lab.text(long).rows(loaded.tokenizer, context)
    count = lab.scale.search_rows if searched else lab.scale.report_rows
    return make_batches(rows.take(count, 0 if searched else lab.scale.search_rows), 8)


def at_limit(lab: Lab, model: Trained, folder: Path, baseline: Trained) -> AtLimit | None:
    """The paper's threshold: the budgets with the baseline's loss on the search set; None if it is never met."""
    loaded, other = load(model.model), load(baseline.model)
    context = loaded.description.context
    path = read_path(folder)

    def measure() -> float:
        return log_perplexity(other.model, batches(lab, other, context, searched=True), team=lab.team)

    limit = lab.part({"part": "search loss", **_key(lab, other, context)}, float, measure)
    step = last_within(path, limit, context)
    if step is None:
        return None
    return AtLimit(step.budgets, step.factor, loss_with(lab, loaded, step.budgets), limit)


def within_own(lab: Lab, model: Trained) -> tuple[float, float]:
    """How far a model is pruned within a little of its own loss, and what that costs on other documents, in nats."""
    loaded = load(model.model)
    path = read_path(search(lab, model))
    step = last_within(path, path[0].loss + GAIN, loaded.description.context)
    assert step is not None
    return step.factor, loss_with(lab, loaded, step.budgets) - loss_with(lab, loaded, None)


def last_within(path: Sequence[Step], limit: float, context: int) -> Step | None:
    """The last iteration of a path whose loss is within the limit; None if the first exceeds it."""
    if not path[0].loss <= limit:
        return None
    return path[chosen(path, Until(loss=limit), context)[0]]


def loss_with(
    lab: Lab, loaded: Loaded, budgets: Sequence[int] | None, policy: str | None = None, long: bool = False
) -> float:
    """On the reported documents, with these budgets."""
    context = loaded.description.context
    key = {"part": "loss", **_key(lab, loaded, context), "long": long, "policy": policy}
    key["budgets"] = None if budgets is None else list(budgets)
    given = None if budgets is None else Budgets(tuple(budgets))

    def measure() -> float:
        return log_perplexity(loaded.model, batches(lab, loaded, context, False, long), given, policy, lab.team)

    return lab.part(key, float, measure)


def tradeoff(lab: Lab, seed: int, others: bool = True, suffix: str = "") -> Tradeoff:
    """Loss against KV size of one seed's models, on all documents and on long ones.

    Curves: "selective" and "memory loss" along their searches; with `others` the standard model under H2O, TOVA and
    Window+4. The baseline is the standard model with its whole cache. `suffix` ends the names of the needs.
    """
    standard, selective, memory = (lab.trained(kind + suffix, seed) for kind in KINDS)
    folders = {"selective": search(lab, selective), "memory loss": search(lab, memory)}
    models = {"selective": selective, "memory loss": memory}
    curves = [
        Curve(name, name, load(models[name].model), search=read_search(folder)) for name, folder in folders.items()
    ]
    base = load(standard.model)
    if others:
        curves += [Curve(name, "standard", base, policy, sizes=True) for name, policy in POLICIES.items()]
    scale = lab.scale
    texts = {ALL: lab.text(), LONG: lab.text(long=True)}
    lab.settings["report_rows"] = scale.report_rows
    key = {
        "part": "trade-off",
        "models": [curve.loaded.fingerprint for curve in curves],
        "baseline": base.fingerprint,
        "rows": [scale.search_rows, scale.report_rows],
        "curves": [[curve.name, curve.policy, curve.search and str(curve.search.folder.name)] for curve in curves],
        "text": lab.tokens(base),
    }

    def measure() -> Tradeoff:
        lab.overview.say(f"measuring the trade-off of seed {seed}")
        return measure_tradeoff(
            curves,
            texts,
            baseline=Curve("standard", "standard", base),
            rows=scale.report_rows,
            skip=scale.search_rows,
            team=lab.team,
            record=lab.place("tradeoff", **key) / "record.json" if lab.team.size == 1 else None,
        )

    return lab.part(key, Tradeoff, measure)


def curve_of(measured: Tradeoff, name: str) -> MeasuredCurve:
    """The curve of that name."""
    return next(curve for curve in measured.curves if curve.name == name)


def factor_at(points: Sequence[Point], text: str, loss: float, context: int) -> float | None:
    """The memory factor at which a curve reaches a loss; None if it is above it with the whole cache."""
    reached = size_at([(point.kv_size, point.loss[text]) for point in points], loss)
    return None if reached is None else context / reached.size


def whole(points: Sequence[Point], text: str) -> float:
    """The loss of a curve with the largest cache: nothing is evicted."""
    return max(points, key=lambda point: point.kv_size).loss[text]


def nearest_point(points: Sequence[Point], size: float) -> Point:
    """The point of a curve whose KV size is nearest."""
    return min(points, key=lambda point: abs(point.kv_size - size))


def products_saved(budgets: Sequence[int], context: int) -> float:
    """How many times fewer products of a query with a key: layers * N (N + 1) / 2 over the sum of min(i, K_l)."""
    done = sum(min(place, k) for k in budgets for place in range(1, context + 1))
    return len(budgets) * context * (context + 1) / 2 / done


def full_rows(lab: Lab, model: Trained, count: int, context: int) -> list[list[int]]:
    """Token ids of held-out documents that fill the context, at most `count`."""
    rows = lab.text().rows(load(model.model).tokenizer, context).take()
    full = [
        row["input_ids"].tolist() for row in rows if "attention_mask" not in row or bool(row["attention_mask"].all())
    ]
    return full[:count]


def _key(lab: Lab, loaded: Loaded, context: int) -> dict[str, object]:
    return {
        "model": loaded.fingerprint,
        "context": context,
        "rows": [lab.scale.search_rows, lab.scale.report_rows],
        "text": lab.tokens(loaded),
    }
