"""Records of one measurement over several seeds, in one record of the same form.

Where a record of `selattn eval --curve` has a number, the one of several seeds has the mean, and beside it the numbers
of the seeds in the order of their records: `loss` and `losses`, `memory_factor` and `memory_factors`. The seed of a
record is the one that its models were trained with, not that of the rows they were measured on.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selattn.errors import SelattnError
from selattn.evaluation.curve import at_losses


def merge_curves(records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """From records of `selattn eval --curve`, by the name of their file, on the same text.

    A curve that some records lack, such as a model that was trained with one seed only, has the seeds that it has. A
    point is kept if every seed has one of its size. A search takes the same number of tokens in every iteration, so
    those of several seeds pass through the same sizes; the budgets behind them differ. Where a curve reaches the
    baseline's loss is read off its points, not taken from the record, so that it means the same for all of them.
    """
    _check_whole(records, _curves, "selattn eval --curve")
    _check_seeds(records)
    return _curves(records)


def merge_searches(records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """From records of `selattn prune`, by the name of their file: searches of one kind on the same text."""
    _check_whole(records, _searches, "selattn prune")
    _check_seeds(records)
    return _searches(records)


def training_seed(record: Mapping[str, Any]) -> int | None:
    """The seed that the models of a record were trained with; None if it is not known, or not the same for all.

    Records name it since `selattn eval` and `selattn prune` write `training_seed`. In older ones it stands only where
    `selattn study` has put it, at the end of the names of its runs: RUN-seed1.
    """
    models = [record]
    if "curves" in record:
        models = [model for curve in record["curves"] for model in curve.get("of", [])]
        models += [] if record["baseline"] is None else [record["baseline"]]
    found = {_seed_of(model) for model in models} - {None}
    return found.pop() if len(found) == 1 else None


def _seed_of(model: Mapping[str, Any]) -> int | None:
    if model.get("training_seed") is not None:
        return int(model["training_seed"])
    named = re.search(r"-seed(\d+)(/model)?/?$", model.get("model", ""))
    return int(named[1]) if named else None


def _check_seeds(records: Mapping[str, dict[str, Any]]) -> None:
    """One seed that counts twice would narrow the spread without a word."""
    seen: dict[tuple[int, Any], str] = {}
    for name, record in records.items():
        seed = training_seed(record)
        if seed is None:
            continue
        first = seen.setdefault((seed, record["seed"]), name)
        if first != name:
            raise SelattnError(f"{first} and {name} are both of models trained with seed {seed}: give each seed once")


def _check_whole(records: Mapping[str, dict[str, Any]], merge: Callable[..., Any], command: str) -> None:
    """Merge each one alone, which reads all that is needed of it: so what is missing has the name of its record."""
    for name, record in records.items():
        try:
            record["seed"]  # for the record that is made of them
            merge({name: record})
        except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError):
            raise SelattnError(f"{name} is not a whole record of '{command}': measure it again") from None


def _curves(records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    found = list(records.values())
    for record in found:
        points = [point for curve in record["curves"] for point in curve["points"]]
        for point in points if record["baseline"] is None else [record["baseline"], *points]:
            if point["loss"].keys() != record["texts"].keys():
                raise KeyError("loss")
    for what, get in _SAME_CURVES.items():
        _check_same(what, {name: get(record) for name, record in records.items()})
    baselines = [record["baseline"] for record in found]
    names = list(dict.fromkeys(curve["name"] for record in found for curve in record["curves"]))
    return {
        "records": _sources(records),
        **{name: found[0][name] for name in ("context", "texts", "skip")},
        "baseline": None if baselines[0] is None else {"name": baselines[0]["name"], **_losses(baselines)},
        "curves": [_curve(name, found) for name in names],
    }


def _searches(records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    found = list(records.values())
    for what, get in _SAME_SEARCHES.items():
        _check_same(what, {name: get(record) for name, record in records.items()})
    for record in found:
        sum(record["budgets"])  # they are only shown, so nothing else would notice that they are no numbers
    rows = [
        {"record": name, "training_seed": training_seed(record), **{key: record[key] for key in _OF_A_SEARCH}}
        for name, record in records.items()
    ]
    return {
        "records": _sources(records),
        **{name: found[0][name] for name in ("policy", "procedure", "text", "rows")},
        "searches": rows,
        "memory_factor": statistics.fmean(row["memory_factor"] for row in rows),
        "report": {name: statistics.fmean(row["report"][name] for row in rows) for name in rows[0]["report"]},
    }


_OF_A_SEARCH = ("model", "budgets", "memory_factor", "at_floor", "search_limit", "search_loss", "report")
_SAME_CURVES = {
    "contexts": lambda record: record["context"],
    "texts": lambda record: record["texts"],
    "baselines": lambda record: record["baseline"] is not None,
}
_SAME_SEARCHES = {
    "policies": lambda record: record["policy"],
    "procedures": lambda record: record["procedure"],
    "texts": lambda record: record["text"],
    "rows": lambda record: record["rows"],
    "reports": lambda record: sorted(record["report"]),
}


def _sources(records: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Where, when and by which command each was measured: the merged record is often made somewhere else."""
    return [
        {
            "record": name,
            "training_seed": training_seed(record),
            **{key: record[key] for key in ("command", "date", "machine")},
        }
        for name, record in records.items()
    ]


def _check_same(what: str, values: dict[str, Any]) -> None:
    first, *others = values
    for name in others:
        if values[name] != values[first]:
            raise SelattnError(f"{first} and {name} have different {what}: they are not seeds of one measurement")


def _curve(name: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The curve of that name of the records that have it."""
    seeds = [(curve["points"], record) for record in records for curve in record["curves"] if curve["name"] == name]
    by_size = [{round(point["kv_size"], 6): point for point in points} for points, _ in seeds]
    sizes = [size for size in by_size[0] if all(size in points for points in by_size)]
    if not sizes:
        raise SelattnError(f"the curves {name!r} have no size in common: measure them with the same --sizes")
    merged = [{"kv_size": size, **_losses([points[size] for points in by_size])} for size in sizes]
    reached = [
        {} if record["baseline"] is None else at_losses(points, record["baseline"]["loss"], record["context"])
        for points, record in seeds
    ]
    at_the_baselines = {text: _reached([seed[text] for seed in reached]) for text in reached[0]}
    return {
        "name": name,
        "seeds": len(seeds),
        "training_seeds": [training_seed(record) for _, record in seeds],
        "points": merged,
        "at_the_baselines_loss": at_the_baselines,
    }


def _losses(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    losses = {text: [point["loss"][text] for point in points] for text in points[0]["loss"]}
    return {"loss": {text: statistics.fmean(each) for text, each in losses.items()}, "losses": losses}


def _reached(seeds: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """There is a mean only if every seed reaches the loss; it is a lower bound if one of them is."""
    factors = [None if seed is None else seed["memory_factor"] for seed in seeds]
    known = [factor for factor in factors if factor is not None]
    return {
        "memory_factor": statistics.fmean(known) if len(known) == len(seeds) else None,
        "memory_factors": factors,
        "at_least": any(seed is not None and seed["at_least"] for seed in seeds),
    }
