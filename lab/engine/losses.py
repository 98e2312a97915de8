"""Tables of losses as data: trained models side by side, each compared with another in a claim."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from lab.engine.experiment import SCALES, Experiment, Need, with_seeds
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.scales import PAIR, SELECTIVE, STANDARD, Scale, scale_of
from selattn.training.config import RunConfig
from selattn.views.plot.style import COLORS, MARKERS, heading, new_figure, styled

ALIKE = 0.005  # nats: losses that differ by less are as good as the same
Papers = Mapping[int, tuple[float, float]]  # d: the paper's loss without a setting, and with it
Rows = Mapping[str, dict[str, Any]]  # settings of `Scale.run` by the name of the row


@dataclass(frozen=True)
class Variant:
    """A model of the table.

    Attributes:
        row, column: where its loss stands.
        run: how it is trained.
        paper: the paper's loss.
        x: where its row stands on the axis of a figure; None without one.
    """

    row: str
    column: str
    run: RunConfig
    paper: float | None = None
    x: float | None = None

    @property
    def name(self) -> str:
        """The name of the need."""
        return f"{self.row} | {self.column}"


@dataclass(frozen=True)
class Less:
    """The claim that one model has a smaller loss than another: places in the table, and the paper's difference.

    Attributes:
        text: the claim.
        these: row and column of the model that is to have the smaller loss.
        those: of the other.
        paper: how much smaller it is in the paper.
        by: at least by so much.
    """

    text: str
    these: tuple[str, str]
    those: tuple[str, str]
    paper: float | None = None
    by: float = 0.0


class LossCells:
    """The losses of a table, for claims that are more than a comparison of two."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = {(cell.row, cell.column): cell.values for cell in cells}

    def at(self, row: str, column: str) -> Values:
        """One for each seed."""
        return self._cells[row, column]

    def gap(self, row: str) -> Values:
        """Standard less selective, for each seed."""
        return differences(self.at(row, STANDARD), self.at(row, SELECTIVE))


More = Callable[[Scale, LossCells], Sequence[Claim]]


def loss_table(
    name: str,
    paper: str,
    sentence: str,
    *,
    variants: Callable[[Scale], Sequence[Variant]],
    claims: Callable[[Scale], Sequence[Less]] = lambda scale: (),
    more: More = lambda scale, losses: (),
    notes: Sequence[str] = (),
    axis: str | None = None,
    scales: tuple[str, ...] = SCALES,
) -> Experiment:
    """An experiment whose table has the last validation loss of every model, and whose claims compare them.

    Args:
        name, paper, sentence, scales: see `Experiment`.
        variants: the models at a scale.
        claims: that one has a smaller loss than another.
        more: claims of another kind.
        notes: below the table.
        axis: what the rows of a figure stand for; None without a figure.
    """

    def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
        return with_seeds({each.name: each.run for each in variants(scale)}, seeds)

    def evaluate(lab: Lab) -> Measured:
        listed = variants(lab.scale)
        cells = tuple(Cell(each.row, each.column, lab.losses(each.name), each.paper) for each in listed)
        return Measured(cells, details={"x": {each.row: each.x for each in listed if each.x is not None}, "axis": axis})

    def conclude(record: Reproduction) -> Reproduction:
        scale, losses = scale_of(record.scale, record.settings), LossCells(record.cells)
        made = [
            Claim(
                each.text,
                differences(losses.at(*each.those), losses.at(*each.these)),
                _difference(each.those, each.these),
                than=each.by,
                paper=each.paper,
            )
            for each in claims(scale)
        ]
        diverged = [
            f"{model.name} diverged at step {model.diverged}." for model in record.models if model.diverged is not None
        ]
        said = ("Losses are nats per token on held-out text.", *notes, *diverged)
        return dataclasses.replace(record, claims=(*made, *more(scale, losses)), notes=said)

    figure = draw_lines if axis else None
    return Experiment(name, paper, sentence, needs, evaluate, figure, scales, losses_only=True, conclude=conclude)


def pair_table(
    name: str,
    paper: str,
    sentence: str,
    rows: Callable[[Scale], Rows],
    text: str,
    *,
    on: Callable[[Scale], Scale] = lambda scale: scale,
    gains: Mapping[str, float] | None = None,
    papers: Mapping[tuple[str, object], float] | None = None,
    axis: tuple[str, str] | None = None,
    more: More = lambda scale, losses: (),
    notes: Sequence[str] = (),
) -> Experiment:
    """A standard and a selective model in each row, and the claim that the selective one has the smaller loss.

    Args:
        name, paper, sentence, more, notes: see `loss_table`.
        rows: the settings of each row.
        text: the claim, with a place for the row.
        on: the scale with another text or vocabulary.
        gains: how much smaller it is in the paper, by the row without its positions.
        papers: the paper's losses, by kind and the row's place on the axis.
        axis: the setting that a figure is drawn over, and what it is called.
    """

    def variants(scale: Scale) -> list[Variant]:
        listed = []
        for row, own in rows(scale).items():
            x = None if axis is None else own[axis[0]]
            for kind in PAIR:
                listed.append(Variant(row, kind, on(scale).run(kind, **own), (papers or {}).get((kind, x)), x))
        return listed

    def claims(scale: Scale) -> list[Less]:
        return [
            Less(text.format(row=row), (row, SELECTIVE), (row, STANDARD), (gains or {}).get(row.partition(",")[0]))
            for row in rows(scale)
        ]

    label = None if axis is None else axis[1]
    return loss_table(name, paper, sentence, variants=variants, claims=claims, more=more, notes=notes, axis=label)


