"""Figures of losses: against the size of the cache, over training, against the size of the model, along a search."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator, StrMethodFormatter

from selattn.errors import SelattnError
from selattn.utils.typed import to_json
from selattn.views.plot.style import COLORS, MARKERS, heading, new_figure, plain_powers, shades, styled

Record = Mapping[str, Any]

LINES: Any = ("-", "--", ":", "-.")  # of runs that differ in what a panel keeps fixed


class _Axis(NamedTuple):
    """The horizontal axis of a loss."""

    label: str
    value: str  # the name of a run's size, see `_sizes`
    fixed: tuple[str, ...]  # the sizes that runs of one line have in common
    words: str  # how to say these

    def alike(self, run: Record) -> Any:
        """Equal for runs that are alike in all but the value and the kind of attention."""
        data, schedule, sizes = run["config"].get("data", {}), run["config"].get("schedule", {}), _sizes(run)
        shared = tuple(sizes[name] for name in self.fixed)
        return shared, data.get("source"), data.get("vocabulary"), schedule.get("steps")


_AGAINST = {
    "size": _Axis("parameters, millions", "parameters", ("context", "head size"), "{:,.0f} tokens, heads of size {:g}"),
    "context": _Axis(
        "context size, tokens",
        "context",
        ("width", "layers", "heads"),
        "width {:,.0f}, {:.0f} layers, {:.0f} heads",
    ),
    "heads": _Axis(
        "attention heads", "heads", ("width", "layers", "context"), "width {:,.0f}, {:.0f} layers, {:,.0f} tokens"
    ),
}


def _sizes(run: Record) -> dict[str, float]:
    model = run["config"].get("model", {})
    width, heads = int(model.get("hidden_size", 0)), int(model.get("num_attention_heads", 1))
    return {
        "parameters": run["parameters"] / 1e6,
        "context": int(run["config"].get("data", {}).get("context", 0)),
        "width": width,
        "layers": int(model.get("num_hidden_layers", 0)),
        "heads": heads,
        "head size": width / heads,
    }


@styled
def tradeoff(record: Any) -> Figure:
    """Log-perplexity against KV size, from a record of `selattn eval --curve`; a panel for each text.

    Smaller caches are to the right. Of several seeds the lines are means, and a band reaches from the smallest to the
    largest.
    """
    record = to_json(record)
    if "curves" not in record or "texts" not in record:
        raise SelattnError("a trade-off is drawn from a record of 'selattn eval --curve'")
    texts, context = list(record["texts"]), record["context"]
    figure = new_figure(max(6.4, 4.8 * len(texts)), 4.8)
    panels = figure.subplots(1, len(texts), squeeze=False)[0]
    for text, axes in zip(texts, panels, strict=True):
        for number, curve in enumerate(record["curves"]):
            _draw_curve(axes, curve, text, COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)])
        if record["baseline"] is not None:
            base = record["baseline"]
            axes.axhline(base["loss"][text], color="0.4", linestyle=":", label=f"{base['name']}, whole cache")
        axes.set_xscale("log", base=2)
        axes.invert_xaxis()
        plain_powers(axes.xaxis)
        axes.set_xlabel("KV size: tokens that a layer holds (mean)")
        axes.set_title(text, loc="left", fontsize=9)
        above = axes.secondary_xaxis("top")
        above.set_xlabel("memory factor")
        plain_powers(above.xaxis, "{:.3g}", lambda size: context / size)
    panels[0].set_ylabel("log-perplexity, nats per token")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_curve(axes: Any, curve: Mapping[str, Any], text: str, color: str, marker: str) -> None:
    points = sorted(curve["points"], key=lambda point: -point["kv_size"])
    sizes = [point["kv_size"] for point in points]
    losses = [point["loss"][text] for point in points]
    alone = len(points) == 1
    style = {"color": color, "marker": marker, "markersize": 7 if alone else 4, "linewidth": 1.3}
    axes.plot(sizes, losses, linestyle="none" if alone else "-", label=curve["name"], **style)
    if "losses" in points[0]:
        ends = [(min(point["losses"][text]), max(point["losses"][text])) for point in points]
        if alone:
            axes.plot(sizes * 2, ends[0], color=color, linewidth=1.3)
        else:
            axes.fill_between(sizes, *zip(*ends, strict=True), color=color, alpha=0.13, linewidth=0)


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
    axes.set_ylabel(f"{name.replace('_', ' ')} loss, nats per token")
    _over_steps(axes, title)
    axes.legend(frameon=False)
    return figure


@styled
def scaling(
    *records: Record, against: Sequence[str] | None = None, name: str = "validation", title: str | None = None
) -> Figure:
    """Loss against model size, context size and number of heads: a panel for each that differs between the runs.

    A point is a mean over seeds, a bar reaches from the least to the most. A line joins runs that are alike in all
    else, which its panel says; runs that are on no line of a panel are left out there.
    """
    runs = [run for record in records for run in _runs(record) if name in run.get("evaluation", {})]
    if not runs:
        raise SelattnError("no record has a loss to draw: give training records")
    for what in against or ():
        if what not in _AGAINST:
            raise SelattnError(f"a loss is drawn against {', '.join(_AGAINST)}, not {what!r}")
    chosen = list(against or [what for what, axis in _AGAINST.items() if _with_lines(runs, axis)] or ["size"])
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


def _with_lines(runs: Sequence[Record], axis: _Axis) -> list[Any]:
    """For each line that several runs make up: what these have in common."""
    groups: dict[Any, dict[str, set[float]]] = {}
    for run in runs:
        groups.setdefault(axis.alike(run), {}).setdefault(_attention(run), set()).add(_sizes(run)[axis.value])
    return [alike for alike, kinds in groups.items() if any(len(values) > 1 for values in kinds.values())]


def _scaling_panel(axes: Axes, runs: Sequence[Record], labels: Sequence[str], what: str, name: str) -> None:
    axis = _AGAINST[what]
    groups = _with_lines(runs, axis) or list(dict.fromkeys(axis.alike(run) for run in runs))
    shown = [run for run in runs if axis.alike(run) in groups]
    for number, label in enumerate(labels):
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        style: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5}
        axes.plot([], [], linewidth=1.3, label=label, **style)  # for the legend: not every panel has every kind
        for line, alike in enumerate(groups):
            points: dict[float, list[float]] = {}
            for run in shown:
                if _attention(run) == label and axis.alike(run) == alike:
                    points.setdefault(_sizes(run)[axis.value], []).append(run["evaluation"][name]["loss"])
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
    axes.set_xticks(sorted({_sizes(run)[axis.value] for run in shown}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.3g}" if x < 1000 else f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(axis.label)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.15)


def _line(axes: Axes, points: Mapping[float, Sequence[float]], style: dict[str, Any]) -> None:
    """The means over seeds of one line, with a bar where there are several seeds."""
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


def _attention(run: Record) -> str:
    return attention_kind(run["config"].get("model", {}))


def attention_kind(model: Mapping[str, Any]) -> str:
    """The attention of a model in a few words, from the settings of its training: `selective, memory loss`."""
    kind = " + ".join(dict.fromkeys(str(kind) for kind in model.get("attention", ["selective"])))
    return f"{kind}, memory loss" if model.get("memory_epsilon") else kind


@styled
def losses_of_log(log: Sequence[Record], title: str | None = None) -> Figure:
    """The loss over the steps: of the training batches, and of each set that is held out."""
    trained = [(record["step"], record["loss"]) for record in log if "loss" in record]
    sets: dict[str, list[tuple[int, float]]] = {}
    for record in log:
        for name, found in record.get("evaluation", {}).items():
            sets.setdefault(name, []).append((record["step"], found["loss"]))
    if not trained and not sets:
        raise SelattnError("this log has no losses yet: let the run take some steps")
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    if trained:
        axes.plot(*zip(*trained, strict=True), color="0.6", linewidth=0.9, label="training")
    for number, (name, points) in enumerate(sets.items()):
        style: dict[str, Any] = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4, "linewidth": 1.3}
        axes.plot(*zip(*points, strict=True), label=name.replace("_", " "), **style)
    axes.set_ylabel("loss, nats per token")
    _over_steps(axes, title)
    axes.legend(frameon=False)
    return figure


@styled
def kept_by_layer(log: Sequence[Record], title: str | None = None) -> Figure:
    """The share of a sequence that each layer keeps, over the steps; 1 is all of it, as in standard attention."""
    found = [(record["step"], record["kept"]) for record in log if record.get("kept")]
    if not found:
        raise SelattnError("this log does not say what layers keep: no layer of the model selects")
    figure = new_figure(6.4, 3.2)
    axes = figure.subplots()
    layers = [layer for layer, share in enumerate(found[0][1]) if share is not None]
    for layer, shade in zip(layers, shades(len(layers)), strict=True):
        points = [(step, kept[layer]) for step, kept in found]
        axes.plot(*zip(*points, strict=True), color=shade, linewidth=1.3, label=str(layer))
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("kept, share of the sequence")
    _over_steps(axes, title)
    figure.legend(loc="outside right upper", title="layer", frameon=False, ncols=-(-len(layers) // 14), fontsize=8)
    return figure


@styled
def search(record: Any, title: str | None = None) -> Figure:
    """Loss against the memory factor, and below it K of each layer, from a record of `selattn prune`."""
    found = to_json(record)
    what = title or f"{found['model']}, {found['policy']}"
    return path_of_search(found["path"], found["path"][found["iteration"]], found["search_limit"], what)


@styled
def path_of_search(path: Sequence[Any], best: Any, limit: float | None = None, title: str = "") -> Figure:
    """The same from the iterations; `best` is the chosen one, `limit` the largest loss allowed."""
    steps: list[Record] = to_json(list(path))
    best = to_json(best)
    figure = new_figure(7.0, 5.2)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    factors = [step["factor"] for step in steps]
    top.plot(factors, [step["loss"] for step in steps], color=COLORS[0])
    top.plot([best["factor"]], [best["loss"]], "o", color=COLORS[1], label=f"chosen: {best['factor']:.1f} times less")
    if limit is not None and limit < math.inf:
        top.axhline(limit, color="0.4", linestyle=":", label=f"threshold {limit:.4f}")
    top.set_ylabel("loss on the search set, nats per token")
    top.legend(frameon=False)
    top.set_title(title, loc="left", fontsize=9, weight="bold")
    layers = len(best["budgets"])
    for layer, shade in enumerate(shades(layers)):
        budgets = [step["budgets"][layer] for step in steps]
        bottom.step(factors, budgets, where="post", color=shade, linewidth=1.3, label=str(layer))
    bottom.axvline(best["factor"], color=COLORS[1], linewidth=0.8, linestyle="--")
    bottom.set_ylabel("K of each layer")
    bottom.set_xlabel("memory factor: layers · N / sum of K")
    bottom.set_xscale("log", base=2)
    bottom.set_yscale("log", base=2)
    plain_powers(bottom.xaxis)
    plain_powers(bottom.yaxis)
    columns = math.ceil(layers / 16)
    handles, labels = bottom.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right lower", title="layer", ncols=columns, fontsize=7, frameon=False)
    return figure


def _over_steps(axes: Any, title: str | None) -> None:
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("step")
    axes.set_title(title or "", loc="left", fontsize=9, weight="bold")
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
