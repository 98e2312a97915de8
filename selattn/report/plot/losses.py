"""Figures of losses: against the size of the cache, over training, and against the size of the model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, StrMethodFormatter

from selattn.errors import SelattnError
from selattn.report.figure import COLORS, MARKERS
from selattn.report.plot.style import heading, new_figure, styled
from selattn.report.tradeoff import panels_of_tradeoff

Record = Mapping[str, Any]

# What a loss is drawn against: the axis, the value, and what must be equal for two points to be on one line.
_AGAINST: dict[str, tuple[str, Callable[[Record], float], Callable[[Record], Any]]] = {
    "size": (
        "parameters, millions",
        lambda run: run["parameters"] / 1e6,
        lambda run: (_context(run), _heads(run) * 64 - _model(run).get("hidden_size", 0)),
    ),
    "context": (
        "context size, tokens",
        lambda run: _context(run),
        lambda run: (_model(run).get("hidden_size"), _model(run).get("num_hidden_layers"), _heads(run)),
    ),
    "heads": (
        "attention heads",
        lambda run: _heads(run),
        lambda run: (_model(run).get("hidden_size"), _model(run).get("num_hidden_layers"), _context(run)),
    ),
}


@styled
def tradeoff(record: Record) -> Figure:
    """Log-perplexity against KV size, from a record of `selattn eval --curve`; smaller caches to the right."""
    if "curves" not in record or "texts" not in record:
        raise SelattnError("a trade-off is drawn from a record of 'selattn eval --curve'")
    texts = len(record["texts"])
    figure = new_figure(max(6.4, 4.8 * texts), 4.8)
    panels_of_tradeoff(figure, record)
    return figure


@styled
def curves(*records: Record, name: str = "validation", title: str | None = None) -> Figure:
    """Loss over training, one line for each kind of run; with several seeds a mean, and a band from least to most."""
    found: dict[str, list[list[tuple[int, float]]]] = {}
    for record in records:
        for run in _runs(record):
            points = [(at["step"], at[name]["loss"]) for at in run.get("evaluations", []) if name in at]
            if points:
                found.setdefault(str(run["run"]), []).append(points)
    if not found:
        raise SelattnError(f"no record has a loss of {name!r} over training: give records of 'selattn study'")
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    for number, (label, seeds) in enumerate(found.items()):
        by_step = [dict(points) for points in seeds]
        steps = [step for step in by_step[0] if all(step in points for points in by_step)]
        losses = [[points[step] for points in by_step] for step in steps]
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        shown = label if len(seeds) == 1 else f"{label} ({len(seeds)} seeds)"
        means = [statistics.fmean(each) for each in losses]
        axes.plot(steps, means, color=color, marker=marker, markersize=4, linewidth=1.3, label=shown)
        if len(seeds) > 1:
            low, high = [min(each) for each in losses], [max(each) for each in losses]
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("step")
    axes.set_ylabel(f"{name.replace('_', ' ')} loss, nats per token")
    axes.set_title(title or "", loc="left", fontsize=9, weight="bold")
    axes.legend(frameon=False)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


@styled
def scaling(
    *records: Record, against: Sequence[str] | None = None, name: str = "validation", title: str | None = None
) -> Figure:
    """Loss against model size, context size and number of heads: a panel for each that differs between the runs.

    A point is a mean over seeds, a bar reaches from the least to the most; a line joins runs alike in all else.
    """
    runs = [run for record in records for run in _runs(record) if name in run.get("evaluation", {})]
    if not runs:
        raise SelattnError("no record has a loss to draw: give training records, or records of 'selattn study'")
    for what in against or ():
        if what not in _AGAINST:
            raise SelattnError(f"a loss is drawn against {', '.join(_AGAINST)}, not {what!r}")
    chosen = list(against or [what for what in _AGAINST if _differs(runs, what)] or ["size"])
    labels = list(dict.fromkeys(_attention(run) for run in runs))
    figure = new_figure(max(4.6, 3.6 * len(chosen)), 3.8)
    panels = figure.subplots(1, len(chosen), squeeze=False)[0]
    for axes, what in zip(panels, chosen, strict=True):
        _scaling_panel(axes, runs, labels, what, name)
    panels[0].set_ylabel(f"{name.replace('_', ' ')} loss, nats per token")
    handles, shown = panels[0].get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=3, frameon=False)
    if title:
        heading(figure, title)
    return figure


def _differs(runs: Sequence[Record], what: str) -> bool:
    """Whether some runs differ in this and are alike in all else."""
    _, value, alike = _AGAINST[what]
    groups: dict[Any, set[float]] = {}
    for run in runs:
        groups.setdefault((_attention(run), alike(run)), set()).add(value(run))
    return any(len(values) > 1 for values in groups.values())


def _scaling_panel(axes: Axes, runs: Sequence[Record], labels: Sequence[str], what: str, name: str) -> None:
    title, value, alike = _AGAINST[what]
    places = sorted({value(run) for run in runs})
    for number, label in enumerate(labels):
        own = [run for run in runs if _attention(run) == label]
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        style: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5}
        for line, group in enumerate(dict.fromkeys(alike(run) for run in own)):
            points: dict[float, list[float]] = {}
            for run in own:
                if alike(run) == group:
                    points.setdefault(value(run), []).append(run["evaluation"][name]["loss"])
            sizes = sorted(points)
            means = [statistics.fmean(points[size]) for size in sizes]
            shown = label if line == 0 else "_"
            axes.plot(sizes, means, linestyle="-" if len(sizes) > 1 else "none", linewidth=1.3, label=shown, **style)
            for size, mean in zip(sizes, means, strict=True):
                if len(points[size]) > 1:
                    low, high = mean - min(points[size]), max(points[size]) - mean
                    axes.errorbar([size], [mean], [[low], [high]], color=color, capsize=2, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.3g}" if x < 1000 else f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(title)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.15)


def _runs(record: Record) -> list[Record]:
    """The runs of a study's record; a training record is one run."""
    if "runs" in record:
        return list(record["runs"])
    if "run" in record and "evaluation" in record:
        return [{**record, "run": record["run"]["name"], "config": record["run"]}]
    raise SelattnError("this record holds no training runs: give one of 'selattn study', or a training_record.json")


def _model(run: Record) -> Record:
    return dict(run["config"].get("model", {}))


def _context(run: Record) -> int:
    return int(run["config"].get("data", {}).get("context", 0))


def _heads(run: Record) -> int:
    return int(_model(run).get("num_attention_heads", 0))


def _attention(run: Record) -> str:
    """What kind of attention a run has, in words."""
    model = _model(run)
    kind = " + ".join(dict.fromkeys(str(kind) for kind in model.get("attention", ["selective"])))
    return f"{kind}, memory loss" if model.get("memory_epsilon") else kind
