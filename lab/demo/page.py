"""The report of `python -m lab demo`: the whole story on one page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.demo.contest import KINDS
from lab.demo.story import Pruning, Story
from selattn.training.folder import LOG, read_log
from selattn.utils.records import Provenance
from selattn.utils.tables import Table, byte_size
from selattn.utils.typed import to_json
from selattn.views import plot
from selattn.views.plot.curves import losses_of_log, path_of_search
from selattn.views.report import Explorer, Headline, Listing, Paragraph, Picture, Report, Section, how_it_was_made
from selattn.views.reports import budgets


def story_report(found: Story, made: Provenance) -> Report:
    """From learning to a small cache, with the pictures and how all of it was made."""
    task, text = found.task, found.text
    settings = {
        "sizes": to_json(found.sizes),
        "training": found.runs["selective"].to_dict(),
        "seconds": round(found.seconds),
    }
    return Report(
        title="What is forgotten",
        lead=(
            "Selective attention lets a token decide that an earlier token is no longer needed. Two small models learn "
            "a task with it and without it; then its cache is made small, there and on text."
        ),
        blocks=[
            Headline(
                [
                    (
                        f"{_right(found, 'selective', 'validation'):.1%}",
                        "of the answers right with selective attention",
                    ),
                    (f"{_right(found, 'standard', 'validation'):.1%}", "with standard attention, as long trained"),
                    (f"{text.best.factor:.1f}x", f"fewer tokens in the cache of {text.name}, on text"),
                    (f"{text.speedup:.2f}x", "its decoding speed with the whole cache"),
                ]
            )
        ],
        sections=[
            Section("Two models learn the same task", _learning(found)),
            Section("What each layer masks", _masking(found)),
            Section("How little has to be kept", _pruned(task)),
            Section(
                f"The same on text, with {text.name}", [*_pruned(text), *_read(found), *_wrote(text), _explorer(found)]
            ),
            how_it_was_made(made, settings, f"All of it took {found.seconds:,.0f} seconds."),
        ],
    )


def answers(found: Story) -> Table:
    """Right answers in and out of distribution, beside chance."""
    task = found.assignment
    few = task.out_of_distribution().drawn_values or 1
    rows = [
        [label, *(f"{_right(found, kind, name):.1%}" for kind in KINDS), f"{1 / values:.0%}"]
        for label, name, values in (
            (f"{task.values} values, as trained", "validation", task.values),
            (f"{few} values, never seen", "out_of_distribution", few),
        )
    ]
    return Table(["right answers", *(f"{kind} attention" for kind in KINDS), "chance"], rows)


def costs(found: Pruning) -> Table:
    """Loss, answers, bytes and speed of the whole cache and of the small one."""
    rows = [
        ["tokens held, all layers", f"{len(found.best.budgets) * found.context:,}", f"{sum(found.best.budgets):,}"],
        [f"loss on {found.whole.questions:,} unseen rows, nats", f"{found.whole.loss:.4f}", f"{found.small.loss:.4f}"],
    ]
    if found.whole.right is not None and found.small.right is not None:
        rows.append(
            [f"right answers of {found.whole.questions:,}", f"{found.whole.right:.1%}", f"{found.small.right:.1%}"]
        )
    sides = (found.whole.decoding, found.small.decoding)
    rows.append(["bytes of the cache", *(byte_size(side.cache_bytes) for side in sides)])
    rows.append(["tokens per second", *(f"{side.tokens_per_second:,.0f}" for side in sides)])
    first = sides[0]
    caption = f"Decoded token by token: {first.batch} sequences at a time, up to {first.context:,} tokens"
    return Table(["", "whole cache", "small cache"], rows, caption, strong=[len(rows) - 2])


def _right(found: Story, kind: str, name: str) -> float:
    return found.contest.scores[kind][name].accuracy or 0.0


def _learning(found: Story) -> list[Paragraph | Table | Picture]:
    task, run = found.assignment, found.runs["selective"]
    words = (
        f"Each sample assigns values to {task.variables} variables, {task.assignments} times, and then asks for one of "
        f"them: the latest value counts. Both models see {run.schedule.steps} batches of {run.batch.size} samples, and "
        "then samples with far fewer values than they were trained on."
    )
    curves = [
        Picture(
            losses_of_log(read_log(folder / LOG), f"{kind} attention"),
            f"The loss over the steps, with {kind} attention.",
            f"Curves of the loss over the training steps with {kind} attention.",
        )
        for kind, folder in found.contest.folders.items()
    ]
    return [Paragraph(words), answers(found), *curves]


def _masking(found: Story) -> list[Paragraph | Picture]:
    chosen, other = found.traces["selective"], found.traces["standard"]
    return [
        Paragraph(
            "Below is one sample, as the question at its end sees it. A red line goes through what has been masked: "
            "values that were overwritten since. Blue is what the question reads."
        ),
        Picture(
            plot.tokens(chosen, position=chosen.size - 2),
            "Masking and attention of each layer of the selective model.",
            "The tokens of a sample, most of them struck through; the value that is asked for is lit.",
        ),
        Picture(
            plot.attention(chosen, other),
            "Attention of each layer: a row reads the columns. Selective attention leaves out what is masked.",
            "Attention patterns of the selective model, which are sparse, beside those of the standard one.",
        ),
    ]


def _pruned(found: Pruning) -> list[Paragraph | Table | Picture]:
    cost = found.limit - found.path[0].loss
    words = (
        "Every layer may keep K tokens and no more: when another comes, the one that is masked most leaves for good. "
        f"The search takes tokens away where that hurts least, until the loss on its own samples would rise by more "
        f"than {cost:.2g} nats. It saw {found.searched:,} of them, and with others it may find other budgets; the "
        f"table has {found.whole.questions:,} that it did not see, on which the cost can be larger. "
        f"What it found holds {found.best.factor:.1f} times fewer tokens in {found.bytes_saved:.1f} times fewer bytes "
        f"and decodes at {found.speedup:.2f} times the speed."
    )
    picture = Picture(
        path_of_search(found.path, found.best, found.limit if found.limit < math.inf else None),
        "Above, the loss as memory shrinks to the right; below, what each layer keeps. The mark is what was chosen.",
        f"The loss along the search, up to {found.path[-1].factor:.1f} times less memory.",
    )
    return [Paragraph(words), costs(found), budgets(found.best.budgets, found.context), picture]


def _read(found: Story) -> list[Picture]:
    (trace,) = found.page.traces
    return [
        Picture(
            plot.words(trace),
            "What the last word of a passage still sees of it, layer by layer.",
            "A passage whose words are mostly grey: masked. A few are lit.",
        ),
        Picture(
            plot.kept(trace, run=len(trace.runs) - 1),
            "What each layer holds when each token of the passage attends, with the budgets that were found.",
            "Triangles of which only a narrow band and some lines are filled: what is kept.",
        ),
    ]


def _wrote(found: Pruning) -> Sequence[Listing]:
    return [
        Listing(
            found.whole.wrote, "What the model goes on with after the passage below, with its whole cache", prose=True
        ),
        Listing(found.small.wrote, "And with the small one (it is a very small model)", prose=True),
    ]


def _explorer(found: Story) -> Explorer:
    last = found.page.traces[0].size - 1
    view = f"p={last}&w=selective&k={','.join(map(str, found.text.best.budgets))}"
    caption = (
        "The passage. Pick a layer, click a token, drag the budget, press play: who masked whom, and who left when."
    )
    return Explorer(found.page, caption, view)
