"""Reports of `selattn train`, `prune` and `eval`: one HTML file each, which opens from disk and needs no network.

A report is made of blocks, each of which turns into HTML by itself, as `selattn.utils.tables.Table` does; whatever a
user wrote stays text. Some tables are also shown in the terminal.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from selattn.utils.files import write_text
from selattn.utils.records import Provenance, as_body
from selattn.utils.tables import Table
from selattn.utils.typed import flat, to_json

if TYPE_CHECKING:
    from selattn.evaluation.compare import Comparison, Evaluated
    from selattn.evaluation.tradeoff import AtLoss, Tradeoff
    from selattn.pruning.run import SearchRecord
    from selattn.views.explorer import Page

Record = Mapping[str, Any]

MOST_SVG = 400_000  # bytes; a figure with more strokes than that is drawn as pixels
PIXELS = 96  # of an inch, as CSS counts
_HERE = Path(__file__).parent
_PLACE = re.compile(r"/\*\{(\w+)\}\*/")


class Block(Protocol):
    """A part of a section."""

    def html(self) -> str:
        """The block as an HTML element."""


@dataclass(frozen=True)
class Paragraph:
    """A few sentences, plain; `kind` is "", "lead" (large, below a title) or "note" (small)."""

    text: str
    kind: str = ""

    def html(self) -> str:
        return f"<p{_class(self.kind)}>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Headline:
    """The few numbers that matter, large, each with its meaning."""

    numbers: Sequence[tuple[str, str]]

    def html(self) -> str:
        cards = "".join(
            f"<div><b>{html.escape(n)}</b><span>{html.escape(what)}</span></div>" for n, what in self.numbers
        )
        return f'<div class="headline">{cards}</div>'


@dataclass(frozen=True)
class Facts:
    """Names and values, folded away below a title: settings, versions, the machine."""

    title: str
    values: Mapping[str, Any]

    def html(self) -> str:
        rows = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(_plain(value))}</dd></div>"
            for name, value in flat(self.values)
        )
        return f"<details><summary>{html.escape(self.title)}</summary><dl>{rows}</dl></details>"


@dataclass(frozen=True)
class Listing:
    """Preformatted text: a command, or with `prose` a continuation, whose lines break between words."""

    text: str
    caption: str = ""
    prose: bool = False

    def html(self) -> str:
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f"<figure>{caption}<pre{_class('prose' if self.prose else '')}>{html.escape(self.text)}</pre></figure>"


@dataclass(frozen=True)
class Picture:
    """A figure of matplotlib with a caption below it; `says` describes it for those who cannot see it."""

    figure: Any
    caption: str
    says: str

    def html(self) -> str:
        from selattn.views.plot.style import figure_bytes

        kind, data = "svg+xml", figure_bytes(self.figure, "svg")
        if len(data) > MOST_SVG:
            kind, data = "png", figure_bytes(self.figure, "png", dpi=2 * PIXELS)
        width, height = (round(PIXELS * inches) for inches in self.figure.get_size_inches())
        source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
        return (
            f'<figure><div class="wide"><img src="{source}" width="{width}" height="{height}" '
            f'alt="{html.escape(self.says, quote=True)}"></div>'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Explorer:
    """An explorer's page in a frame that is cut off from the report; it opens with `view`."""

    page: Page
    caption: str
    view: str = ""

    def html(self) -> str:
        return f"<figure><figcaption>{html.escape(self.caption)}</figcaption>{self.page.frame(self.view)}</figure>"


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """One page, which begins with links to its sections."""

    title: str
    lead: str  # one or two sentences below the title
    blocks: Sequence[Block]  # in front of the sections
    sections: Sequence[Section]

    def html(self) -> str:
        """The whole document as one file, styles included."""
        titled = [(number, html.escape(each.title), each) for number, each in enumerate(self.sections, 1)]
        held = {
            "theme": (_HERE / "theme.css").read_text("utf-8"),
            "style": (_HERE / "report.css").read_text("utf-8"),
            "title": html.escape(self.title),
            "lead": html.escape(self.lead),
            "blocks": _all(self.blocks),
            "links": "".join(f'<li><a href="#s{number}">{title}</a></li>' for number, title, _ in titled),
            "sections": "".join(
                f'<section id="s{number}"><h2>{title}</h2>{_all(each.blocks)}</section>'
                for number, title, each in titled
            ),
        }
        return _PLACE.sub(lambda place: held[place[1]], (_HERE / "report.html").read_text("utf-8"))

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all."""
        path = Path(path)
        write_text(path, self.html())
        return path


def how_it_was_made(made: Provenance, settings: Mapping[str, Any], about: str = "") -> Section:
    """The last section of every report: the command, settings, versions and machine of its record."""
    commit = made.commit or "not known: the package was installed outside a checkout"
    changed = " (the code had been changed since)" if made.dirty else ""
    run = {"date": made.date, "seed": made.seed, "commit": f"{commit}{changed}"}
    return Section(
        "How this was made",
        [
            Listing(made.command, "The command"),
            *([Paragraph(about, "note")] if about else []),
            Facts("Settings", settings),
            Facts("Run, versions and machine", {**run, **made.versions, **made.machine}),
        ],
    )


def _all(blocks: Sequence[Block]) -> str:
    return "\n".join(block.html() for block in blocks)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def comparison_report(found: Comparison, made: Provenance) -> Report:
    """Of `selattn eval`: loss, multiple choice, memory and speed of models."""
    models = found.models
    words = (
        "Tokens that a layer holds, a mean over the layers. The factor says how many times fewer they are than the "
        "whole context."
    )
    sections = [
        *([Section("Loss on text", [losses(models), *against_memory(models)])] if models[0].text else []),
        *([Section("Multiple choice", [tasks_table(models)])] if models[0].tasks else []),
        Section("Memory", [Paragraph(words), memory(models)]),
        *([Section("Decoding", [decoding(models)])] if models[0].decoding is not None else []),
    ]
    return Report(
        title="How good models are, and what that costs",
        lead=", ".join(one.model for one in models),
        blocks=[],
        sections=[*sections, how_it_was_made(made, to_json(found.settings))],
    )


def comparison_tables(models: Sequence[Evaluated]) -> list[Table]:
    """The same in the terminal."""
    first = models[0]
    wanted = (losses, first.text), (tasks_table, first.tasks), (memory, True), (decoding, first.decoding)
    return [make(models) for make, measured in wanted if measured]


def losses(models: Sequence[Evaluated]) -> Table:
    """Log-perplexity of each model on each text; the best on the first text stands out."""
    texts = list(models[0].text)
    rows = [[one.model, *(f"{one.text[name].loss:.4f}" for name in texts)] for one in models]
    read = "; ".join(f"{name}: {models[0].text[name].tokens:,} tokens" for name in texts)
    best = min(range(len(models)), key=lambda i: models[i].text[texts[0]].loss)
    return Table(["model", *texts], rows, f"Nats per token, lower is better ({read})", strong=[best])


def against_memory(models: Sequence[Evaluated]) -> list[Picture]:
    """Each model's loss against what its caches hold; nothing where all hold the same, or contexts differ."""
    from selattn.views import plot

    if len({one.kv.mean for one in models}) < 2 or len({one.context for one in models}) > 1:
        return []
    texts = list(models[0].text)
    points = [
        {"name": one.model, "points": [{"kv_size": one.kv.mean, "loss": {text: one.text[text].loss for text in texts}}]}
        for one in models
    ]
    record = {"texts": texts, "context": models[0].context, "baseline": None, "curves": points}
    caption = "Loss against the tokens that a layer holds; smaller caches to the right, better models below."
    return [Picture(plot.tradeoff(record), caption, "A point for each model: its loss and the size of its cache.")]


