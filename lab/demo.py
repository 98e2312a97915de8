"""`python -m lab demo`: selective attention, from an example by hand to the memory that it saves.

First the paper's example `y=7; x=1; x=3; z=5; x=?`: one attention head with weights set by hand, and the real operator.
Then two small models, one with selective attention and one without, learn to answer such questions. A search finds how
little the cache of the one has to keep, and the same is done on text with a model of the zoo. That takes some minutes;
the last line is the path of a report with pictures, tables, settings and versions.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.text import Text as Line

from lab import example
from lab.runs import find_run
from lab.scales import PAIR
from lab.tasks import VariableAssignment
from selattn.cache import Budgets
from selattn.cli import _options
from selattn.cli._options import Parser
from selattn.evaluation.losses import log_perplexity, make_batches
from selattn.evaluation.speed import Decoding, measure_decoding
from selattn.evaluation.text import Text
from selattn.evaluation.traces import PASSAGE, given_text, trace
from selattn.models.generation import continued
from selattn.models.loading import Loaded, load
from selattn.pruning import Procedure, Until, prune, search_rows
from selattn.pruning.search import Step
from selattn.training.config import RunConfig
from selattn.training.folder import LOG, read_log
from selattn.training.launch import train
from selattn.training.record import Score
from selattn.utils.progress import Progress, Shown
from selattn.utils.records import provenance
from selattn.utils.tables import Table, byte_size
from selattn.utils.typed import to_json
from selattn.views import plot
from selattn.views.explorer import explore
from selattn.views.plot.curves import losses_of_log, path_of_search
from selattn.views.reports import (
    Block,
    Explorer,
    Headline,
    Listing,
    Paragraph,
    Picture,
    Report,
    Section,
    how_it_was_made,
)
from selattn.views.reports import budgets as budgets_table

REPORT = "runs/demo.html"
KINDS = PAIR[::-1]  # the selective model first
SEARCHED, ANSWERED = 2**64 - 3, 2**64 - 4  # seeds of samples that no run trains or evaluates on


@dataclass(frozen=True)
class DemoSizes:
    """How much is done.

    Attributes:
        steps: of each training; None for as many as it takes to learn the task.
        samples: of the task to search on.
        questions: other samples, which both caches answer.
        tolerance: nats above the unpruned loss that a search may cost, of the task and of text.
        model: which reads text.
        text: the documents.
        rows: of the text to search on, and twice as many others to report on.
        batch: sequences that are decoded at a time.
        tokens: that the model writes.
    """

    steps: int | None = None
    samples: int = 128
    questions: int = 1024
    tolerance: tuple[float, float] = (0.01, 0.02)
    model: str = "zoo:selective"
    text: Text = field(default_factory=lambda: Text("embedded", "train", long=True))
    rows: int = 8
    batch: int = 16
    tokens: int = 48


def main(argv: Sequence[str]) -> int:
    """Compute the example and draw it, then tell the story."""
    parser = Parser(prog="python -m lab demo", description=__doc__)
    parser.add_argument("--example", action="store_true", help="only the example by hand, without training")
    parser.add_argument("--steps", type=_options.whole(1), metavar="N", help="steps of training (default: 200)")
    parser.add_argument(
        "--html", type=_options.html_file, metavar="FILE", help=f"where the report goes (default: {REPORT})"
    )
    args = parser.parse_args(argv)
    file = args.html or Path(REPORT)
    if args.example:
        _options.refuse(args, ["steps", "html"], "--example trains nothing")
    else:
        _options.check_files(argparse.Namespace(html=file), ["html"])
    console = Console(highlight=False)
    example.draw(example.compute(), console)
    if args.example:
        return 0
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        demo(folder, DemoSizes(steps=args.steps), console).save(file)
    console.print(f"\n{time.perf_counter() - begun:,.0f} seconds. The report:")
    console.print(str(file), soft_wrap=True, markup=False)
    return 0


def demo(folder: str | Path, sizes: DemoSizes | None = None, console: Console | None = None) -> Report:
    """Carry out all stages and report them; Ctrl-C raises KeyboardInterrupt.

    Args:
        folder: where the two models and the search go; it must be empty or new.
        sizes: how much is done.
        console: is shown each stage; None shows nothing.
    """
    sizes, folder, begun = sizes or DemoSizes(), Path(folder), time.perf_counter()
    made = provenance(0)
    shown = Terminal(console or Console(quiet=True))
    runs = {kind: contestant(kind, sizes.steps) for kind in KINDS}
    try:
        scores, learning = learn(runs, folder, shown)
        models = {kind: load(str(folder / kind / "model")) for kind in KINDS}
        masking = look(models, shown)
        task = prune_task(models["selective"], runs["selective"], sizes, shown)
        text = prune_text(load(sizes.model), folder / "search", sizes, shown)
        shown.chapter(
            "Reporting", "Pictures, tables, settings and versions go into one page that opens in any browser."
        )
        shown.progress.begin(None, "drawing")
        reading = read_blocks(sizes, text)
    finally:
        shown.progress.end()
    seconds = time.perf_counter() - begun
    settings = {"sizes": to_json(sizes), "training": runs["selective"].to_dict(), "seconds": round(seconds)}
    right = {kind: f"{scores[kind]['validation'].accuracy or 0.0:.1%}" for kind in KINDS}
    return Report(
        title="What is forgotten",
        lead=(
            "Selective attention lets a token decide that an earlier token is no longer needed. Two small models learn "
            "a task with it and without it; then its cache is made small, there and on text."
        ),
        blocks=[
            Headline(
                [
                    (right["selective"], "of the answers right with selective attention"),
                    (right["standard"], "with standard attention, as long trained"),
                    (
                        f"{text.best.factor:.1f}x",
                        f"fewer tokens in the cache of {text.name} on text, searched on {sizes.rows} rows, for "
                        f"{text.cost:+.3f} nats on unseen ones",
                    ),
                    (f"{text.speedup:.2f}x", "as fast as with its whole cache"),
                ]
            )
        ],
        sections=[
            Section("Two models learn the same task", learning),
            Section("What each layer masks", masking),
            Section("How little has to be kept", task.blocks()),
            Section(f"The same on text, with {text.name}", [*text.blocks(), *reading]),
            how_it_was_made(made, settings, f"All of it took {seconds:,.0f} seconds."),
        ],
    )


class Terminal:
    """Shows stages as they happen: a title, a sentence and progress for each."""

    def __init__(self, console: Console) -> None:
        self.console, self.progress, self._number = console, Progress() if console.quiet else Shown(), 0

    def chapter(self, title: str, sentence: str) -> None:
        """A stage begins: what it is, in a sentence for newcomers."""
        self.progress.end()
        self._number += 1
        self.console.print()
        self.console.rule(f"[bold]{self._number}. {title}", align="left")
        self.console.print(sentence, end="\n\n")

    def table(self, title: str, table: Table, compared: int = 0) -> None:
        """A table of the report; of its first columns, `compared` of them, the largest share in a row stands out."""
        self.progress.end()
        styles: dict[tuple[int, int], str] = {}
        for number, (_, *cells) in enumerate(table.rows):
            best = max(cells[:compared], key=lambda cell: float(cell.rstrip("%")), default=None)
            styles |= {(number, at): "bold green" for at, cell in enumerate(cells, 1) if cell == best}
        self.console.print(dataclasses.replace(table, title=title, styles=styles).rich())


class _Learning(Shown):
    """A bar with the loss in a terminal, lines with evaluations elsewhere; the command says what an interrupt does."""

    def __init__(self, console: Console, kind: str) -> None:
        super().__init__(console, keep=True)
        self._kind = kind
        if console.is_terminal:
            console.print(f"[bold]{kind} attention[/]")

    def advance(self, by: float = 1, text: str | None = None) -> None:
        """Leave the losses to the bar."""
        if self.console.is_terminal:
            super().advance(by, text)

    def say(self, text: str) -> None:
        """Leave the evaluations out where there is a bar: they are shown at the end, too."""
        if not self.console.is_terminal and text.startswith("step "):
            self.console.print(f"{self._kind} attention, {text}", markup=False)


def contestant(kind: str, steps: int | None) -> RunConfig:
    """The run of a kind of attention: the small Variable Assignment, as long as it takes unless `steps` says more."""
    run = find_run(f"variable-assignment-small-{kind}")
    run = dataclasses.replace(run, checkpoints=dataclasses.replace(run.checkpoints, every=run.schedule.steps))
    if steps is None:
        return run
    schedule = dataclasses.replace(run.schedule, steps=steps, warmup=min(run.schedule.warmup, steps))
    return dataclasses.replace(run, schedule=schedule)


def learn(
    runs: dict[str, RunConfig], folder: Path, shown: Terminal
) -> tuple[dict[str, dict[str, Score]], Sequence[Block]]:
    """Train both; their scores by the kind of attention and the name of the set."""
    shown.chapter(
        "Learning",
        "Two small models, equal but for their attention, learn to tell which value a variable was given last.",
    )
    scores, curves = {}, []
    for kind, run in runs.items():
        finished = train(run, folder / kind, progress=_Learning(shown.console, kind))
        if finished.interrupted:
            raise KeyboardInterrupt
        scores[kind] = finished.evaluation
        curves.append(
            Picture(
                losses_of_log(read_log(folder / kind / LOG), f"{kind} attention"),
                f"The loss over the steps, with {kind} attention.",
                f"Curves of the loss over the training steps with {kind} attention.",
            )
        )
    run = runs["selective"]
    task = cast(VariableAssignment, run.data)
    few = task.out_of_distribution().drawn_values or 1
    rows = [
        [label, *(f"{scores[kind][name].accuracy or 0.0:.1%}" for kind in KINDS), f"{1 / values:.0%}"]
        for label, name, values in (
            (f"{task.values} values (as trained)", "validation", task.values),
            (f"{few} values (never seen)", "out_of_distribution", few),
        )
    ]
    answers = Table(["", *(f"{kind} attention" for kind in KINDS), "chance"], rows)
    shown.table("Right answers", answers, compared=2)
    kept = [share or 0.0 for share in scores["selective"]["validation"].kept or ()]  # every layer selects
    shown.console.print("\n[bold]What the selective model needs[/]  of a sequence at most (standard: all)")
    labels = [f"layer {layer}" for layer in range(len(kept))]
    shown.console.print(example.bars(labels, {"": kept}, min(shown.console.width, 104) // 2))
    words = (
        f"Each sample assigns values to {task.variables} variables, {task.assignments} times, and then asks for one of "
        f"them: the latest value counts. Both models see {run.schedule.steps} batches of {run.batch.size} samples, and "
        "then samples with far fewer values than they were trained on."
    )
    return scores, [Paragraph(words), dataclasses.replace(answers, title="Right answers"), *curves]


def look(models: dict[str, Loaded], shown: Terminal) -> Sequence[Block]:
    """One sample as its question sees it: struck through what is masked, in blue what is read most."""
    shown.chapter("Looking", "A value that was overwritten is of no use: the selective model crosses such tokens out.")
    traces = {}
    shown.progress.begin(len(models), "looking")
    for kind, model in models.items():
        traces[kind] = trace(model, given_text("sample", model), name=f"{kind} attention")
        shown.progress.advance()
    shown.progress.end()
    chosen, other = traces["selective"], traces["standard"]
    question = chosen.size - 2
    for layer in range(chosen.layers):
        F, read = chosen.F(layer)[question], int(chosen.weights(layer)[question, : question + 1].argmax())
        line = Line(f"layer {layer}  ", "dim")
        for place, token in enumerate(chosen.tokens[: question + 1]):
            style = "bold white on blue" if place == read else "strike red" if F[place] > 1 else ""
            line.append(" " if place else "").append(token.strip(), style)
        shown.console.print(line)
    shown.console.print(f"[dim]red: masked; blue: read most; the answer is{chosen.tokens[-1]}[/]")
    return [
        Paragraph(
            "Below is one sample, as the question at its end sees it. A red line goes through what has been masked: "
            "values that were overwritten since. Blue is what the question reads."
        ),
        Picture(
            plot.tokens(chosen, position=question),
            "Masking and attention of each layer of the selective model.",
            "The tokens of a sample, most of them struck through; the value that is asked for is lit.",
        ),
        Picture(
            plot.attention(chosen, other),
            "Attention of each layer: a row reads the columns. Selective attention leaves out what is masked.",
            "Attention patterns of the selective model, which are sparse, beside those of the standard one.",
        ),
    ]


@dataclass(frozen=True)
class Side:
    """A model with one cache.

    Attributes:
        loss: nats per token, on rows that the search has not seen.
        right: the share of answers that are right; None of text.
        decoding: bytes and speed.
        wrote: the text that it writes; "" of a task.
    """

    loss: float
    right: float | None
    decoding: Decoding
    wrote: str = ""


@dataclass(frozen=True)
class Saving:
    """Budgets that a search found, and what they save.

    Attributes:
        name: of the model, for titles.
        context: N.
        searched, questions: how many rows the search saw, and how many others were asked or read.
        path: of the search.
        best: the iteration that was chosen.
        limit: the largest loss that was allowed on the search set.
        whole: with a cache that keeps everything.
        small: with the budgets.
    """

    name: str
    context: int
    searched: int
    questions: int
    path: Sequence[Step]
    best: Step
    limit: float
    whole: Side
    small: Side

    @property
    def cost(self) -> float:
        """How much the small cache adds to the loss on what the search has not seen, in nats per token."""
        return self.small.loss - self.whole.loss

    @property
    def speedup(self) -> float:
        """How many times as fast the small cache decodes."""
        return self.small.decoding.tokens_per_second / self.whole.decoding.tokens_per_second

    def table(self) -> Table:
        """Loss, answers, bytes and speed of the whole cache and of the small one."""
        sides = (self.whole, self.small)
        held = (len(self.best.budgets) * self.context, sum(self.best.budgets))
        rows = [
            ["tokens held, all layers", *(f"{count:,}" for count in held)],
            [f"loss on {self.questions:,} unseen rows, nats", *(f"{side.loss:.4f}" for side in sides)],
        ]
        if self.whole.right is not None:
            rows.append([f"right answers of {self.questions:,}", *(f"{side.right:.1%}" for side in sides)])
        rows.append(["bytes of the cache", *(byte_size(side.decoding.cache_bytes) for side in sides)])
        rows.append(["tokens per second", *(f"{side.decoding.tokens_per_second:,.0f}" for side in sides)])
        first = self.whole.decoding
        caption = f"Decoded token by token: {first.batch} sequences at a time, up to {first.context:,} tokens"
        return Table(["", "whole cache", "small cache"], rows, caption, strong=[len(rows) - 2])

    def show(self, shown: Terminal) -> Saving:
        """The table, and how much less is kept."""
        shown.table(f"{self.name}: K = {list(self.best.budgets)} of {self.context}", self.table())
        shown.console.print(f"[bold]{self.best.factor:.1f} times[/] fewer tokens are kept.")
        return self

    def blocks(self) -> Sequence[Block]:
        """For the report."""
        bytes_saved = self.whole.decoding.cache_bytes / self.small.decoding.cache_bytes
        words = (
            "Every layer may keep K tokens and no more: when another comes, the one that is masked most is evicted. "
            f"The search takes tokens away where that hurts least, until the loss on its own samples would rise by "
            f"more than {self.limit - self.path[0].loss:.2g} nats. It saw {self.searched:,} of them, and with others "
            f"it may find other budgets; the table has {self.questions:,} that it did not see, on which the cost can "
            f"be larger. These budgets hold {self.best.factor:.1f} times fewer tokens in {bytes_saved:.1f} times fewer "
            f"bytes and decode at {self.speedup:.2f} times the speed."
        )
        picture = Picture(
            path_of_search(self.path, self.best, self.limit if self.limit < math.inf else None),
            "Above, the loss as memory shrinks to the right; below, what each layer keeps. The mark is the choice.",
            f"The loss along the search, up to {self.path[-1].factor:.1f} times less memory.",
        )
        return [Paragraph(words), self.table(), budgets_table(self.best.budgets, self.context), picture]


def prune_task(loaded: Loaded, run: RunConfig, sizes: DemoSizes, shown: Terminal) -> Saving:
    """Budgets for a model of the task, with answers that are generated from the pruned cache."""
    shown.chapter(
        "Forgetting",
        "What is crossed out need not be kept: a search takes tokens from the cache where that hurts least.",
    )
    task = cast(VariableAssignment, run.data)
    model, context, until = loaded.model, task.context, Until(tolerance=sizes.tolerance[0])
    searched, others = (
        [samples[i] for i in range(len(samples))]
        for samples in (task.dataset(SEARCHED, sizes.samples), task.dataset(ANSWERED, sizes.questions))
    )
    number, path = search_rows(
        model,
        make_batches(searched, 128),
        until,
        Procedure(context, step=1, floor=2, lazy=True),
        progress=shown.progress,
    )
    ids = torch.stack([row["input_ids"] for row in others]).to(model.device)
    batches = make_batches(others, 256)

    def side(budgets: Budgets | None) -> Side:
        shown.progress.begin(None, "answering")
        written = cast(Any, model).generate(ids[:, :-1], max_new_tokens=1, do_sample=False, cache_budgets=budgets)
        right = (written[:, -1] == ids[:, -1]).double().mean().item()
        loss = log_perplexity(model, batches, budgets)
        return Side(loss, right, measure_decoding(model, context, sizes.batch, budgets=budgets))

    best, limit = path[number], until.limit(path[0].loss)
    sides = side(None), side(Budgets(best.budgets))
    name = "the model that learned"
    return Saving(name, context, sizes.samples, sizes.questions, path, best, limit, *sides).show(shown)


def prune_text(loaded: Loaded, folder: Path, sizes: DemoSizes, shown: Terminal) -> Saving:
    """Budgets for a model of text, with what it writes from the pruned cache."""
    shown.chapter("Reading", "The same with a language model that was trained on Wikipedia and now reads other text.")
    done = prune(
        loaded,
        sizes.text,
        Until(tolerance=sizes.tolerance[1]),
        out=folder,
        rows=sizes.rows,
        report_rows=2 * sizes.rows,
        step=16,
        floor=4,
        lazy=True,
        batch=4,
        progress=shown.progress,
    )
    model, context = loaded.model, loaded.description.context
    ids = loaded.tokenizer.split(PASSAGE)[0][: context - sizes.tokens]

    def side(loss: float, budgets: Budgets | None) -> Side:
        shown.progress.begin(None, "writing")
        with torch.inference_mode():
            new = list(continued(model, ids, sizes.tokens, model.new_cache(budgets)))
        measured = measure_decoding(model, context, sizes.batch, budgets=budgets)
        return Side(loss, None, measured, loaded.tokenizer.decode(new))

    sides = side(done.reported["unpruned"], None), side(done.reported["pruned"], done.budgets)
    counts = (sizes.rows, 2 * sizes.rows)
    return Saving(loaded.name, context, *counts, done.path, done.step, done.limit, *sides).show(shown)


def read_blocks(sizes: DemoSizes, text: Saving) -> Sequence[Block]:
    """A passage as the model of text reads it, what it writes next, and an explorer."""
    budgets = text.best.budgets
    page = explore(sizes.model, PASSAGE, policies=["selective"], budgets=[16, 32], also=[("selective", budgets)])
    (read,) = page.traces
    view = f"p={read.size - 1}&w=selective&k={','.join(map(str, budgets))}"
    return [
        Picture(
            plot.words(read),
            "What the last word of a passage still sees of it, layer by layer.",
            "A passage whose words are mostly grey: masked. A few are lit.",
        ),
        Picture(
            plot.kept(read, run=len(read.runs) - 1),
            "What each layer holds when each token of the passage attends, with these budgets.",
            "Triangles of which only a narrow band and some lines are filled: what is kept.",
        ),
        Listing(text.whole.wrote, "How the model continues the passage below, with its whole cache", prose=True),
        Listing(text.small.wrote, "And with the small one (it is a very small model)", prose=True),
        Explorer(
            page,
            "The passage. Pick a layer, click a token, drag the budget, press play: who masked whom, and which token "
            "was evicted when.",
            view,
        ),
    ]
