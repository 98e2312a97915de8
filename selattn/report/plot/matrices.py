"""Figures of N x N triangles, one panel for each layer: F, its mean, what is kept, and attention."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import NullLocator

from selattn.errors import SelattnError
from selattn.report.mean import MeanF
from selattn.report.packed import Floats
from selattn.report.plot.style import (
    ATTENTION,
    GREEN,
    MASKING,
    MASKING_BLUE,
    check_layers,
    columns_for,
    masking_norm,
    masking_ticks,
    new_figure,
    panels,
    square,
    styled,
    token_axes,
)
from selattn.report.trace import Trace

PANEL = 1.75  # inches
FEW = 40  # tokens that can stand beside their rows and columns


@styled
def masking(trace: Trace, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """F of each layer: how much row i finds token j masked. Greener is lower: less masked."""
    chosen = _selecting(check_layers(layers, trace.layers), trace.kinds)
    return _all_layers({layer: trace.F(layer) for layer in chosen}, title or f"{trace.model}: F", trace.tokens)


@styled
def masking_mean(mean: MeanF, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """F of each layer, a mean over many texts."""
    chosen = _selecting_of(mean, layers)
    name = title or f"{mean.model}: F, mean of {mean.rows:,} texts"
    return _all_layers({layer: mean.F(layer) for layer in chosen}, name, [])


@styled
def stability(first: MeanF, second: MeanF, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """The means of two training runs side by side: the first greener where less is masked, the second bluer."""
    if (first.layers, first.size) != (second.layers, second.size):
        raise SelattnError(
            f"two runs of one kind are compared: {first.model} has {first.layers} layers and {first.size} tokens, "
            f"{second.model} {second.layers} and {second.size}"
        )
    chosen = [layer for layer in _selecting_of(first, layers) if second.packed[layer] is not None]
    found = [{layer: mean.F(layer) for layer in chosen} for mean in (first, second)]
    highest = max(float(F.max()) for runs in found for F in runs.values())
    columns = columns_for(len(chosen), 6)
    rows = -(-len(chosen) // columns)
    figure = new_figure(max(5.0, PANEL * columns + 1.2), 2 * (PANEL + 0.1) * rows + 1.1)
    figure.suptitle(
        title or f"F in two training runs, means of {first.rows:,} and {second.rows:,} texts", x=0.01, ha="left"
    )
    halves = figure.subfigures(2, 1, squeeze=False)[:, 0]
    for half, mean, values, colors in zip(halves, (first, second), found, (MASKING, MASKING_BLUE), strict=True):
        half.suptitle(mean.model, x=0.01, ha="left", fontsize=8)
        _triangles(half, values, columns, colors, highest)
    return figure


@styled
def kept(trace: Trace, run: int = 0, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """What remains in the cache when row i attends, layer by layer; white is what has been evicted."""
    chosen = check_layers(layers, trace.layers)
    trace.evicted_at(run)  # which says what to do if there is none
    done = trace.runs[run]
    budgets, size = done["budgets"], trace.size
    factor = len(budgets) * size / sum(min(k, size) for k in budgets)
    columns = columns_for(len(chosen))
    rows = -(-len(chosen) // columns)
    figure = new_figure(max(5.0, PANEL * columns + 0.5), (PANEL + 0.1) * rows + 0.6)
    name = title or f"{trace.model}: kept in the cache ({done['policy']}, {factor:.1f} times less memory)"
    figure.suptitle(name, x=0.01, ha="left", fontsize=9)
    colors = ListedColormap(["#ffffff", GREEN])
    axes = panels(figure, len(chosen), columns)
    for place, (panel, layer) in enumerate(zip(axes, chosen, strict=True)):
        square(
            panel,
            trace.kept(layer, run).astype(float),
            colors,
            Normalize(0, 1),
            f"layer {layer}, K = {budgets[layer]}",
        )
        _few_labels(panel, place, columns, len(chosen))
    return figure


@styled
def attention(*traces: Trace, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """Attention of each layer, a mean over the heads; of several models beside each other, one row of panels each."""
    if not traces:
        raise SelattnError("give at least one trace")
    chosen = [check_layers(layers, trace.layers) for trace in traces]
    columns = columns_for(max(map(len, chosen)), 6)
    few = max(trace.size for trace in traces) <= FEW
    panel = 3.1 if few else PANEL
    rows = [-(-len(each) // columns) for each in chosen]
    figure = new_figure(max(5.0, panel * columns + 1.1), sum((panel + 0.15) * count + 0.3 for count in rows))
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    norm = PowerNorm(0.5, 0.0, 1.0)
    blocks = figure.subfigures(len(traces), 1, squeeze=False, height_ratios=rows)[:, 0]
    for block, trace, each in zip(blocks, traces, chosen, strict=True):
        block.suptitle(trace.model, x=0.01, ha="left", fontsize=9)
        axes = panels(block, len(each), columns)
        for place, (axis, layer) in enumerate(zip(axes, each, strict=True)):
            image = square(
                axis, trace.weights(layer), ATTENTION, norm, f"layer {layer}, {trace.kinds[layer]} attention"
            )
            if few:
                token_axes(axis, trace.tokens)
            else:
                _few_labels(axis, place, columns, len(each))
        bar = block.colorbar(image, ax=axes, shrink=0.8, aspect=30, ticks=[0, 0.05, 0.25, 0.5, 1])
        bar.set_label("attention, mean of the heads", fontsize=7)
        bar.ax.set_yticklabels(["0", "0.05", "0.25", "0.5", "1"], fontsize=7)
    return figure


def _all_layers(found: dict[int, Floats], title: str, tokens: Sequence[str]) -> Figure:
    columns = columns_for(len(found))
    rows = -(-len(found) // columns)
    few = 0 < len(tokens) <= FEW
    panel = 3.1 if few else PANEL
    figure = new_figure(max(5.0, panel * columns + 1.1), (panel + 0.1) * rows + 0.45)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    _triangles(figure, found, columns, MASKING, max(float(F.max()) for F in found.values()), tokens if few else ())
    return figure


def _triangles(
    figure: Figure | SubFigure,
    found: dict[int, Floats],
    columns: int,
    colors: Colormap,
    highest: float,
    tokens: Sequence[str] = (),
) -> None:
    """F of each layer on one scale."""
    axes = panels(figure, len(found), columns)  # type: ignore[arg-type]  # a part of a figure has axes, too
    for place, (panel, (layer, F)) in enumerate(zip(axes, found.items(), strict=True)):
        image = square(panel, F, colors, masking_norm(highest), f"layer {layer}")
        if tokens:
            token_axes(panel, tokens)
        else:
            _few_labels(panel, place, columns, len(found))
    ticks = masking_ticks(highest)
    bar = figure.colorbar(image, ax=axes, shrink=0.85, ticks=ticks, aspect=30)
    bar.ax.set_yticks(ticks, [f"{tick:,.0f}" for tick in ticks], fontsize=7)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label("F: lower is less masked", fontsize=7)


def _few_labels(panel: Axes, place: int, columns: int, count: int) -> None:
    """Numbers beside the first panel of a row and below the last of a column only."""
    if place % columns:
        panel.set_yticklabels([])
    else:
        panel.set_ylabel("row i", fontsize=7, labelpad=1)
    if place + columns < count:
        panel.set_xticklabels([])
    else:
        panel.set_xlabel("token j", fontsize=7, labelpad=1)


def _selecting(chosen: Sequence[int], kinds: Sequence[str]) -> list[int]:
    found = [layer for layer in chosen if kinds[layer].split(":")[0] == "selective"]
    if not found:
        raise SelattnError("no layer of this model selects: it has no F; 'attention' shows what it reads")
    return found


def _selecting_of(mean: MeanF, layers: Sequence[int] | None) -> list[int]:
    kinds = ["standard" if packed is None else "selective" for packed in mean.packed]
    return _selecting(check_layers(layers, mean.layers), kinds)