def tasks_table(models: Sequence[Evaluated]) -> Table:
    """Right answers with their standard errors, a row for each task and model; the first of a task names it."""
    rows = []
    for name in models[0].tasks:
        for number, one in enumerate(models):
            found = one.tasks[name]
            cells = (_percent(found.acc, found.acc_stderr), _percent(found.acc_norm, found.acc_norm_stderr))
            rows.append(["" if number else f"{name} ({found.questions:,})", one.model, *cells])
    head, title = ["task (questions)", "model", "accuracy", "normalised by length"], "Percent right ± standard error"
    return Table(head, rows, title, left=[1], sections=range(0, len(rows), len(models)))


def memory(models: Sequence[Evaluated]) -> Table:
    """The tokens that the caches hold."""
    head = ["model", "context", "tokens held", "less memory", "K of each layer", "policy"]
    rows = []
    for one in models:
        limits = one.budgets if isinstance(one.budgets, tuple) else (one.budgets,)
        shown = ["-", "-"] if one.budgets is None else [", ".join(map(str, limits)), one.policy]
        rows.append([one.model, f"{one.context:,}", f"{one.kv.mean:,.1f}", f"{one.kv.memory_factor:.2f}x", *shown])
    return Table(head, rows)


def decoding(models: Sequence[Evaluated]) -> Table:
    """Bytes and speed, with the quartiles over the steps."""
    rows, caption = [], ""
    for one in models:
        found = one.decoding
        assert found is not None
        low, high = found.quartiles
        speed = f"{found.tokens_per_second:,.1f} ({low:,.1f} to {high:,.1f})"
        rows.append([one.model, f"{found.cache_bytes:,}", f"{found.full_bytes:,}", speed])
        caption = f"Token by token, batch {found.batch}, up to {found.context:,} tokens, with quartiles"
    return Table(["model", "bytes of the cache", "of a whole one", "tokens per second"], rows, caption)


