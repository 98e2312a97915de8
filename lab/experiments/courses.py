"""How losses and the gap between them develop with the number of training tokens."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from lab.engine.experiment import TITLES, Experiment, trio
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.scales import KINDS
from selattn.data import DocumentRows, PackedRows, read_tokenizer, store_for
from selattn.training.config import TextData
from selattn.training.folder import MODEL
from selattn.views.plot.style import COLORS, MARKERS, heading, new_figure, styled

Course = dict[int, Values]  # tokens -> the loss of each seed


def _losses_by_tokens(lab: Lab, name: str) -> Course:
    """Every evaluation that all seeds of a model have."""
    seeds = []
    for seed in lab.seeds:
        trained = lab.trained(name, seed)
        per_step = _step_tokens(trained.need.run.data, trained.need.run.batch.size)
        course = trained.evaluations()
        seeds.append({step * per_step if per_step else tokens: score.loss for step, tokens, score in course})
    shared = [tokens for tokens in seeds[0] if all(tokens in each for each in seeds)]
    return {tokens: tuple(each[tokens] for each in seeds) for tokens in shared}


def _pass_tokens(lab: Lab, name: str) -> int | None:
    """After how many training tokens a second pass over the text begins; None of a task."""
    trained = lab.trained(name, lab.seeds[0])
    data = trained.need.run.data
    if not isinstance(data, TextData):
        return None
    tokenizer = read_tokenizer(trained.folder / MODEL)
    layout = DocumentRows if data.layout == "documents" else PackedRows
    return len(layout(store_for(data.source, tokenizer, "train", data.reading()), data.context)) * data.context


def _evaluate(lab: Lab) -> Measured:
    """The losses of each kind at every evaluation, and the gap between standard and selective."""
    courses = {kind: _losses_by_tokens(lab, kind) for kind in KINDS}
    standard, selective, _ = courses.values()
    shared = [tokens for tokens in standard if all(tokens in each for each in courses.values())]
    gaps = {tokens: differences(standard[tokens], selective[tokens]) for tokens in shared}
    cells = []
    for tokens in shared:
        row = f"{tokens / 1e6:.1f}M tokens" if tokens >= 50_000 else f"{tokens:,} tokens"
        cells += [Cell(row, TITLES[kind], courses[kind][tokens]) for kind in KINDS]
        cells.append(Cell(row, "gap: standard less selective", gaps[tokens]))
    begins = _pass_tokens(lab, KINDS[0])
    last = shared[-1]
    notes = [
        "Losses are nats per token on held-out text; models of one seed see the same data in the same order.",
    ]
    if begins is not None:
        again = "; the second pass begins there" if begins < last else ", more than were read"
        notes.append(f"One pass over the text is {begins:,} tokens{again}.")
    details = {
        "kinds": {kind: [[tokens, list(values)] for tokens, values in each.items()] for kind, each in courses.items()},
        "pass_tokens": begins,
    }
    return Measured(tuple(cells), notes=tuple(notes), details=details)


def _concluding(claim: str, paper: float | None) -> Callable[[Reproduction], Reproduction]:
    """Whether there is a gap between the first two kinds, and whether it grows: on the whole, and in the last third."""

    def conclude(record: Reproduction) -> Reproduction:
        first, second = (
            {at: tuple(values) for at, values in points} for points in list(record.details["kinds"].values())[:2]
        )
        gaps = {at: differences(first[at], second[at]) for at in first if at in second}
        begin, end = min(gaps), max(gaps)
        late = min(gaps, key=lambda at: abs(at - end * 2 / 3))
        what = "gap at the end less that after {:.1f} million tokens, nats"
        claims = (
            Claim(claim, gaps[end], "standard's loss less selective's at the end, nats", paper=paper),
            Claim("The gap grows in training.", differences(gaps[end], gaps[begin]), what.format(begin / 1e6)),
            Claim("It still grows in the last third.", differences(gaps[end], gaps[late]), what.format(late / 1e6)),
        )
        return replace(record, claims=claims)

    return conclude


@styled
def draw_course(record: Reproduction) -> Figure:
    """Losses over tokens with a band over the seeds, and the gap below them."""
    figure = new_figure(6.4, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    kinds: Mapping[str, Any] = record.details["kinds"]
    for number, (kind, points) in enumerate(kinds.items()):
        style: dict[str, Any] = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4, "linewidth": 1.3}
        tokens = [at / 1e6 for at, _ in points]
        above.plot(tokens, [statistics.fmean(values) for _, values in points], label=TITLES[kind], **style)
        if len(record.seeds) > 1:
            ends = [(min(values), max(values)) for _, values in points]
            above.fill_between(tokens, *zip(*ends, strict=True), color=COLORS[number], alpha=0.2, linewidth=0)
    first, second = (dict(points) for points in list(kinds.values())[:2])
    shared = [at for at in first if at in second]
    for seed in range(len(record.seeds)):
        gaps = [first[at][seed] - second[at][seed] for at in shared]
        below.plot([at / 1e6 for at in shared], gaps, color=COLORS[1], linewidth=1.0, alpha=0.8)
    below.axhline(0.0, color="0.4", linestyle=":")
    begins = record.details["pass_tokens"]
    if begins is not None and shared and begins < shared[-1]:
        for axes in (above, below):
            axes.axvline(begins / 1e6, color="0.4", linestyle="--", linewidth=0.8)
        above.text(begins / 1e6, above.get_ylim()[1], " second pass", va="top", fontsize=7)
    above.set_ylabel("loss, nats per token")
    below.set_ylabel("gap, nats (a line a seed)")
    below.set_xlabel("training tokens, millions")
    above.legend(frameon=False)
    for axes in (above, below):
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
    heading(figure, f"{record.experiment}: standard beside selective attention over training ({record.scale} scale)")
    return figure


def _step_tokens(data: object, batch: int) -> int | None:
    """Tokens of a step, where every row is full; None for padded documents, whose log counts them."""
    return batch * data.context if isinstance(data, TextData) and data.layout == "packed" else None


def _course(
    name: str, paper: str, sentence: str, claim: str, positions: str, longer: int = 1, gap: float | None = None
) -> Experiment:
    """The three models with these positions, `longer` times as long as usual; `gap` is the paper's."""
    return Experiment(
        name,
        paper,
        sentence,
        lambda scale, seeds: trio(scale, seeds, positions=positions, steps=longer * scale.long_steps),
        _evaluate,
        draw_course,
        conclude=_concluding(claim, gap),
    )


EXPERIMENTS = (
    _course(
        "course",
        "open: training tokens",
        "the gap between standard and selective attention over training, with rotary positions",
        "With rotary positions, too, selective attention has the smaller loss.",
        "rotary",
    ),
    _course(
        "course-learned",
        "Section 6.1, and open: training tokens",
        "the gap between standard and selective attention over training, with learned positions",
        "With learned positions, as in the paper, selective attention has the smaller loss.",
        "learned",
        gap=0.04,
    ),
    _course(
        "course-long",
        "open: training tokens",
        "the gap over twice as many training tokens, with rotary positions",
        "Trained twice as long, selective attention still has the smaller loss.",
        "rotary",
        longer=2,
    ),
)
