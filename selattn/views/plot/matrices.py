"""Figures of N x N triangles, one panel for each layer: F, its mean, what is kept, and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize, PowerNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import NullLocator

from selattn.errors import SelattnError
from selattn.utils.typed import flat
from selattn.views.plot.curves import attention_kind
from selattn.views.plot.style import (
    ATTENTION,
    FUTURE,
    GREEN,
    MASKING,
    MASKING_BLUE,
    WIDE,
    check_layers,
    heading,
    key,
    masking_norm,
    masking_ticks,
    new_figure,
    panel_grid,
    panels,
    square,
    styled,
    token_axes,
)

if TYPE_CHECKING:
    from selattn.evaluation.traces import Floats, MeanF, Trace

FEW = 40  # tokens that can stand beside their rows and columns
BAR = 0.75  # inches of a color bar with its numbers


@styled
def masking(trace: Trace, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """F of each layer: how much token j is masked for row i. Greener is lower: less masked."""
    chosen = _selecting(check_layers(layers, trace.layers), trace.kinds)
    return _all_layers(
        {layer: trace.F(layer) for layer in chosen}, title or f"{trace.model}: F, how much is masked", trace.tokens
    )


@styled
def masking_mean(mean: MeanF, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """F of each layer, a mean over many texts."""
    chosen = _selecting_of(mean, layers)
    name = title or f"{mean.model}: F, how much is masked, mean of {mean.rows:,} texts"
    return _all_layers({layer: mean.F(layer) for layer in chosen}, name, [])


@styled
def stability(first: MeanF, second: MeanF, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """The means of two training runs side by side: the first greener where less is masked, the second bluer.

    If the trainings have records, the title says whether they are two seeds of one recipe, or in what they differ.
    """
    if (first.layers, first.size) != (second.layers, second.size):
        raise SelattnError(
            f"two runs of one kind are compared: {first.model} has {first.layers} layers and {first.size} tokens, "
            f"{second.model} {second.layers} and {second.size}"
        )
    chosen = [layer for layer in _selecting_of(first, layers) if second.packed[layer] is not None]
    found = [{layer: mean.F(layer) for layer in chosen} for mean in (first, second)]
    highest = max(float(F.max()) for runs in found for F in runs.values())
    columns, inches = panel_grid(len(chosen), first.size, named=False)
    rows = -(-len(chosen) // columns)
    figure = new_figure(_width(columns, inches) + BAR, 2 * (inches + 0.3) * rows + 1.2)
    heading(
        figure,
        title or f"F in two models, means of {first.rows:,} and {second.rows:,} texts{_trainings(first, second)}",
    )
    halves = figure.subfigures(2, 1, squeeze=False)[:, 0]
    for half, mean, values, colors in zip(halves, (first, second), found, (MASKING, MASKING_BLUE), strict=True):
        half.suptitle(_trained(mean), x=0.01, ha="left", fontsize=8)
        _triangles(half, values, columns, colors, highest)
    return figure


def _trainings(first: MeanF, second: MeanF) -> str:
    """A second line of the title: the settings, but for the seed, in which the trainings differ; empty if unknown."""
    from selattn.training.record import deciding_settings

    if first.run is None or second.run is None:
        return ""
    one, two = (dict(flat(deciding_settings(each))) for each in (first.run, second.run))
    names = [name for name, value in {**one, **two}.items() if name != "seed" and value != {}]
    unlike = [name for name in names if one.get(name) != two.get(name)]
    if not unlike:
        return "\ntwo trainings of one recipe"
    more = f" and {len(unlike) - 2} more settings" if len(unlike) > 2 else ""
    return f"\nnot two seeds of one recipe: the trainings differ in {', '.join(unlike[:2])}{more}"


def _trained(mean: MeanF) -> str:
    """The model's name, its attention and its seed, as far as they are known."""
    if mean.run is None:
        return mean.model
    known = f"{attention_kind(mean.run.get('model', {}))}, seed {mean.run.get('seed')}"
    return known if mean.model == known else f"{mean.model}: {known}"