def tradeoff_report(found: Tradeoff, made: Provenance) -> Report:
    """Of `selattn eval --curve`: loss against the size of the cache."""
    from selattn.views import plot

    base = found.baseline
    words = [] if base is None else [(f"{loss:.4f}", f"{base.name}, {text}") for text, loss in base.loss.items()]
    picture = Picture(
        plot.tradeoff(to_json(found)),
        "Smaller caches to the right. The dotted line is the baseline with its whole cache.",
        "Curves of the loss against the number of tokens that a layer holds.",
    )
    settings = {"context": found.context, "texts": to_json(found.texts), "skip": found.skip}
    return Report(
        title="Loss against the size of the cache",
        lead=f"{len(found.curves)} curves at a context of {found.context:,} tokens.",
        blocks=[Headline(words)] if words else [],
        sections=[
            Section("The trade-off", [picture]),
            Section("Where the curves end", [ends_table(found, text) for text in found.texts]),
            how_it_was_made(made, settings),
        ],
    )


def ends_table(found: Tradeoff, text: str) -> Table:
    """The largest and the smallest cache of each curve, and where it reaches the baseline."""
    rows = []
    for curve in found.curves:
        points = sorted(curve.points, key=lambda point: -point.kv_size)
        shown = [f"{point.kv_size:g}: {point.loss[text]:.4f}" for point in (points[0], points[-1])]
        rows.append([curve.name, *shown, _factor(curve.at_the_baselines_loss.get(text))])
    head = ["curve", "largest cache: loss", "smallest cache: loss", "memory factor at the baseline's loss"]
    return Table(head, rows, text)


def _percent(share: float, error: float | None) -> str:
    """With its standard error; a single question has none."""
    return f"{100 * share:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _factor(reached: AtLoss | None) -> str:
    """A curve that ends below the baseline's loss gives a lower bound."""
    return "-" if reached is None else f"{'≥ ' if reached.at_least else ''}{reached.memory_factor:.2f}"


def search_report(found: SearchRecord, made: Provenance) -> Report:
    """Of `selattn prune`: how few tokens each layer can keep, the loss, and the path of the search."""
    reported = found.report
    settings = {name: to_json(getattr(found, name)) for name in ("until", "policy", "procedure", "text", "rows")}
    return Report(
        title=f"{found.model}: how little it can remember",
        lead=(
            "Every layer has a budget, the most tokens it may keep. The search lowers the budgets where the loss "
            "suffers least, until the threshold is reached."
        ),
        blocks=[
            Headline(
                [
                    (f"{found.memory_factor:.1f}x", "less memory for keys and values"),
                    (f"{reported['pruned']:.4f}", "nats per token on unseen text with these budgets"),
                    (f"{reported['unpruned']:.4f}", "without pruning"),
                    *([(f"{reported['baseline']:.4f}", "of the baseline")] if "baseline" in reported else []),
                ]
            )
        ],
        sections=[
            Section("What it costs", [searched_table(found), *_floor(found)]),
            Section("What each layer keeps", [budgets(found.budgets, found.procedure.context)]),
            Section("The path of the search", [_path(found)]),
            how_it_was_made(made, settings),
        ],
    )