def switch_table(
    name: str,
    paper: str,
    sentence: str,
    setting: str,
    off: str,
    papers: Papers,
    text: str,
    *,
    by: float = 0.0,
    steps: int | None = None,
    notes: Sequence[str] = (),
) -> Experiment:
    """Selective models without a setting and with it, as usual, and the claim that the usual one has the smaller loss.

    Args:
        name, paper, sentence, notes: see `loss_table`.
        setting: the field of the model that is switched off.
        off: the column of the models without it.
        papers: the paper's losses.
        text: the claim, with a place for the row.
        by: see `Less`.
        steps: of the runs at the paper's scale.
    """

    def variants(scale: Scale) -> list[Variant]:
        listed = []
        long = steps if scale.name == "paper" else None
        for positions, added in by_positions(scale).items():
            for d in papers if scale.name == "paper" else (scale.d,):
                values = papers.get(d, (None, None))
                for column, on, value in zip((off, SELECTIVE), (False, True), values, strict=True):
                    run = scale.run(SELECTIVE, d=d, positions=positions, steps=long, **{setting: on})
                    listed.append(Variant(f"d={d}{added}", column, run, value))
        return listed

    def claims(scale: Scale) -> list[Less]:
        return [
            Less(text.format(row=row), (row, SELECTIVE), (row, off), paper_difference(papers, d), by)
            for row, d in rows_by_size(scale, papers).items()
        ]

    return loss_table(name, paper, sentence, variants=variants, claims=claims, notes=notes)


def rows_by_size(scale: Scale, sizes: Iterable[int]) -> dict[str, int]:
    """The rows `d=3, rotary` of a table and their d: the paper's sizes, or at other scales that of the scale."""
    return {
        f"d={d}{added}": d
        for added in by_positions(scale).values()
        for d in (sizes if scale.name == "paper" else (scale.d,))
    }


def paper_difference(losses: Papers, d: int) -> float:
    """The first of the paper's two losses less the second, at a size; of one it has not, the mean of its sizes."""
    gaps = {size: first - second for size, (first, second) in losses.items()}
    return gaps.get(d, statistics.fmean(gaps.values()))


def by_positions(scale: Scale) -> dict[str, str]:
    """The suffix of a row's name for each kind of positions that is tried at a scale."""
    added = {"rotary": ", rotary", "learned": ", learned positions"}
    return {each: added[each] if scale.name == "laptop" else "" for each in scale.tried}


def even_heads(scale: Scale) -> int:
    """As many heads as d, or one more: for tables that share heads out in halves."""
    return scale.d + scale.d % 2


@styled
def draw_lines(record: Reproduction) -> Figure:
    """A line for each column over the rows' place on the axis; a bar reaches over the seeds."""
    places = record.details["x"]
    figure = new_figure(5.6, 3.8)
    axes = figure.subplots()
    columns = dict.fromkeys(cell.column for cell in record.cells)
    for number, column in enumerate(sorted(columns, key=lambda column: column != STANDARD)):  # one color everywhere
        groups: dict[str, list[tuple[float, list[float]]]] = {}
        for cell in record.cells:
            known = [value for value in cell.values if value is not None]
            if cell.column == column and cell.row in places and known:
                groups.setdefault(cell.row.partition(",")[2], []).append((places[cell.row], known))
        for line, (group, points) in enumerate(groups.items()):
            style: dict[str, Any] = {
                "color": COLORS[number],
                "marker": MARKERS[number],
                "linestyle": ("-", "--")[line % 2],
            }
            points.sort()
            means = [statistics.fmean(known) for _, known in points]
            axes.plot([x for x, _ in points], means, label=f"{column}{',' + group if group else ''}", **style)
            for (x, known), mean in zip(points, means, strict=True):
                if len(known) > 1:
                    ends = [[mean - min(known)], [max(known) - mean]]
                    axes.errorbar([x], [mean], ends, color=COLORS[number], capsize=2, linewidth=1)
    axes.set_xlabel(record.details["axis"])
    axes.set_ylabel("loss, nats per token")
    axes.set_xticks(sorted(set(places.values())))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    runs = "one run" if len(record.seeds) == 1 else f"{len(record.seeds)} seeds"
    heading(figure, f"{record.experiment} ({record.scale} scale, {runs})")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


def _difference(those: tuple[str, str], these: tuple[str, str]) -> str:
    """Which losses are compared: by their columns in one row, by their rows in one column, or by both."""
    shared = [at for at in (0, 1) if those[at] == these[at]]
    first, second = (", ".join(part for at, part in enumerate(each) if at not in shared) for each in (those, these))
    return f"loss of {first} less that of {second}, nats"