@styled
def kept(trace: Trace, run: int = 0, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """The tokens in the cache when row i attends, layer by layer; evicted tokens are white."""
    chosen = check_layers(layers, trace.layers)
    trace.evicted_at(run)  # which says what to do if there is none
    done = trace.runs[run]
    budgets, size = done["budgets"], trace.size
    factor = len(budgets) * size / sum(min(k, size) for k in budgets)
    columns, inches = panel_grid(len(chosen), size, named=False)
    rows = -(-len(chosen) // columns)
    figure = new_figure(_width(columns, inches), (inches + 0.3) * rows + 0.75)
    heading(figure, title or f"{trace.model}: kept in the cache ({done['policy']}, {factor:.1f} times less memory)")
    colors = ListedColormap(["#ffffff", GREEN])
    axes = panels(figure, len(chosen), columns)
    for place, (panel, layer) in enumerate(zip(axes, chosen, strict=True)):
        values = trace.kept(layer, run).astype(float)
        square(panel, values, colors, Normalize(0, 1), f"layer {layer}, K = {budgets[layer]:,}")
        _few_labels(panel, place, columns, len(chosen))
    key(figure, [("held when row i attends", GREEN), ("evicted", "#ffffff"), ("yet to come", FUTURE)])
    return figure


@styled
def attention(*traces: Trace, layers: Sequence[int] | None = None, title: str | None = None) -> Figure:
    """Attention of each layer, a mean over the heads; of several models side by side.

    Where layers are few, each model has a column, and each layer a row; else models stand below each other.
    """
    if not traces:
        raise SelattnError("give at least one trace")
    chosen = [check_layers(layers, trace.layers) for trace in traces]
    most, named = max(map(len, chosen)), max(trace.size for trace in traces) <= FEW
    beside = len(traces) > 1 and most <= 4
    count = len(traces) if beside else most
    columns, inches = panel_grid(count, max(trace.size for trace in traces), named)
    columns = count if beside else columns
    inches = min(inches, (WIDE - BAR) / columns - 0.4) if beside and not named else inches
    rows = [most] if beside else [-(-len(each) // columns) for each in chosen]
    figure = new_figure(_width(columns, inches, named) + BAR, sum((inches + 0.5) * n + 0.35 for n in rows) + 0.3)
    heading(figure, title or "Attention, a mean over the heads")
    if beside:
        grid = figure.subplots(most, columns, squeeze=False)
        for column, trace, each in zip(grid.T, traces, chosen, strict=True):
            for axes in column[len(each) :]:
                axes.axis("off")
            for place, (axes, layer) in enumerate(zip(column, each, strict=False)):
                _attention(axes, trace, layer, f"{trace.model}\n" if place == 0 else "", named)
        shown = list(grid.flat)
    else:
        blocks = figure.subfigures(len(traces), 1, squeeze=False, height_ratios=rows)[:, 0]
        shown = []
        for block, trace, each in zip(blocks, traces, chosen, strict=True):
            block.suptitle(trace.model, x=0.01, ha="left", fontsize=8)
            own = panels(block, len(each), columns)
            for place, (axes, layer) in enumerate(zip(own, each, strict=True)):
                _attention(axes, trace, layer, "", named)
                if not named:
                    _few_labels(axes, place, columns, len(each))
            _attention_bar(block, own)
        return figure
    _attention_bar(figure, shown)
    return figure


def _attention(axes: Axes, trace: Trace, layer: int, above: str, named: bool) -> None:
    title = f"{above}layer {layer}, {trace.kinds[layer]} attention"
    square(axes, trace.weights(layer), ATTENTION, PowerNorm(0.5, 0.0, 1.0), title)
    if named:
        token_axes(axes, trace.tokens)


def _attention_bar(figure: Figure | SubFigure, axes: Sequence[Axes]) -> None:
    image = next(image for each in axes for image in each.images)
    bar = figure.colorbar(image, ax=list(axes), shrink=0.5, aspect=35, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.set_label("share of the row's attention", fontsize=7)
    bar.ax.set_yticklabels(["0", "0.05", "0.25", "0.5", "1"], fontsize=7)


def _all_layers(found: dict[int, Floats], title: str, tokens: Sequence[str]) -> Figure:
    named = 0 < len(tokens) <= FEW
    columns, inches = panel_grid(len(found), len(tokens), named)
    rows = -(-len(found) // columns)
    figure = new_figure(_width(columns, inches, named) + BAR, (inches + (0.5 if named else 0.3)) * rows + 0.6)
    heading(figure, title)
    _triangles(figure, found, columns, MASKING, max(float(F.max()) for F in found.values()), tokens if named else ())
    return figure


def _width(columns: int, inches: float, named: bool = False) -> float:
    """Of a figure: its panels, and the numbers or tokens beside them."""
    return max(3.6, columns * (inches + (0.35 if named else 0.1)) + 0.4)


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