def searched_table(found: SearchRecord) -> Table:
    """The losses on the search set and on rows that the search has not seen."""
    rows = [
        ["whole cache", f"{found.path[0].loss:.4f}", f"{found.report['unpruned']:.4f}"],
        ["with these budgets", f"{found.search_loss:.4f}", f"{found.report['pruned']:.4f}"],
    ]
    if "baseline" in found.report:
        rows.append(["baseline, whole cache", f"{found.search_baseline:.4f}", f"{found.report['baseline']:.4f}"])
    tokens = found.tokens
    head = ["loss, nats per token", f"search set ({tokens.search:,} tokens)", f"unseen ({tokens.report:,} tokens)"]
    return Table(head, rows, strong=[1])


def budgets(found: Sequence[int], context: int) -> Table:
    """K of each layer."""
    rows = [[str(layer), f"{k:,}", f"{min(k, context) / context:.1%}"] for layer, k in enumerate(found)]
    held = sum(min(k, context) for k in found)
    total = ["all", f"{sum(found):,}", f"{held / (len(found) * context):.1%}"]
    return Table(["layer", "K, tokens", f"of N = {context:,}"], [*rows, total], strong=[len(rows)])


def _path(found: SearchRecord) -> Picture:
    from selattn.views import plot

    return Picture(
        plot.search(found),
        "Above, the loss as memory shrinks to the right; below, the budget of each layer. The mark is the one chosen.",
        f"The loss along the search, up to {found.memory_factor:.1f} times less memory.",
    )


def _floor(found: SearchRecord) -> list[Paragraph]:
    if not found.at_floor:
        return []
    why = "The search ended because no layer could give more, not because the threshold was reached."
    return [Paragraph(why, "note")]


def training_report(record: Record, log: Sequence[Record], folder: str) -> Report:
    """Of `selattn train`: a run, from `training_record.json` and the lines of `log.jsonl`."""
    run, evaluation = record["run"], record["evaluation"]
    made, settings = as_body(record, Provenance), {**record["run"], "parameters": record["parameters"]}
    return Report(
        title=f"{run['name']}: a training run",
        lead=f"{record['steps']:,} steps, {record['tokens']:,} tokens, {record['parameters']:,} parameters.",
        blocks=[Headline(_headline(evaluation))],
        sections=[
            Section("How good it is", [_evaluation(evaluation)]),
            Section("How it got there", [_curve(log)]),
            *_forgotten(evaluation, log),
            how_it_was_made(made, settings, f"The model is in {folder}/model."),
        ],
    )


def _headline(evaluation: Record) -> list[tuple[str, str]]:
    found = []
    for name, values in evaluation.items():
        shown = name.replace("_", " ")
        if "accuracy" in values:
            found.append((f"{values['accuracy']:.1%}", f"of the answers are right ({shown})"))
        else:
            found.append((f"{values['loss']:.3f}", f"nats per token ({shown})"))
    kept = evaluation.get("validation", {}).get("kept")
    known = [share for share in kept or [] if share is not None]
    if known:
        found.append((f"{sum(known) / len(known):.0%}", "of a sequence is still needed, a mean over the layers"))
    return found


def _evaluation(evaluation: Record) -> Table:
    accuracy = any("accuracy" in values for values in evaluation.values())
    head = ["", "loss, nats per token", *(["right answers"] if accuracy else [])]
    rows = [
        [name.replace("_", " "), f"{values['loss']:.4f}", *([f"{values['accuracy']:.1%}"] if accuracy else [])]
        for name, values in evaluation.items()
    ]
    return Table(head, rows, "The last evaluation")


def _curve(log: Sequence[Record]) -> Picture:
    from selattn.views.plot.curves import losses_of_log

    return Picture(
        losses_of_log(log),
        "The loss over the steps: of the training batches (thin) and of what is held out (marked).",
        "Curves of the loss over the training steps.",
    )


def _forgotten(evaluation: Record, log: Sequence[Record]) -> list[Section]:
    """The share that each layer keeps; no section for a model that does not select."""
    from selattn.views.plot.curves import kept_by_layer

    kept = evaluation.get("validation", {}).get("kept")
    if not kept or all(share is None for share in kept):
        return []
    words = (
        "The largest share of a sequence, at any time, that is not masked: the tokens that later ones may still need. "
        "A model with standard attention keeps all of them."
    )
    caption = "The share that each layer keeps, over the training steps."
    return [Section("What it forgets", [Paragraph(words), Picture(kept_by_layer(log), caption, caption)])]
