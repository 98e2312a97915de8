"""Figures of losses: against the size of the cache, over training, and against the size of the model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, StrMethodFormatter

from selattn.errors import SelattnError
from selattn.views.figure import COLORS, MARKERS
from selattn.views.plot.style import heading, new_figure, styled
from selattn.views.tradeoff import panels_of_tradeoff
from selattn.views.words import attention_kind

Record = Mapping[str, Any]

LINES: Any = ("-", "--", ":", "-.")  # of runs that differ in what a panel keeps fixed


@dataclass(frozen=True)
class _Axis:
    """What a loss is drawn against.

    Attributes:
        label: of the axis.
        value: of a run.
        fixed: what runs of one line have in common, beside the kind of attention and the training.
        words: says what is fixed.
    """

    label: str
    value: Callable[[Record], float]
    fixed: Callable[[Record], tuple[float, ...]]
    words: str

    def alike(self, run: Record) -> Any:
        """Equal for runs that are alike in all but the value."""
        data, schedule = run["config"].get("data", {}), run["config"].get("schedule", {})
        return self.fixed(run), data.get("source"), data.get("vocabulary"), schedule.get("steps")


_AGAINST = {
    "size": _Axis(
        "parameters, millions",
        lambda run: run["parameters"] / 1e6,
        lambda run: (_context(run), _width(run) / _heads(run)),
        "{:,.0f} tokens, heads of size {:g}",
    ),
    "context": _Axis(
        "context size, tokens",
        lambda run: _context(run),
        lambda run: (_width(run), _layers(run), _heads(run)),
        "width {:,.0f}, {:.0f} layers, {:.0f} heads",
    ),
    "heads": _Axis(
        "attention heads",
        lambda run: _heads(run),
        lambda run: (_width(run), _layers(run), _context(run)),
        "width {:,.0f}, {:.0f} layers, {:,.0f} tokens",
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
        raise SelattnError(f"no record has a loss of {name!r} over training: give records of several runs")
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

    A point is a mean over seeds, a bar reaches from the least to the most; a line joins runs alike in all else, and a
    panel says what is fixed in it. Runs that are alike with no line are left to the other panels.
    """
    runs = [run for record in records for run in _runs(record) if name in run.get("evaluation", {})]
    if not runs:
        raise SelattnError("no record has a loss to draw: give training records")
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
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    if title:
        heading(figure, title)
    return figure


def _differs(runs: Sequence[Record], what: str) -> bool:
    """Whether some runs differ in this and are alike in all else."""
    return bool(_with_lines(runs, _AGAINST[what]))


def _with_lines(runs: Sequence[Record], axis: _Axis) -> list[Any]:
    """What runs that make up a line have in common, a line each."""
    groups: dict[Any, dict[str, set[float]]] = {}
    for run in runs:
        groups.setdefault(axis.alike(run), {}).setdefault(_attention(run), set()).add(axis.value(run))
    return [alike for alike, kinds in groups.items() if any(len(values) > 1 for values in kinds.values())]


def _scaling_panel(axes: Axes, runs: Sequence[Record], labels: Sequence[str], what: str, name: str) -> None:
    axis = _AGAINST[what]
    groups = _with_lines(runs, axis) or list(dict.fromkeys(axis.alike(run) for run in runs))
    shown = [run for run in runs if axis.alike(run) in groups]
    for number, label in enumerate(labels):
        style: dict[str, Any] = {
            "color": COLORS[number % len(COLORS)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 5,
        }
        axes.plot([], [], linewidth=1.3, label=label, **style)  # for the legend: not every panel has every kind
        for line, alike in enumerate(groups):
            points: dict[float, list[float]] = {}
            for run in shown:
                if _attention(run) == label and axis.alike(run) == alike:
                    points.setdefault(axis.value(run), []).append(run["evaluation"][name]["loss"])
            _line(axes, points, {**style, "linestyle": LINES[line % len(LINES)]})
    said = [axis.words.format(*fixed) for fixed, *_ in groups]
    if len({tuple(training) for _, *training in groups}) > 1:
        said = [
            f"{each}, {steps:,} steps of {source}" for each, (_, source, _, steps) in zip(said, groups, strict=True)
        ]
    axes.set_title(said[0] if len(said) == 1 else "", loc="left", fontsize=8)
    if len(said) > 1:
        marks = [Line2D([], [], color="0.3", linestyle=LINES[line % len(LINES)]) for line in range(len(said))]
        axes.legend(marks, said, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({axis.value(run) for run in shown}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.3g}" if x < 1000 else f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(axis.label)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.15)


def _line(axes: Axes, points: Mapping[float, Sequence[float]], style: dict[str, Any]) -> None:
    """The means over seeds of one line, with bars where there are several seeds."""
    sizes = sorted(points)
    means = [statistics.fmean(points[size]) for size in sizes]
    if len(sizes) < 2:
        style = {**style, "linestyle": "none"}
    if sizes:
        axes.plot(sizes, means, linewidth=1.3, **style)
    for size, mean in zip(sizes, means, strict=True):
        if len(points[size]) > 1:
            low, high = mean - min(points[size]), max(points[size]) - mean
            axes.errorbar([size], [mean], [[low], [high]], color=style["color"], capsize=2, linewidth=1)


def _runs(record: Record) -> list[Record]:
    """The runs of a record; a training record is one run."""
    if "runs" in record:
        return list(record["runs"])
    if "run" in record and "evaluation" in record:
        return [{**record, "run": record["run"]["name"], "config": record["run"]}]
    raise SelattnError("this record holds no training runs: give a training_record.json")


def _model(run: Record) -> Record:
    return dict(run["config"].get("model", {}))


def _context(run: Record) -> int:
    return int(run["config"].get("data", {}).get("context", 0))


def _heads(run: Record) -> int:
    return int(_model(run).get("num_attention_heads", 1))


def _layers(run: Record) -> int:
    return int(_model(run).get("num_hidden_layers", 0))


def _width(run: Record) -> int:
    return int(_model(run).get("hidden_size", 0))


def _attention(run: Record) -> str:
    return attention_kind(_model(run))
