"""What `python -m lab demo` tells: two models learn a task, one learns to forget; what that saves, there and on text.

    found = tell_story("runs/demo")          # minutes; None if a training was interrupted
    story_report(found, provenance(0)).save("demo.html")    # lab.demo.page

Every stage is what the package does elsewhere: the training of `selattn train`, the search of `selattn prune`, the
cache and the measurements of `selattn eval --speed`, the traces of `selattn plot`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from lab.demo.contest import Contest, contest, contest_runs
from lab.tasks import VariableAssignment
from selattn.cache import Budgets
from selattn.evaluation.examples import PASSAGE
from selattn.evaluation.losses import log_perplexity, make_batches
from selattn.evaluation.speed import Decoding, measure_decoding
from selattn.evaluation.text import Text
from selattn.evaluation.traces import Trace
from selattn.evaluation.tracing import given_text, trace
from selattn.models.generation import continued
from selattn.models.loading import Loaded, load
from selattn.pruning import Procedure, Until, prune, search_rows
from selattn.pruning.folder import Step
from selattn.training.config import RunConfig
from selattn.utils.progress import Progress
from selattn.views.explorer import Page, explore

SEARCHED, ANSWERED = 2**64 - 3, 2**64 - 4  # seeds of samples that no run trains or evaluates on


@dataclass(frozen=True)
class Sizes:
    """How much is done.

    Attributes:
        steps: of each training; None for as many as it takes to learn the task.
        samples: of the task to search on.
        questions: other samples, which both caches answer.
        tolerance: nats above the unpruned loss that a search may cost, of the task and of text.
        model: which reads text.
        text: what it reads.
        rows: of the text to search on, and twice as many others to report on.
        batch: sequences that are decoded at a time.
        tokens: that the model writes.
    """

    steps: int | None = None
    samples: int = 128
    questions: int = 1024
    tolerance: tuple[float, float] = (0.01, 0.02)
    model: str = "zoo:memory"
    text: Text = field(default_factory=lambda: Text("embedded", "train", long=True))
    rows: int = 8
    batch: int = 16
    tokens: int = 48


class Show:
    """What is shown while a story is told: nothing. The command line shows something."""

    def chapter(self, title: str, sentence: str) -> None:
        """A stage begins: what it is, in a sentence for newcomers."""

    progress = Progress()

    def training(self, kind: str) -> Progress:
        """What is shown of the training of a kind of attention."""
        return Progress()

    def learned(self, found: Contest, task: VariableAssignment) -> None:
        """Both models are trained."""

    def saw(self, traces: dict[str, Trace]) -> None:
        """A sample has been read by both."""

    def pruned(self, found: Pruning) -> None:
        """Budgets were found, and what they save was measured."""


@dataclass(frozen=True)
class Side:
    """A model with one cache.

    Attributes:
        loss: nats per token, on what the search has not seen.
        right: the share of answers that are right; None of text.
        questions: that were asked, or rows of text that were read.
        decoding: bytes and speed.
        wrote: what it writes; "" of a task.
    """

    loss: float
    right: float | None
    questions: int
    decoding: Decoding
    wrote: str = ""


@dataclass(frozen=True)
class Pruning:
    """Budgets that a search found, and what they save.

    Attributes:
        name: of the model, for titles.
        context: N.
        searched: how many rows the search saw.
        path: of the search.
        best: the iteration that was chosen.
        limit: the largest loss that was allowed on the search set.
        whole: with a cache that keeps everything.
        small: with the budgets.
    """

    name: str
    context: int
    searched: int
    path: Sequence[Step]
    best: Step
    limit: float
    whole: Side
    small: Side

    @property
    def bytes_saved(self) -> float:
        """How many times fewer bytes the small cache holds."""
        return self.whole.decoding.cache_bytes / self.small.decoding.cache_bytes

    @property
    def speedup(self) -> float:
        """How many times as fast it decodes."""
        return self.small.decoding.tokens_per_second / self.whole.decoding.tokens_per_second


@dataclass(frozen=True)
class Story:
    """All that was found.

    Attributes:
        sizes: how much was done.
        runs: the training run of each kind of attention.
        contest: how well they learned.
        traces: of one sample, in each of the two models.
        task: budgets for the task.
        text: budgets for text.
        page: an explorer of a text.
        seconds: in all.
    """

    sizes: Sizes
    runs: dict[str, RunConfig]
    contest: Contest
    traces: dict[str, Trace]
    task: Pruning
    text: Pruning
    page: Page
    seconds: float

    @property
    def assignment(self) -> VariableAssignment:
        """The task that was learned."""
        return task_of(self.runs)


def tell_story(folder: str | Path, sizes: Sizes | None = None, show: Show | None = None) -> Story | None:
    """Carry out all stages; None if a training was interrupted.

    Args:
        folder: where the two models and the search go; it must be empty or new.
        sizes: how much is done.
        show: is told of each stage.
    """
    sizes, show, folder, begun = sizes or Sizes(), show or Show(), Path(folder), time.perf_counter()
    runs = contest_runs(sizes.steps)
    task = task_of(runs)
    show.chapter(
        "Learning",
        "Two small models, equal but for their attention, learn to tell which value a variable was given last.",
    )
    found = contest(folder, sizes.steps, show.training)
    if found is None:
        return None
    show.learned(found, task)
    models = {kind: load(str(run)) for kind, run in found.folders.items()}

    show.chapter("Looking", "A value that was overwritten is of no use: the selective model crosses such tokens out.")
    traces = {}
    show.progress.begin(len(models), "looking")
    for kind, model in models.items():
        traces[kind] = trace(model, given_text("sample", model), name=f"{kind} attention")
        show.progress.advance()
    show.saw(traces)

    show.chapter(
        "Forgetting",
        "What is crossed out need not be kept: a search takes tokens from the cache where that hurts least.",
    )
    small = prune_task(models["selective"], task, sizes, show)
    show.pruned(small)

    show.chapter("Reading", "The same with a language model that was trained on Wikipedia and now reads other text.")
    text = prune_text(load(sizes.model), folder / "search", sizes, show)
    show.pruned(text)

    show.chapter("Reporting", "Pictures, tables, settings and versions go into one page that opens in any browser.")
    show.progress.begin(None, "drawing")
    also = [("selective", text.best.budgets)]
    page = explore(sizes.model, PASSAGE, policies=["selective"], budgets=[16, 32], also=also)
    return Story(sizes, runs, found, traces, small, text, page, time.perf_counter() - begun)


def task_of(runs: dict[str, RunConfig]) -> VariableAssignment:
    """What both runs learn."""
    task = runs["selective"].data
    assert isinstance(task, VariableAssignment)
    return task


def prune_task(loaded: Loaded, task: VariableAssignment, sizes: Sizes, show: Show) -> Pruning:
    """Budgets for a model of the task, with answers that are generated from the pruned cache."""
    model, size = loaded.model, task.context
    searched, others = (
        [samples[i] for i in range(len(samples))]
        for samples in (task.dataset(SEARCHED, sizes.samples), task.dataset(ANSWERED, sizes.questions))
    )
    until = Until(tolerance=sizes.tolerance[0])
    number, path = search_rows(
        model,
        make_batches(searched, 128),
        until,
        Procedure(size, step=1, floor=2, lazy=True),
        progress=show.progress,
    )
    best = path[number]
    ids = torch.stack([row["input_ids"] for row in others]).to(model.device)
    batches = make_batches(others, 256)

    def side(budgets: Budgets | None) -> Side:
        show.progress.begin(None, "answering")
        written = cast(Any, model).generate(ids[:, :-1], max_new_tokens=1, do_sample=False, cache_budgets=budgets)
        right = (written[:, -1] == ids[:, -1]).double().mean().item()
        loss = log_perplexity(model, batches, budgets)
        return Side(loss, right, len(others), measure_decoding(model, size, sizes.batch, budgets=budgets))

    sides = side(None), side(Budgets(best.budgets))
    show.progress.end()
    return Pruning("the model that learned", size, sizes.samples, path, best, until.limit(path[0].loss), *sides)


def prune_text(loaded: Loaded, folder: Path, sizes: Sizes, show: Show) -> Pruning:
    """Budgets for a model of text, with what it writes from the pruned cache."""
    found = prune(
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
        progress=show.progress,
    )
    model, size = loaded.model, loaded.description.context
    ids = loaded.tokenizer.split(PASSAGE)[0][: size - sizes.tokens]
    losses = {"whole": found.reported["unpruned"], "small": found.reported["pruned"]}

    def side(name: str, budgets: Budgets | None) -> Side:
        show.progress.begin(None, "writing")
        with torch.inference_mode():
            new = list(continued(model, ids, sizes.tokens, model.new_cache(budgets)))
        measured = measure_decoding(model, size, sizes.batch, budgets=budgets)
        return Side(losses[name], None, 2 * sizes.rows, measured, loaded.tokenizer.decode(new))

    sides = side("whole", None), side("small", found.budgets)
    show.progress.end()
    return Pruning(loaded.name, size, sizes.rows, found.path, found.step, found.limit, *sides)
